package golden.five;

import golden.Golden;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.subscription.*;

/** The files under `config/` as the broker's own managers write them, and a broadcasting client's `offsets.json`. */
final class ConfigFiles {
    private final Golden golden;

    ConfigFiles(Golden golden) {
        this.golden = golden;
    }

    void record() {
        TopicConfigManager topics = new TopicConfigManager();
        topics.getTopicConfigTable().putAll(Bodies.topics().getTopicConfigTable());
        topics.getDataVersion().assignNewOne(Bodies.version(3));
        file("topics.json", topics.encode(true), "TopicConfigSerializeWrapper",
            "dataVersion", topics.getDataVersion(), "topicConfigTable", topics.getTopicConfigTable());

        ConsumerOffsetManager offsets = new ConsumerOffsetManager();
        offsets.getOffsetTable().put("TopicTest@consumers", new ConcurrentHashMap<>(Map.of(0, 5L, 1, 9007199254740993L, 2, 0L)));
        offsets.getOffsetTable().put("%RETRY%consumers@consumers", new ConcurrentHashMap<>(Map.of(0, 1L)));
        offsets.getOffsetTable().put("Empty@consumers", new ConcurrentHashMap<>());
        offsets.getDataVersion().assignNewOne(Bodies.version(500));
        file("consumerOffset.json", offsets.encode(true), "ConsumerOffsetSerializeWrapper",
            "dataVersion", offsets.getDataVersion(), "groupTopicMap", offsets.getGroupTopicMap(),
            "offsetTable", offsets.getOffsetTable());
        golden.add("body", "consumer-offset-answer", offsets.encode().getBytes(StandardCharsets.UTF_8),
            "type", "ConsumerOffsetSerializeWrapper", "value", described("dataVersion", offsets.getDataVersion(),
                "groupTopicMap", offsets.getGroupTopicMap(), "offsetTable", offsets.getOffsetTable()));

        SubscriptionGroupManager groups = new SubscriptionGroupManager();
        groups.getSubscriptionGroupTable().clear();
        for (SubscriptionGroupConfig group : groups()) {
            groups.getSubscriptionGroupTable().put(group.getGroupName(), group);
        }
        groups.getForbiddenTable().put("consumers", new ConcurrentHashMap<>(Map.of("TopicTest", 2)));
        groups.getDataVersion().assignNewOne(Bodies.version(7));
        file("subscriptionGroup.json", groups.encode(true), "SubscriptionGroupWrapper",
            "dataVersion", groups.getDataVersion(), "forbiddenTable", groups.getForbiddenTable(),
            "subscriptionGroupTable", groups.getSubscriptionGroupTable());
        golden.add("body", "subscription-group-answer", groups.encode().getBytes(StandardCharsets.UTF_8),
            "type", "SubscriptionGroupWrapper", "value", described("dataVersion", groups.getDataVersion(),
                "forbiddenTable", groups.getForbiddenTable(), "subscriptionGroupTable", groups.getSubscriptionGroupTable()));

        DelayOffsetSerializeWrapper delays = new DelayOffsetSerializeWrapper();
        delays.setDataVersion(Bodies.version(4));
        delays.setOffsetTable(new ConcurrentHashMap<>(Map.of(1, 1L, 3, 17L, 18, 9007199254740993L)));
        file("delayOffset.json", delays.toJson(true), "DelayOffsetSerializeWrapper",
            "dataVersion", delays.getDataVersion(), "offsetTable", delays.getOffsetTable());

        OffsetSerializeWrapper client = new OffsetSerializeWrapper();
        client.getOffsetTable().put(new MessageQueue("TopicTest", "broker-a", 0), new AtomicLong(5));
        client.getOffsetTable().put(new MessageQueue("TopicTest", "broker-a", 1), new AtomicLong(6));
        file("offsets.json", client.toJson(true), "OffsetSerializeWrapper", "offsetTable", client.getOffsetTable());
    }

    private static List<SubscriptionGroupConfig> groups() {
        SubscriptionGroupConfig plain = new SubscriptionGroupConfig();
        plain.setGroupName("plain");
        SubscriptionGroupConfig consumers = new SubscriptionGroupConfig();
        consumers.setGroupName("consumers");
        consumers.setConsumeMessageOrderly(true);
        consumers.setRetryMaxTimes(-1);
        consumers.setAttributes(new HashMap<>(Map.of("priority.factor", "1")));
        consumers.setSubscriptionDataSet(new LinkedHashSet<>(List.of(
            new SimpleSubscriptionData("TopicTest", "TAG", "TagA || \u00e4", 1700000000123L),
            new SimpleSubscriptionData("Other", "SQL92", "a > 'x'", 1L))));
        GroupRetryPolicy customized = new GroupRetryPolicy();
        customized.setCustomizedRetryPolicy(new CustomizedRetryPolicy(new long[] {1000, 5000}));
        consumers.setGroupRetryPolicy(customized);
        SubscriptionGroupConfig exponential = new SubscriptionGroupConfig();
        exponential.setGroupName("exponential");
        GroupRetryPolicy policy = new GroupRetryPolicy();
        policy.setType(GroupRetryPolicyType.EXPONENTIAL);
        policy.setExponentialRetryPolicy(new ExponentialRetryPolicy(1, 2, 3));
        exponential.setGroupRetryPolicy(policy);
        return List.of(plain, consumers, exponential);
    }

    private void file(String name, String text, String type, Object... fields) {
        golden.add("config", name, text.getBytes(StandardCharsets.UTF_8), "type", type, "value", described(fields));
    }

    private static Map<String, Object> described(Object... fields) {
        Map<String, Object> value = new java.util.TreeMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            value.put((String) fields[i], Golden.describe(fields[i + 1]));
        }
        return value;
    }
}
