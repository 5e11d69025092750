package golden.five;

import golden.Golden;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicConfigAndQueueMapping;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingDetail;
import org.apache.rocketmq.remoting.protocol.subscription.GroupForbidden;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Bodies that administration tools and brokers exchange. */
final class AdminBodies {
    private static final long THEN = 1700000000123L;

    private final Golden golden;

    AdminBodies(Golden golden) {
        this.golden = golden;
    }

    void record() {
        connections();
        stats();
        running();
        lists();
        replication();
    }

    private void connections() {
        Connection connection = new Connection();
        connection.setClientId("127.0.0.1@1");
        connection.setClientAddr("127.0.0.1:50000");
        connection.setLanguage(LanguageCode.GO);
        connection.setVersion(MQVersion.CURRENT_VERSION);
        HashSet<Connection> set = new HashSet<>(List.of(connection));
        ConsumerConnection consumers = new ConsumerConnection();
        consumers.setConnectionSet(set);
        consumers.getSubscriptionTable().put("TopicTest", Bodies.subscription("TopicTest", "TagA"));
        consumers.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumers.setMessageModel(MessageModel.CLUSTERING);
        consumers.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        body("consumer-connection", consumers);
        ProducerConnection producers = new ProducerConnection();
        producers.setConnectionSet(set);
        body("producer-connection", producers);
        Map<String, List<ProducerInfo>> all = new HashMap<>();
        all.put("producers", new ArrayList<>(List.of(
            new ProducerInfo("127.0.0.1@1", "127.0.0.1:50000", LanguageCode.CPP, 1, THEN))));
        body("producer-table", new ProducerTableInfo(all));
        QuerySubscriptionResponseBody subscription = new QuerySubscriptionResponseBody();
        subscription.setGroup("consumers");
        subscription.setTopic("TopicTest");
        subscription.setSubscriptionData(Bodies.subscription("TopicTest", "TagA"));
        body("query-subscription", subscription);
        CheckClientRequestBody check = new CheckClientRequestBody();
        check.setClientId("127.0.0.1@1");
        check.setGroup("consumers");
        check.setSubscriptionData(Bodies.subscription("TopicTest", "*"));
        check.setNamespace("space");
        body("check-client", check);
    }

    private void stats() {
        TopicStatsTable topic = new TopicStatsTable();
        TopicOffset offset = new TopicOffset();
        offset.setMinOffset(1);
        offset.setMaxOffset(99);
        offset.setLastUpdateTimestamp(THEN);
        topic.getOffsetTable().put(queue(0), offset);
        topic.getOffsetTable().put(queue(1), new TopicOffset());
        body("topic-stats", topic);
        ConsumeStatsList list = new ConsumeStatsList();
        Map<String, List<ConsumeStats>> groups = new HashMap<>();
        groups.put("consumers", new ArrayList<>(List.of(consumeStats())));
        list.setConsumeStatsList(new ArrayList<>(List.of(groups)));
        list.setBrokerAddr("127.0.0.1:10911");
        list.setTotalDiff(49);
        list.setTotalInflightDiff(39);
        body("consume-stats", consumeStats());
        body("consume-stats-list", list);

        QueueTimeSpan span = new QueueTimeSpan();
        span.setMessageQueue(queue(0));
        span.setMinTimeStamp(THEN);
        span.setMaxTimeStamp(THEN + 2);
        span.setConsumeTimeStamp(THEN + 1);
        span.setDelayTime(1);
        QueryConsumeTimeSpanBody spans = new QueryConsumeTimeSpanBody();
        spans.setConsumeTimeSpanSet(new ArrayList<>(List.of(span)));
        body("consume-time-span", spans);
        QueryCorrectionOffsetBody correction = new QueryCorrectionOffsetBody();
        correction.setCorrectionOffsets(new HashMap<>(Map.of(0, 5L, 1, Long.MAX_VALUE)));
        body("correction-offset", correction);

        BrokerStatsItem item = new BrokerStatsItem();
        item.setSum(12345);
        item.setTps(1.23456789E8);
        item.setAvgpt(0.00025);
        BrokerStatsData data = new BrokerStatsData();
        data.setStatsMinute(item);
        data.setStatsDay(new BrokerStatsItem());
        body("broker-stats", data);

        ConsumeQueueData unit = new ConsumeQueueData();
        unit.setPhysicOffset(123456789);
        unit.setPhysicSize(200);
        unit.setTagsCode(-7);
        unit.setEval(true);
        QueryConsumeQueueResponseBody queue = new QueryConsumeQueueResponseBody();
        queue.setQueueData(new ArrayList<>(List.of(unit)));
        queue.setMaxQueueIndex(10);
        queue.setMinQueueIndex(1);
        body("consume-queue", queue);
    }

