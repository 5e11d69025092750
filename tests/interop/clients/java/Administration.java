import java.util.Map;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What DefaultMQAdminExt asks of a name server and a broker about topics. */
final class Administration {
    private final Session session;

    private Administration(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        scenarios.put("admin_topic", new Administration(session)::topic);
    }

    private String topic(String topic) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Session.signer(Session.ADMIN), 60_000L);
        session.patient(admin).setInstanceName("admin");
        admin.start();
        // `var` throughout: these types live in different packages in 4.9 and 5.x
        var cluster = admin.examineBrokerClusterInfo();
        Check.equal(1, cluster.getBrokerAddrTable().size(), "brokers in the cluster");
        var broker = cluster.getBrokerAddrTable().values().iterator().next();
        String address = broker.getBrokerAddrs().get(0L);
        Check.that(cluster.getClusterAddrTable().get(broker.getCluster()).contains(broker.getBrokerName()), "cluster table");

        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(6);
        config.setWriteQueueNums(3);
        admin.createAndUpdateTopicConfig(address, config);
        Check.eventually("route of the new topic", () -> admin.examineTopicRouteInfo(topic) != null);
        var route = admin.examineTopicRouteInfo(topic);
        Check.equal(1, route.getQueueDatas().size(), "brokers of the topic");
        Check.equal(6, route.getQueueDatas().get(0).getReadQueueNums(), "read queues");
        Check.equal(3, route.getQueueDatas().get(0).getWriteQueueNums(), "write queues");
        Check.equal(6, route.getQueueDatas().get(0).getPerm(), "permission");
        Check.equal(address, route.getBrokerDatas().get(0).getBrokerAddrs().get(0L), "address");
        Check.that(admin.fetchAllTopicList().getTopicList().contains(topic), "topic in the list");

        for (int n = 0; n < 3; n++) {
            Message message = new Letters(topic, n + 1).sent.get(n);
            Session.routed(() -> session.producer().send(message));
        }
        Check.equal(3, session.readWhenComplete(topic, 3).size(), "messages");
        admin.shutdown();
        return "3 write and 6 read queues";
    }
}
