import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Single messages asked for again: by key, by unique id, by offset message id, and how old a queue is. */
final class Querying {
    private final Session session;

    private Querying(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        Querying querying = new Querying(session);
        scenarios.put("query_by_key", querying::byKey);
        scenarios.put("query_by_unique_id", querying::byUniqueId);
        scenarios.put("view_by_offset_id", querying::byOffsetId);
        scenarios.put("earliest_time", querying::earliestTime);
    }

    private String byKey(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters);
        for (int n = 0; n < session.count; n++) {
            letters.check(letters.sent.subList(n, n + 1), byKey(topic, "key-" + n, 64, 0, Long.MAX_VALUE));
        }
        // of many the newest, 64 at most
        List<MessageExt> shared = byKey(topic, "shared", 1000, 0, Long.MAX_VALUE);
        int first = Math.max(0, session.count - 64);
        letters.check(letters.sent.subList(first, session.count), shared);
        letters.check(letters.sent.subList(session.count - 3, session.count), byKey(topic, "shared", 3, 0, Long.MAX_VALUE));
        // both ends of a time count
        List<MessageExt> all = session.readWhenComplete(topic, session.count);
        for (MessageExt message : List.of(all.get(0), all.get(session.count / 2), all.get(session.count - 1))) {
            long time = message.getStoreTimestamp();
            List<Message> wanted = all.stream().filter(other -> other.getStoreTimestamp() == time)
                .map(other -> letters.sent.get(Letters.number(other))).toList();
            letters.check(wanted, byKey(topic, "shared", 64, time, time));
        }
        nothing(topic, "shared", 0, all.stream().mapToLong(MessageExt::getStoreTimestamp).min().orElse(0) - 1);
        nothing(topic, "unknown", 0, Long.MAX_VALUE);
        nothing(topic + "-other", "key-1", 0, Long.MAX_VALUE);
        return session.count + " messages by key";
    }

    private String byUniqueId(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        List<SendResult> results = send(letters);
        for (int n = 0; n < session.count; n++) {
            MessageExt found = session.producer().viewMessage(topic, results.get(n).getMsgId());
            letters.check(letters.sent.subList(n, n + 1), List.of(found));
        }
        MessageExt none = null;
        try {
            none = session.producer().viewMessage(topic, "7F00000100010000000000000000FFFF");
        } catch (MQClientException expected) {
            Check.that(expected.getMessage().contains("no message"), expected.getMessage());
        }
        Check.that(none == null, "a message of nobody's id: " + none);
        return session.count + " messages by unique id";
    }

    private String byOffsetId(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        List<SendResult> results = send(letters);
        for (int n = 0; n < session.count; n++) {
            MessageExt found = session.producer().viewMessage(topic, results.get(n).getOffsetMsgId());
            letters.check(letters.sent.subList(n, n + 1), List.of(found));
        }
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Session.signer(Session.ADMIN), 60_000L);
        session.patient(admin).setInstanceName("viewing");
        admin.start();
        String id = results.get(0).getOffsetMsgId();
        letters.check(letters.sent.subList(0, 1), List.of(admin.viewMessage(topic, id)));
        String nowhere = id.substring(0, 16) + "00FFFFFFFFFFFFFF";
        try {
            MessageExt message = admin.viewMessage(topic, nowhere);
            Check.that(message == null, "a message where none is: " + message);
        } catch (MQClientException | MQBrokerException expected) {
            Check.that(expected.getMessage().contains("message"), expected.getMessage());
        }
        admin.shutdown();
        return session.count + " messages by offset id";
    }

    private String earliestTime(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters);
        List<MessageExt> all = session.readWhenComplete(topic, session.count);
        for (MessageQueue queue : session.reader().fetchSubscribeMessageQueues(topic)) {
            long first = all.stream().filter(m -> m.getQueueId() == queue.getQueueId() && m.getQueueOffset() == 0)
                .mapToLong(MessageExt::getStoreTimestamp).findFirst().orElse(-1);
            Check.equal(first, session.reader().earliestMsgStoreTime(queue), queue + " earliest time");
        }
        return "of every queue";
    }

    private List<SendResult> send(Letters letters) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (Message message : letters.sent) {
            SendResult result = Session.routed(() -> session.producer().send(message));
            letters.acknowledged(message, result);
            results.add(result);
        }
        return results;
    }

    private List<MessageExt> byKey(String topic, String key, int most, long begin, long end) throws Exception {
        QueryResult result = session.producer().queryMessage(topic, key, most, begin, end);
        Check.that(result.getIndexLastUpdateTimestamp() > 1_600_000_000_000L, "time of the index");
        return result.getMessageList();
    }

    private void nothing(String topic, String key, long begin, long end) throws Exception {
        try {
            Check.equal(null, byKey(topic, key, 64, begin, end), "messages of " + key);
        } catch (MQClientException expected) {
            String why = expected.getMessage();
            Check.that(why.contains("no message") || why.contains("not matched route"), why);
        }
    }
}
