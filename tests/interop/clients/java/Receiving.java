import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * java Receiving WANTED NAMESRV PREFIX COUNT: an ordered push consumer of the topics of the file WANTED, for somebody else to judge. A line
 * of WANTED is NAMESPACE TOPIC MESSAGES, tab-separated, the namespace "-" or "v1:NAME" or "v2:NAME". When each topic has given so many
 * messages (or patience ends) and a second has passed, the file "received" of its directory holds a line per message in the order of
 * arrival: topic, queue id, queue offset, message id, arrival in ms, body in base64, then name and value of each property in base64.
 */
final class Receiving {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();

    private Receiving() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, Map<String, Integer>> wanted = new TreeMap<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] words = line.split("\t");
            wanted.computeIfAbsent(words[0], key -> new HashMap<>()).put(words[1], Integer.parseInt(words[2]));
        }
        ConcurrentLinkedQueue<String> lines = new ConcurrentLinkedQueue<>();
        Map<String, Integer> counts = new ConcurrentHashMap<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String namespace : wanted.keySet()) {
            consumers.add(consumer(args[1], args[2], namespace, wanted.get(namespace), lines, counts));
        }
        boolean good = Main.report("receiving", topic -> {
            Check.eventually("every topic whole", () -> {
                for (Map.Entry<String, Map<String, Integer>> space : wanted.entrySet()) {
                    for (Map.Entry<String, Integer> one : space.getValue().entrySet()) {
                        if (counts.getOrDefault(space.getKey() + one.getKey(), 0) < one.getValue()) {
                            throw new IllegalStateException(one + ", here are " + new TreeMap<>(counts));
                        }
                    }
                }
                return true;
            });
            Thread.sleep(1000); // for what should not come
            return lines.size() + " messages of " + counts.size() + " topics";
        }, args[2]);
        Files.write(Path.of("received"), lines, StandardCharsets.UTF_8);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        System.exit(good ? 0 : 1);
    }

    private static DefaultMQPushConsumer consumer(
        String namesrv, String prefix, String namespace, Map<String, Integer> topics, ConcurrentLinkedQueue<String> lines,
        Map<String, Integer> counts
    ) throws Exception {
        // a group of its own: a namespace of the second kind is nothing to a broker, and one group has one subscription
        String group = prefix + "-receiving" + namespace.replace(':', '-');
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Session.signer(Session.CONSUMER), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(prefix + namespace.replace(':', '-'));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(60_000);
        if (!namespace.equals("-")) {
            String setter = namespace.startsWith("v2:") ? "setNamespaceV2" : "setNamespace";
            consumer.getClass().getMethod(setter, String.class).invoke(consumer, namespace.substring(3));
        }
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, "*");
        }
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                lines.add(line(message));
                counts.merge(namespace + message.getTopic(), 1, Integer::sum);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static String line(MessageExt message) {
        StringBuilder line = new StringBuilder();
        line.append(message.getTopic()).append('\t').append(message.getQueueId()).append('\t').append(message.getQueueOffset());
        line.append('\t').append(message.getMsgId()).append('\t').append(System.currentTimeMillis());
        line.append('\t').append(BASE64.encodeToString(message.getBody()));
        message.getProperties().forEach((name, value) -> line.append('\t').append(base64(name)).append('\t').append(base64(value)));
        return line.toString();
    }

    private static String base64(String text) {
        return BASE64.encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
