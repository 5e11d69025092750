import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Delay levels and messages that are sent back, against a broker whose messageDelayLevel begins "1s 2s 3s 1s 1s", as a program with
 * Main's arguments. What becomes a dead letter is for the caller to read: topic %DLQ%PREFIX-send_back-group.
 */
final class Delaying {
    private static final int LEVELS = 3;
    private static final int RETRIES = 2;
    private final Session session;

    private Delaying(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        Delaying delaying = new Delaying(session);
        boolean levels = Main.report("delay_levels", delaying::levels, args[1] + "-delay_levels");
        boolean back = Main.report("send_back", delaying::sendBack, args[1] + "-send_back");
        session.close();
        System.exit(levels && back ? 0 : 1);
    }

    /** Message n goes by level n mod 4, of which 0 is none; each comes once, as it was sent, and not before its time. */
    private String levels(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        Map<Integer, SendResult> results = new ConcurrentHashMap<>();
        for (Message message : letters.sent) {
            int n = Letters.number(message);
            message.setDelayTimeLevel(n % (LEVELS + 1));
            results.put(n, Session.routed(() -> session.producer().send(message)));
        }
        ConcurrentLinkedQueue<MessageExt> received = new ConcurrentLinkedQueue<>();
        AtomicLong earliest = new AtomicLong(Long.MAX_VALUE);
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                long waited = System.currentTimeMillis() - message.getBornTimestamp();
                earliest.accumulateAndGet(waited - 1000L * message.getDelayTimeLevel(), Math::min);
                received.add(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.eventually("all of " + topic, () -> received.size() >= session.count);
        consumer.shutdown();
        Check.that(earliest.get() >= 0, "early by " + -earliest.get() + " ms");
        Check.equal(session.count, received.size(), "messages");
        for (MessageExt message : received) {
            int n = Letters.number(message);
            SendResult result = results.remove(n);
            Check.that(result != null, "message " + n + " came twice");
            Message wanted = letters.sent.get(n);
            Check.that(Arrays.equals(wanted.getBody(), message.getBody()), "body of " + n);
            Check.equal(result.getMsgId(), message.getMsgId(), "id of " + n);
            Check.equal(result.getMessageQueue().getQueueId(), message.getQueueId(), "queue of " + n);
            for (String name : new String[] {"TAGS", "KEYS", "n", "text", "größe", "DELAY"}) {
                Check.equal(wanted.getProperties().get(name), message.getProperties().get(name), name + " of " + n);
            }
        }
        return received.size() + " messages, the earliest " + earliest.get() + " ms after its time";
    }

    /** Every delivery is refused: each message comes three times, with its id and topic, a level later each time. */
    private String sendBack(String topic) throws Exception {
        int count = session.count / 10;
        Letters letters = new Letters(topic, count);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Map<Integer, String> ids = new ConcurrentHashMap<>();
        Set<String> wrong = ConcurrentHashMap.newKeySet();
        for (Message message : letters.sent) {
            ids.put(Letters.number(message), Session.routed(() -> session.producer().send(message)).getMsgId());
        }
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.setMaxReconsumeTimes(RETRIES);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                int n = Letters.number(message);
                seen.add(n + " " + message.getReconsumeTimes());
                if (!message.getTopic().equals(topic) || !message.getMsgId().equals(ids.get(n))) {
                    wrong.add(message.toString());
                }
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        Check.eventually("every attempt of " + topic, () -> seen.size() >= count * (RETRIES + 1));
        Check.eventually("the last ones are sent back", () -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return session.committed(topic + "-group", "%RETRY%" + topic + "-group") >= count * RETRIES;
        });
        consumer.shutdown();
        Check.equal(count * (RETRIES + 1), seen.size(), "attempts");
        Check.that(wrong.isEmpty(), "wrong topic or id: " + wrong);
        return count + " messages, " + (RETRIES + 1) + " times each";
    }
}
