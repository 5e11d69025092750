import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * java Measured NAMESRV PREFIX COUNT: the same work each time, for somebody else to compare a broker's metrics after it. The topics
 * PREFIX-NAME must exist. When the line of the work is out, the consumers stay until standard input ends. The broker's delay levels
 * begin "1s 1s 1s".
 */
final class Measured {
    private static final List<String> NAMES = List.of(
        "plain", "ordered", "delayed", "timed", "transactions", "popped", "retried", "dead", "tagged", "selected", "asked");
    private final Session session;
    private final CountDownLatch over = new CountDownLatch(1);

    private Measured(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Measured measured = new Measured(new Session(args[0], args[1], Integer.parseInt(args[2])));
        boolean good = Main.report("measured", measured::all, args[1]);
        while (System.in.read() >= 0) {
            Thread.onSpinWait();
        }
        measured.over.countDown();
        System.exit(good ? 0 : 1);
    }

    private String all(String prefix) throws Exception {
        plain(prefix + "-plain");
        ordered(prefix + "-ordered");
        delayed(prefix + "-delayed");
        timed(prefix + "-timed");
        transactions(prefix + "-transactions");
        popped(prefix + "-popped");
        retried(prefix + "-retried", 16);
        retried(prefix + "-dead", 0);
        filtered(prefix + "-tagged", MessageSelector.byTag("red"));
        filtered(prefix + "-selected", MessageSelector.bySql("TAGS = 'red'"));
        asked(prefix + "-asked");
        behind(prefix + "-plain");
        return String.join(" ", NAMES);
    }

    private void plain(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        letters.add(Letters.noise(3000, 1));
        letters.add(Letters.noise(100_000, 2));
        send(letters.sent);
        consume(topic, MessageSelector.byTag("*"), letters.sent.size(), null);
    }

    private void ordered(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        for (Message message : letters.sent) {
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_SHARDING_KEY, "s" + Letters.number(message) % 4);
            Session.routed(() -> session.producer().send(message, (queues, one, key) -> queues.get((Integer) key), Letters.number(message) % 4));
        }
        AtomicInteger got = new AtomicInteger();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            got.addAndGet(messages.size());
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Check.eventually("all of " + topic, () -> got.get() >= session.count);
    }

    private void delayed(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        letters.sent.forEach(message -> message.setDelayTimeLevel(1 + Letters.number(message) % 2));
        send(letters.sent);
        consume(topic, MessageSelector.byTag("*"), session.count, null);
    }

    private void timed(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        letters.sent.forEach(message -> message.setDelayTimeMs(2000));
        send(letters.sent);
        consume(topic, MessageSelector.byTag("*"), session.count, null);
    }

    /** Of three transactions one is committed, one is rolled back, and one stays open. */
    private void transactions(String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-group");
        session.patient(producer).setInstanceName(topic);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.values()[(Integer) arg % 3];
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        for (Message message : new Letters(topic, session.count).sent) {
            Session.routed(() -> producer.sendMessageInTransaction(message, Letters.number(message)));
        }
        consume(topic, MessageSelector.byTag("*"), session.count / 3, null);
    }

    /** One message of ten fails the first time, and is popped again. */
    private void popped(String topic) throws Exception {
        send(new Letters(topic, session.count).sent);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(60_000L);
        session.patient(admin).setInstanceName("admin");
        admin.start();
        String broker = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();
        admin.setMessageRequestMode(broker, topic, topic + "-group", MessageRequestMode.POP, 0, 60_000);
        admin.shutdown();
        AtomicInteger done = new AtomicInteger();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(60_000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            if (Letters.number(message) % 10 == 0 && message.getReconsumeTimes() == 0) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            done.incrementAndGet();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.eventually("all of " + topic, () -> done.get() >= session.count);
    }

    /** One message of ten fails the first time. Without retries it becomes a dead letter. */
    private void retried(String topic, int retries) throws Exception {
        send(new Letters(topic, session.count).sent);
        int tries = session.count + (retries > 0 ? session.count / 10 : 0);
        consume(topic, MessageSelector.byTag("*"), tries, retries);
    }

    private void filtered(String topic, MessageSelector selector) throws Exception {
        send(new Letters(topic, session.count).sent);
        consume(topic, selector, session.count / 3, null);
    }

    private void asked(String topic) throws Exception {
        DefaultMQProducer answering = new DefaultMQProducer(topic + "-answering");
        session.patient(answering).setInstanceName(topic);
        answering.start();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    Message reply = MessageUtil.createReplyMessage(message, "answer".getBytes(StandardCharsets.UTF_8));
                    Session.routed(() -> answering.send(reply));
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (Message message : new Letters(topic, 10).sent) {
            CompletableFuture<Message> answered = new CompletableFuture<>();
            // the form that waits gives up when the broker acknowledges the request before the reply is there (5.3.3)
            Session.routed(() -> {
                session.producer().request(message, new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        if (reply != null) { // called when the request was sent, too
                            answered.complete(reply);
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        answered.completeExceptionally(error);
                    }
                }, 60_000);
                return true;
            });
            answered.get(60, TimeUnit.SECONDS);
        }
    }

    /** A group that gets everything and finishes nothing. */
    private void behind(String topic) throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-behind");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            begun.countDown();
            try {
                over.await();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        begun.await();
    }

    private void send(List<Message> messages) throws Exception {
        for (Message message : messages) {
            Session.routed(() -> session.producer().send(message));
        }
    }

    /** Consumes until there were so many attempts. With retries, one message of ten fails the first time. */
    private void consume(String topic, MessageSelector selector, int wanted, Integer retries) throws Exception {
        AtomicInteger tries = new AtomicInteger();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        if (retries != null) {
            consumer.setMaxReconsumeTimes(retries);
        }
        consumer.subscribe(topic, selector);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            tries.addAndGet(messages.size());
            MessageExt first = messages.get(0);
            boolean fails = retries != null && Letters.number(first) % 10 == 0 && first.getReconsumeTimes() == 0;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.eventually("all of " + topic, () -> tries.get() >= wanted);
    }
}
