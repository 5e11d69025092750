package golden.four;

import golden.Golden;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper;

/** The files under `config/` as a 4.9 broker's managers write them. */
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
        offsets.getOffsetTable().put("TopicTest@consumers", new ConcurrentHashMap<>(Map.of(0, 5L, 1, 6L)));
        file("consumerOffset.json", offsets.encode(true), "ConsumerOffsetSerializeWrapper",
            "offsetTable", offsets.getOffsetTable());

        SubscriptionGroupManager groups = new SubscriptionGroupManager();
        groups.getSubscriptionGroupTable().clear();
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("consumers");
        groups.getSubscriptionGroupTable().put("consumers", group);
        groups.getDataVersion().assignNewOne(Bodies.version(7));
        file("subscriptionGroup.json", groups.encode(true), "SubscriptionGroupWrapper",
            "dataVersion", groups.getDataVersion(), "subscriptionGroupTable", groups.getSubscriptionGroupTable());

        DelayOffsetSerializeWrapper delays = new DelayOffsetSerializeWrapper();
        delays.setOffsetTable(new ConcurrentHashMap<>(Map.of(1, 1L, 3, 17L)));
        file("delayOffset.json", delays.toJson(true), "DelayOffsetSerializeWrapper", "offsetTable", delays.getOffsetTable());
    }

    private void file(String name, String text, String type, Object... fields) {
        Map<String, Object> value = new TreeMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            value.put((String) fields[i], Golden.describe(fields[i + 1]));
        }
        golden.add("config", name, text.getBytes(StandardCharsets.UTF_8), "type", type, "value", value);
    }
}
