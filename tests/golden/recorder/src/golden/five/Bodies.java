package golden.five;

import golden.Golden;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageQueueForC;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.header.GetConsumerListByGroupResponseBody;
import org.apache.rocketmq.remoting.protocol.heartbeat.*;
import org.apache.rocketmq.remoting.protocol.namesrv.RegisterBrokerResult;
import org.apache.rocketmq.remoting.protocol.statictopic.LogicQueueMappingItem;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingDetail;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingInfo;

/** JSON bodies as `RemotingSerializable.encode` writes them, and the compressed registration. */
final class Bodies {
    private final Golden golden;

    Bodies(Golden golden) {
        this.golden = golden;
    }

    void record() {
        heartbeats();
        registrations();
        lists();
        offsets();
        locks();
    }

    private void heartbeats() {
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("127.0.0.1@4711#1700000000123");
        heartbeat.setProducerDataSet(new LinkedHashSet<>(List.of(producer("CLIENT_INNER_PRODUCER"), producer("producers"))));
        ConsumerData consumer = consumer(ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        heartbeat.setConsumerDataSet(new LinkedHashSet<>(List.of(consumer)));
        body("heartbeat-full", heartbeat);
        HeartbeatData idle = new HeartbeatData();
        idle.setClientID("127.0.0.1@4711");
        body("heartbeat-idle", idle);
        HeartbeatData second = new HeartbeatData();
        second.setClientID("127.0.0.1@4711");
        second.setHeartbeatFingerprint(-12345);
        second.setWithoutSub(true);
        second.setConsumerDataSet(new LinkedHashSet<>(List.of(
            consumer(ConsumeType.CONSUME_ACTIVELY, MessageModel.BROADCASTING, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP))));
        body("heartbeat-v2", second);
    }

    private static ProducerData producer(String group) {
        ProducerData producer = new ProducerData();
        producer.setGroupName(group);
        return producer;
    }

    private static ConsumerData consumer(ConsumeType type, MessageModel model, ConsumeFromWhere where) {
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("consumers");
        consumer.setConsumeType(type);
        consumer.setMessageModel(model);
        consumer.setConsumeFromWhere(where);
        consumer.setSubscriptionDataSet(new LinkedHashSet<>(List.of(
            subscription("%RETRY%consumers", "*"), subscription("TopicTest", "TagA || TagB || \u00e4"))));
        return consumer;
    }

    static SubscriptionData subscription(String topic, String expression) {
        SubscriptionData subscription = new SubscriptionData(topic, expression);
        subscription.setSubVersion(1700000000123L);
        if (!expression.equals("*")) {
            for (String tag : expression.split("\\|\\|")) {
                subscription.getTagsSet().add(tag.trim());
                subscription.getCodeSet().add(tag.trim().hashCode());
            }
        }
        return subscription;
    }

    static DataVersion version(long counter) {
        DataVersion version = new DataVersion();
        version.setStateVersion(1);
        version.setTimestamp(1700000000123L);
        version.setCounter(new AtomicLong(counter));
        return version;
    }

    /** The version of a table that never was, as a reader without a clock makes it. */
    private static DataVersion none() {
        DataVersion version = new DataVersion();
        version.setTimestamp(0);
        return version;
    }

    static TopicConfig topic(String name, int queues, int perm) {
        TopicConfig topic = new TopicConfig(name, queues, queues, perm);
        topic.setTopicFilterType(TopicFilterType.SINGLE_TAG);
        return topic;
    }

    static TopicConfigAndMappingSerializeWrapper topics() {
        TopicConfigAndMappingSerializeWrapper wrapper = new TopicConfigAndMappingSerializeWrapper();
        wrapper.setDataVersion(version(3));
        wrapper.setMappingDataVersion(version(1));
        TopicConfig typed = topic("TopicTest", 8, 6);
        typed.setOrder(true);
        typed.setTopicSysFlag(1);
        typed.getAttributes().put("message.type", "FIFO");
        wrapper.getTopicConfigTable().put("TopicTest", typed);
        wrapper.getTopicConfigTable().put("TBW102", topic("TBW102", 8, 7));
        wrapper.getTopicConfigTable().put("%RETRY%consumers", topic("%RETRY%consumers", 1, 6));
        return wrapper;
    }

    private void registrations() {
        RegisterBrokerBody register = new RegisterBrokerBody();
        register.setTopicConfigSerializeWrapper(topics());
        register.setFilterServerList(new ArrayList<>(List.of("127.0.0.1:1", "127.0.0.1:2")));
        registration("register", register);

        RegisterBrokerBody mapped = new RegisterBrokerBody();
        mapped.setTopicConfigSerializeWrapper(topics());
        TopicQueueMappingDetail detail = new TopicQueueMappingDetail("TopicTest", 2, "broker-a", 1700000000123L);
        detail.getHostedQueues().put(0, new ArrayList<>(List.of(
            new LogicQueueMappingItem(0, 1, "broker-a", 0, 0, 100, 1700000000000L, 1700000000100L),
            new LogicQueueMappingItem(1, 0, "broker-b", 100, 0, -1, -1, -1))));
        detail.getCurrIdMap().put(0, 1);
        mapped.getTopicConfigSerializeWrapper().getTopicQueueMappingDetailMap().put("TopicTest", detail);
        TopicQueueMappingInfo info = TopicQueueMappingDetail.cloneAsMappingInfo(detail);
        info.getCurrIdMap().put(1, 0);
        mapped.getTopicConfigSerializeWrapper().getTopicQueueMappingInfoMap().put("TopicTest", info);
        registration("register-mapped", mapped);
        registration("register-empty", emptied(new RegisterBrokerBody()));

        body("topics", topics());
        TopicConfigSerializeWrapper plain = new TopicConfigSerializeWrapper();
        plain.setDataVersion(version(3));
        plain.getTopicConfigTable().putAll(topics().getTopicConfigTable());
        body("topics-plain", plain);
        body("data-version", version(9007199254740993L));
        KVTable table = new KVTable();
        table.getTable().put("ORDER_TOPIC_CONFIG", "broker-a:4;broker-b:4");
        table.getTable().put("\u00e4 \"\n", "\\");
        body("kv-table", table);
    }

    private static RegisterBrokerBody emptied(RegisterBrokerBody body) {
        body.getTopicConfigSerializeWrapper().setDataVersion(version(0));
        body.getTopicConfigSerializeWrapper().setMappingDataVersion(version(0));
        return body;
    }

    private void registration(String name, RegisterBrokerBody register) {
        byte[] plain = register.encode(false);
        byte[] compressed = register.encode(true);
        golden.add("body", name, plain, "type", "RegisterBrokerBody", "value", Golden.describe(register),
            "bodyCrc32", UtilAll.crc32(plain));
        golden.add("register-compressed", name + "-compressed", compressed, "type", "RegisterBrokerBody",
            "version", MQVersion.CURRENT_VERSION, "value", decoded(compressed), "bodyCrc32", UtilAll.crc32(compressed));
    }

    /** What Apache's name server gets out of it: the compressed form loses `order` and `topicSysFlag`. */
    private static Object decoded(byte[] compressed) {
        try {
            RegisterBrokerBody read = RegisterBrokerBody.decode(compressed, true,
                MQVersion.value2Version(MQVersion.CURRENT_VERSION));
            read.getTopicConfigSerializeWrapper().setMappingDataVersion(none());
            return Golden.describe(read);
        } catch (java.io.IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private void lists() {
        GetConsumerListByGroupResponseBody ids = new GetConsumerListByGroupResponseBody();
        ids.setConsumerIdList(Arrays.asList("127.0.0.1@1", "[::1]@2#3", "\u00fcber"));
        body("consumer-ids", ids);
        TopicList topics = new TopicList();
        topics.setTopicList(new LinkedHashSet<>(List.of("TopicTest", "%DLQ%consumers", "TBW102")));
        body("topic-list", topics);
        topics.setBrokerAddr("127.0.0.1:10911");
        body("topic-list-of-broker", topics);
        BrokerMemberGroup group = new BrokerMemberGroup("DefaultCluster", "broker-a");
        group.getBrokerAddrs().put(0L, "127.0.0.1:10911");
        group.getBrokerAddrs().put(1L, "127.0.0.1:10921");
        GetBrokerMemberGroupResponseBody members = new GetBrokerMemberGroupResponseBody();
        members.setBrokerMemberGroup(group);
        body("member-group", members);
    }

    private void offsets() {
        ResetOffsetBody reset = new ResetOffsetBody();
        reset.setOffsetTable(queueTable());
        body("reset-offset", reset);
        ResetOffsetBodyForC forC = new ResetOffsetBodyForC();
        forC.setOffsetTable(new ArrayList<>(List.of(
            new MessageQueueForC("TopicTest", "broker-a", 0, 5), new MessageQueueForC("TopicTest", "broker-a", 1, 6))));
        body("reset-offset-for-c", forC);
        GetConsumerStatusBody status = new GetConsumerStatusBody();
        status.setMessageQueueTable(queueTable());
        Map<String, Map<MessageQueue, Long>> clients = new HashMap<>();
        clients.put("127.0.0.1@1", queueTable());
        status.setConsumerTable(clients);
        body("consumer-status", status);
        ConsumerOffsetSerializeWrapper all = new ConsumerOffsetSerializeWrapper();
        all.setDataVersion(version(2));
        all.getOffsetTable().put("TopicTest@consumers", new java.util.concurrent.ConcurrentHashMap<>(Map.of(0, 5L, 1, 6L)));
        body("consumer-offsets", all);
    }

    /** A new one for each use: the same object twice in a body would become a fastjson `$ref`. */
    private static Map<MessageQueue, Long> queueTable() {
        Map<MessageQueue, Long> table = new HashMap<>();
        table.put(new MessageQueue("TopicTest", "broker-a", 0), 5L);
        table.put(new MessageQueue("TopicTest", "broker-a", 1), 9007199254740993L);
        return table;
    }

    private void locks() {
        Set<MessageQueue> queues = new LinkedHashSet<>(List.of(
            new MessageQueue("TopicTest", "broker-a", 0), new MessageQueue("TopicTest", "broker-a", 1)));
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup("consumers");
        lock.setClientId("127.0.0.1@1");
        lock.setMqSet(queues);
        body("lock", lock);
        UnlockBatchRequestBody unlock = new UnlockBatchRequestBody();
        unlock.setConsumerGroup("consumers");
        unlock.setClientId("127.0.0.1@1");
        unlock.setMqSet(queues);
        unlock.setOnlyThisBroker(true);
        body("unlock", unlock);
        LockBatchResponseBody locked = new LockBatchResponseBody();
        locked.setLockOKMQSet(queues);
        body("locked", locked);
    }

    private void body(String name, RemotingSerializable body) {
        golden.add("body", name, body.encode(), "type", body.getClass().getSimpleName(), "value", Golden.describe(body));
    }
}
