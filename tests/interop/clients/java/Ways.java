import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Where each way of sending can go: asynchronous sends, one-way sends and batches, to a queue (number 2) and by a selector (message n to
 * queue n mod 4). The first message of a topic is sent plainly and makes it. What arrives where is for the caller to read.
 */
final class Ways {
    private static final int BATCH = 8;
    private static final MessageQueueSelector BY_NUMBER = (queues, message, n) -> queues.get((Integer) n % queues.size());
    private final Session session;

    private interface One {
        void send(Message message, MessageQueue queue, SendCallback told) throws Exception;
    }

    private interface Several {
        SendResult send(List<Message> messages, MessageQueue queue, SendCallback told) throws Exception;
    }

    private Ways(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        Ways ways = new Ways(session);
        scenarios.put("async_to_queue", topic -> ways.each(topic, true, (message, queue, told) ->
            session.producer().send(message, queue, told)));
        scenarios.put("async_by_selector", topic -> ways.each(topic, true, (message, queue, told) ->
            session.producer().send(message, BY_NUMBER, Letters.number(message), told)));
        scenarios.put("oneway_to_queue", topic -> ways.each(topic, false, (message, queue, told) ->
            session.producer().sendOneway(message, queue)));
        scenarios.put("oneway_by_selector", topic -> ways.each(topic, false, (message, queue, told) ->
            session.producer().sendOneway(message, BY_NUMBER, Letters.number(message))));
        scenarios.put("batch_to_queue", topic -> ways.batches(topic, (messages, queue, told) ->
            session.producer().send(messages, queue)));
        scenarios.put("batch_async", topic -> ways.batches(topic, (messages, queue, told) -> {
            session.producer().send(messages, told);
            return null;
        }));
        scenarios.put("batch_async_to_queue", topic -> ways.batches(topic, (messages, queue, told) -> {
            session.producer().send(messages, queue, told);
            return null;
        }));
    }

    private String each(String topic, boolean answered, One one) throws Exception {
        Letters letters = new Letters(topic, session.count);
        MessageQueue queue = queue(letters);
        Answers answers = new Answers(answered ? session.count - 1 : 0);
        for (Message message : letters.sent.subList(1, session.count)) {
            SendCallback told = answers.of(result -> letters.acknowledged(message, result));
            Session.routed(() -> {
                one.send(message, queue, told);
                return null;
            });
        }
        answers.await();
        return session.count + " messages";
    }

    private String batches(String topic, Several several) throws Exception {
        Letters letters = new Letters(topic, session.count);
        MessageQueue queue = queue(letters);
        List<List<Message>> parts = new ArrayList<>();
        for (int from = 1; from < session.count; from += BATCH) {
            parts.add(letters.sent.subList(from, Math.min(from + BATCH, session.count)));
        }
        Answers answers = new Answers(parts.size());
        for (List<Message> part : parts) {
            SendCallback told = answers.of(result -> {
                Check.equal("SEND_OK", result.getSendStatus().name(), "batch");
                Check.equal(part.size(), result.getMsgId().split(",").length, "ids in " + result.getMsgId());
            });
            SendResult result = Session.routed(() -> several.send(part, queue, told));
            if (result != null) {
                told.onSuccess(result);
            }
        }
        answers.await();
        return parts.size() + " batches";
    }

    /** Makes the topic; its queue number 2. */
    private MessageQueue queue(Letters letters) throws Exception {
        session.letters.add(letters);
        Message first = letters.sent.get(0);
        letters.acknowledged(first, Session.routed(() -> session.producer().send(first)));
        List<MessageQueue> queues = new ArrayList<>();
        Check.eventually("queues to publish to", () -> queues.addAll(session.producer().fetchPublishMessageQueues(letters.topic)));
        return queues.stream().filter(queue -> queue.getQueueId() == 2).findFirst().orElseThrow();
    }

    /** So many callbacks, each of which must be told of a success. */
    private static final class Answers {
        private final CountDownLatch open;
        private final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();

        private interface Judge {
            void check(SendResult result) throws Exception;
        }

        Answers(int count) {
            open = new CountDownLatch(count);
        }

        SendCallback of(Judge judge) {
            return new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    try {
                        judge.check(result);
                    } catch (Throwable error) {
                        failures.add(error.toString());
                    }
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.add(error.toString());
                    open.countDown();
                }
            };
        }

        void await() throws Exception {
            Check.that(open.await(Main.PATIENCE_SECONDS, TimeUnit.SECONDS), "callbacks missing: " + open.getCount());
            Check.equal(List.of(), List.copyOf(failures), "callbacks");
        }
    }
}
