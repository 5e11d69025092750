import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What one scenario sends, and the comparison of what came back with it: every message by its number (a user property), its
 * body, tags, keys, properties, and, where the send result told them, its id, queue and offset.
 */
final class Letters {
    static final String[] TAGS = {"red", "green", "blue"};
    private static final String TEXT = "plain é 漢字 \uD83D\uDE80 \"quoted\" \\ \n\t";

    final String topic;
    final List<Message> sent = new ArrayList<>();
    private final Map<Integer, SendResult> results = new HashMap<>();

    Letters(String topic, int count) {
        this.topic = topic;
        for (int n = 0; n < count; n++) {
            add(("letter " + n + " " + TEXT).getBytes(StandardCharsets.UTF_8));
        }
    }

    Message add(byte[] body) {
        int n = sent.size();
        Message message = new Message(topic, TAGS[n % 3], "key-" + n + " shared", body);
        message.putUserProperty("n", Integer.toString(n));
        message.putUserProperty("text", TEXT.trim() + n);
        message.putUserProperty("größe", "ü" + n);
        sent.add(message);
        return message;
    }

    static byte[] noise(int size, long seed) {
        byte[] body = new byte[size];
        new Random(seed).nextBytes(body);
        return body;
    }

    List<Message> tagged(String... tags) {
        return sent.stream().filter(m -> Arrays.asList(tags).contains(m.getTags())).toList();
    }

    synchronized void acknowledged(Message message, SendResult result) {
        Check.that(result.getSendStatus() == SendStatus.SEND_OK, "send status " + result.getSendStatus());
        results.put(number(message), result);
    }

    /** A line per acknowledged message: topic, number, queue id, queue offset, message id. */
    synchronized String places() {
        StringBuilder lines = new StringBuilder();
        results.forEach((n, result) -> lines.append(String.join("\t", topic, n.toString(),
            String.valueOf(result.getMessageQueue().getQueueId()), String.valueOf(result.getQueueOffset()), result.getMsgId()))
            .append('\n'));
        return lines.toString();
    }

    static int number(Message message) {
        return Integer.parseInt(message.getUserProperty("n"));
    }

    /**
     * What was received without repeats of the same stored message (same queue, same offset): when a queue changes hands,
     * delivery is at least once. The same letter stored twice stays twice.
     */
    static List<MessageExt> once(List<MessageExt> received) {
        Map<List<Object>, MessageExt> byPlace = new LinkedHashMap<>();
        for (MessageExt message : received) {
            byPlace.putIfAbsent(List.of(message.getTopic(), message.getQueueId(), message.getQueueOffset()), message);
        }
        return List.copyOf(byPlace.values());
    }

    /** Every expected message exactly once and nothing else. */
    void check(List<Message> expected, List<MessageExt> received) {
        Map<Integer, MessageExt> byNumber = new TreeMap<>();
        for (MessageExt message : received) {
            MessageExt twin = byNumber.put(number(message), message);
            Check.that(twin == null, "message " + number(message) + " twice");
        }
        Check.equal(expected.stream().map(Letters::number).sorted().toList(), List.copyOf(byNumber.keySet()), "numbers");
        for (Message wanted : expected) {
            checkOne(wanted, byNumber.get(number(wanted)));
        }
    }

    private void checkOne(Message wanted, MessageExt got) {
        String which = topic + " message " + number(wanted) + ": ";
        Check.equal(topic, got.getTopic(), which + "topic");
        Check.that(Arrays.equals(wanted.getBody(), got.getBody()), which + "body of " + got.getBody().length + " bytes");
        Check.equal(wanted.getTags(), got.getTags(), which + "tags");
        Check.equal(wanted.getKeys(), got.getKeys(), which + "keys");
        for (String name : List.of("n", "text", "größe")) {
            Check.equal(wanted.getUserProperty(name), got.getUserProperty(name), which + name);
        }
        Check.that(Math.abs(got.getStoreTimestamp() - got.getBornTimestamp()) < 60_000, which + "time stamps");
        Check.equal(0, got.getReconsumeTimes(), which + "reconsumeTimes");
        SendResult result = results.get(number(wanted));
        if (result != null) {
            Check.equal(result.getMsgId(), got.getMsgId(), which + "msgId");
            Check.equal(result.getMessageQueue().getQueueId(), got.getQueueId(), which + "queue");
            Check.equal(result.getQueueOffset(), got.getQueueOffset(), which + "offset");
        }
    }

    /** Offsets in each queue start at 0 without a gap; with `ordered`, numbers ascend along them. */
    static void checkQueues(List<MessageExt> received, boolean ordered) {
        Map<MessageQueue, List<MessageExt>> queues = new HashMap<>();
        for (MessageExt m : received) {
            queues.computeIfAbsent(new MessageQueue(m.getTopic(), "", m.getQueueId()), q -> new ArrayList<>()).add(m);
        }
        queues.forEach((queue, messages) -> {
            int last = -1;
            for (int i = 0; i < messages.size(); i++) {
                Check.equal((long) i, messages.get(i).getQueueOffset(), queue + " offset");
                Check.that(!ordered || number(messages.get(i)) > last, queue + " out of order at " + i);
                last = number(messages.get(i));
            }
        });
    }
}
