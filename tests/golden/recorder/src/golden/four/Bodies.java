package golden.four;

import golden.Golden;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.DataVersion;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.protocol.body.*;
import org.apache.rocketmq.common.protocol.heartbeat.*;
import org.apache.rocketmq.common.protocol.route.TopicRouteData;
import org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** The bodies whose 4.9 form lacks members that 5.x has. */
final class Bodies {
    private final Golden golden;

    Bodies(Golden golden) {
        this.golden = golden;
    }

    void record() {
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("127.0.0.1@4711");
        ProducerData producer = new ProducerData();
        producer.setGroupName("producers");
        heartbeat.setProducerDataSet(new LinkedHashSet<>(List.of(producer)));
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("consumers");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        SubscriptionData subscription = new SubscriptionData("TopicTest", "TagA");
        subscription.setSubVersion(1700000000123L);
        subscription.getTagsSet().add("TagA");
        subscription.getCodeSet().add("TagA".hashCode());
        consumer.setSubscriptionDataSet(new LinkedHashSet<>(List.of(subscription)));
        heartbeat.setConsumerDataSet(new LinkedHashSet<>(List.of(consumer)));
        body("heartbeat", heartbeat);

        RegisterBrokerBody register = new RegisterBrokerBody();
        register.setTopicConfigSerializeWrapper(topics());
        register.setFilterServerList(new ArrayList<>(List.of("127.0.0.1:1")));
        byte[] plain = register.encode(false);
        byte[] compressed = register.encode(true);
        golden.add("body", "register", plain, "type", "RegisterBrokerBody", "value", Golden.describe(register),
            "bodyCrc32", UtilAll.crc32(plain));
        try {
            golden.add("register-compressed", "register-compressed", compressed, "type", "RegisterBrokerBody",
                "version", MQVersion.CURRENT_VERSION, "value", Golden.describe(RegisterBrokerBody.decode(compressed, true)),
                "bodyCrc32", UtilAll.crc32(compressed));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }

        RouteInfoManager table = new RouteInfoManager();
        table.registerBroker("DefaultCluster", "127.0.0.1:10911", "broker-a", 0, "127.0.0.1:10912", topics(),
            new ArrayList<>(), new EmbeddedChannel());
        table.registerBroker("DefaultCluster", "127.0.0.1:10921", "broker-a", 1, "127.0.0.1:10922", topics(),
            new ArrayList<>(), new EmbeddedChannel());
        TopicRouteData route = table.pickupTopicRouteData("TopicTest");
        body("route", route);
        ClusterInfo cluster = table.getAllClusterInfo();
        body("cluster-info", cluster);
    }

    static DataVersion version(long counter) {
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000123L);
        version.setCounter(new AtomicLong(counter));
        return version;
    }

    static TopicConfigSerializeWrapper topics() {
        TopicConfigSerializeWrapper wrapper = new TopicConfigSerializeWrapper();
        wrapper.setDataVersion(version(3));
        wrapper.getTopicConfigTable().put("TopicTest", new TopicConfig("TopicTest", 8, 8, 6));
        wrapper.getTopicConfigTable().put("TBW102", new TopicConfig("TBW102", 8, 8, 7));
        return wrapper;
    }

    private void body(String name, RemotingSerializable body) {
        golden.add("body", name, body.encode(), "type", body.getClass().getSimpleName(), "value", Golden.describe(body));
    }
}