    private static ConsumeStats consumeStats() {
        ConsumeStats stats = new ConsumeStats();
        OffsetWrapper wrapper = new OffsetWrapper();
        wrapper.setBrokerOffset(99);
        wrapper.setConsumerOffset(50);
        wrapper.setPullOffset(60);
        wrapper.setLastTimestamp(THEN);
        stats.getOffsetTable().put(queue(0), wrapper);
        stats.setConsumeTps(0.1234E-5);
        return stats;
    }

    private void running() {
        ConsumerRunningInfo info = new ConsumerRunningInfo();
        info.getProperties().setProperty("PROP_CONSUME_TYPE", "CONSUME_PASSIVELY");
        info.getSubscriptionSet().add(Bodies.subscription("TopicTest", "TagA"));
        ProcessQueueInfo queue = new ProcessQueueInfo();
        queue.setCommitOffset(5);
        queue.setCachedMsgSizeInMiB(3);
        queue.setDroped(true);
        queue.setTryUnlockTimes(2);
        info.getMqTable().put(queue(0), queue);
        info.getMqPopTable().put(queue(1), new PopProcessQueueInfo());
        ConsumeStatus status = new ConsumeStatus();
        status.setPullRT(1.5);
        status.setConsumeOKTPS(10);
        status.setConsumeFailedMsgs(1);
        info.getStatusTable().put("TopicTest", status);
        info.getUserConsumerInfo().put("a", "b");
        info.setJstack("TID: 1\n");
        body("running-info", info);

        ConsumeMessageDirectlyResult result = new ConsumeMessageDirectlyResult();
        result.setConsumeResult(CMResult.CR_THROW_EXCEPTION);
        result.setRemark("java.lang.RuntimeException: \u00e4");
        result.setSpentTimeMills(12);
        body("consume-directly", result);
    }

    private void lists() {
        GroupList groups = new GroupList();
        groups.setGroupList(new HashSet<>(List.of("a", "b")));
        body("group-list", groups);
        body("topics-to-create", new CreateTopicListRequestBody(new ArrayList<>(List.of(Bodies.topic("TopicTest", 8, 6)))));
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("consumers");
        body("groups-to-create", new SubscriptionGroupList(new ArrayList<>(List.of(group))));
        TopicConfigAndQueueMapping mapped = new TopicConfigAndQueueMapping(Bodies.topic("TopicTest", 8, 6),
            new TopicQueueMappingDetail("TopicTest", 2, "broker-a", THEN));
        golden.add("body", "topic-config-and-mapping", RemotingSerializable.encode(mapped),
            "type", "TopicConfigAndQueueMapping", "value", Golden.describe(mapped));
    }

    private void replication() {
        HARuntimeInfo alone = new HARuntimeInfo();
        alone.setMaster(true);
        alone.setMasterCommitLogMaxOffset(123456789L);
        body("ha-status", alone);
        HARuntimeInfo.HAConnectionRuntimeInfo slave = new HARuntimeInfo.HAConnectionRuntimeInfo();
        slave.setAddr("127.0.0.1:50000");
        slave.setSlaveAckOffset(123456000L);
        slave.setDiff(789);
        slave.setInSync(true);
        slave.setTransferredByteInSecond(1000);
        slave.setTransferFromWhere(5);
        alone.getHaConnectionInfo().add(slave);
        alone.setInSyncSlaveNums(1);
        body("ha-status-with-slave", alone);
        HARuntimeInfo of = new HARuntimeInfo();
        of.getHaClientRuntimeInfo().setMasterAddr("127.0.0.1:10912");
        of.getHaClientRuntimeInfo().setMaxOffset(7);
        of.getHaClientRuntimeInfo().setLastReadTimestamp(THEN);
        body("ha-status-of-slave", of);
        GroupForbidden ban = new GroupForbidden();
        ban.setGroup("consumers");
        ban.setTopic("TopicTest");
        ban.setReadable(false);
        body("group-forbidden", ban);
    }

    private static MessageQueue queue(int id) {
        return new MessageQueue("TopicTest", "broker-a", id);
    }

    private void body(String name, RemotingSerializable body) {
        golden.add("body", name, body.encode(), "type", body.getClass().getSimpleName(), "value", Golden.describe(body));
    }
}
