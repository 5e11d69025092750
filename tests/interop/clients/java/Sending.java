import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Each way of sending; what was stored is read back by pulls and compared. */
final class Sending {
    private final Session session;

    private Sending(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        Sending sending = new Sending(session);
        scenarios.put("send_sync", sending::sync);
        scenarios.put("send_async", sending::async);
        scenarios.put("send_oneway", sending::oneway);
        scenarios.put("send_batch", sending::batch);
        scenarios.put("send_by_selector", sending::bySelector);
        scenarios.put("send_to_queue", sending::toQueue);
        scenarios.put("send_large", sending::large);
        scenarios.put("send_vip", sending::vip);
        scenarios.put("send_signed", sending::signed);
    }

    private String sync(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        for (Message message : letters.sent) {
            letters.acknowledged(message, Session.routed(() -> session.producer().send(message)));
        }
        return compare(letters);
    }

    private String async(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        letters.acknowledged(letters.sent.get(0), Session.routed(() -> session.producer().send(letters.sent.get(0))));
        CountDownLatch open = new CountDownLatch(session.count - 1);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (Message message : letters.sent.subList(1, session.count)) {
            session.producer().send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    letters.acknowledged(message, result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failure.set(error);
                    open.countDown();
                }
            });
        }
        Check.that(open.await(Main.PATIENCE_SECONDS, TimeUnit.SECONDS), "callbacks missing: " + open.getCount());
        Check.equal(null, failure.get(), "callback");
        return compare(letters, false);
    }

    private String oneway(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        for (Message message : letters.sent) {
            Session.routed(() -> {
                session.producer().sendOneway(message);
                return null;
            });
        }
        return compare(letters, false);
    }

    private String batch(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        for (int from = 0; from < session.count; from += 16) {
            List<Message> part = letters.sent.subList(from, Math.min(from + 16, session.count));
            SendResult result = Session.routed(() -> session.producer().send(part));
            Check.equal("SEND_OK", result.getSendStatus().name(), "batch");
            Check.equal(part.size(), result.getMsgId().split(",").length, "ids in " + result.getMsgId());
            Check.equal(part.size(), result.getOffsetMsgId().split(",").length, "ids in " + result.getOffsetMsgId());
        }
        return compare(letters);
    }

    private String bySelector(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        for (Message message : letters.sent) {
            int n = Letters.number(message);
            SendResult result = Session.routed(() -> session.producer().send(message,
                (queues, m, argument) -> queues.get((Integer) argument % queues.size()), n));
            Check.equal(n % 4, result.getMessageQueue().getQueueId(), "selected queue");
            letters.acknowledged(message, result);
        }
        return compare(letters);
    }

    private String toQueue(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        letters.acknowledged(letters.sent.get(0), Session.routed(() -> session.producer().send(letters.sent.get(0))));
        List<MessageQueue> queues = new ArrayList<>();
        Check.eventually("queues to publish to", () -> queues.addAll(session.producer().fetchPublishMessageQueues(topic)));
        Check.equal(4, queues.size(), "queues to publish to");
        MessageQueue third = queues.stream().filter(q -> q.getQueueId() == 2).findFirst().orElseThrow();
        for (Message message : letters.sent.subList(1, session.count)) {
            SendResult result = Session.routed(() -> session.producer().send(message, third));
            Check.equal(third, result.getMessageQueue(), "queue");
            letters.acknowledged(message, result);
        }
        return compare(letters);
    }

    private String large(String topic) throws Exception {
        Letters letters = new Letters(topic, 0);
        letters.add("compressible ".repeat(500).getBytes());
        letters.add("compressible ".repeat(80_000).getBytes());
        letters.add(Letters.noise(5_000, 1));
        letters.add(Letters.noise(1 << 20, 2));
        letters.add(Letters.noise(3 << 20, 3));
        letters.add(new byte[1]);
        for (Message message : letters.sent) {
            letters.acknowledged(message, Session.routed(() -> session.producer().send(message)));
        }
        return compare(letters);
    }

    private String vip(String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(session.prefix + "-vip", Session.signer(Session.PRODUCER));
        session.patient(producer).setInstanceName("vip");
        producer.setVipChannelEnabled(true);
        producer.start();
        Letters letters = new Letters(topic, 8);
        for (Message message : letters.sent) {
            letters.acknowledged(message, Session.routed(() -> producer.send(message)));
        }
        producer.shutdown();
        return compare(letters);
    }

    /** AccessKey and Signature beside the fields of each request: ignored by a broker without access control. */
    private String signed(String topic) throws Exception {
        SessionCredentials nobody = new SessionCredentials("nobody", "nothing");
        DefaultMQProducer producer = new DefaultMQProducer(session.prefix + "-signed", new AclClientRPCHook(nobody));
        session.patient(producer).setInstanceName("signed");
        producer.start();
        Letters letters = new Letters(topic, 8);
        for (Message message : letters.sent) {
            letters.acknowledged(message, Session.routed(() -> producer.send(message)));
        }
        producer.shutdown();
        return compare(letters);
    }

    private String compare(Letters letters) throws Exception {
        return compare(letters, true);
    }

    /** Asynchronous and one-way sends pass through a thread pool of the client's: their order is nobody's promise. */
    private String compare(Letters letters, boolean ordered) throws Exception {
        List<MessageExt> stored = session.readWhenComplete(letters.topic, letters.sent.size());
        letters.check(letters.sent, stored);
        Letters.checkQueues(stored, ordered);
        session.letters.add(letters);
        return stored.size() + " messages";
    }
}
