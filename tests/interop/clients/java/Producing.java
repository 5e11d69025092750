import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Every kind of send that this client has, for somebody else to read: as a program with Main's arguments it sends each kind on a topic
 * of its own, all at once, and leaves in the file "places" of its directory a line per topic, number, queue id, queue offset and message
 * id of what was acknowledged. What only 5.x has is called by its name, so that 4.9 compiles this, too, and leaves it out.
 */
final class Producing {
    private static final int FEW = 24;
    private static final int LARGEST = (4 << 20) - 1024;
    private final Session session;
    private final Map<String, Letters> all = new ConcurrentHashMap<>();

    private Producing(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        Producing producing = new Producing(session);
        Map<String, Main.Scenario> scenarios = new LinkedHashMap<>();
        Sending.addTo(scenarios, session);
        Ways.addTo(scenarios, session);
        scenarios.put("sharded", producing::sharded);
        for (String type : new String[] {"zlib", "lz4", "zstd"}) {
            System.setProperty("rocketmq.message.compressType", type.toUpperCase());
            DefaultMQProducer producer = producing.producer(type); // 4.9 reads the property when it is made, and only then
            scenarios.put(type, topic -> producing.compressed(producer, topic));
        }
        System.clearProperty("rocketmq.message.compressType");
        scenarios.put("largest", producing::largest);
        scenarios.put("levels", producing::levels);
        scenarios.put("levels_oneway", producing::levelsOneway);
        scenarios.put("namespace", topic -> producing.namespace(topic, "setNamespace"));
        scenarios.put("namespace_transactions", producing::transactions);
        scenarios.put("traced", producing::traced);
        if (has(DefaultMQProducer.class, "recallMessage")) {
            scenarios.put("namespace_v2", topic -> producing.namespace(topic, "setNamespaceV2"));
            scenarios.put("auto_batch", producing::autoBatch);
            scenarios.put("timers", topic -> producing.timers(topic, "setDeliverTimeMs", false));
            scenarios.put("timers_sec", topic -> producing.timers(topic, "setDelayTimeSec", false));
            scenarios.put("timers_ms", topic -> producing.timers(topic, "setDelayTimeMs", false));
            scenarios.put("timers_oneway", topic -> producing.timers(topic, "setDeliverTimeMs", true));
            scenarios.put("recalled", producing::recalled);
        }
        boolean passed = Main.all(scenarios, args[1]);
        session.close();
        producing.write();
        System.exit(passed ? 0 : 1);
    }

    private static boolean has(Class<?> type, String method) {
        for (java.lang.reflect.Method one : type.getMethods()) {
            if (one.getName().equals(method)) {
                return true;
            }
        }
        return false;
    }

    private void write() throws IOException {
        StringBuilder places = new StringBuilder();
        session.letters.forEach(letters -> places.append(letters.places()));
        all.values().forEach(letters -> places.append(letters.places()));
        Files.writeString(Path.of("places"), places);
    }

    private DefaultMQProducer producer(String name) {
        DefaultMQProducer producer = new DefaultMQProducer(session.prefix + "-" + name);
        session.patient(producer).setInstanceName(name);
        return producer;
    }

    private Letters letters(String topic, int count) {
        return all.computeIfAbsent(topic, name -> new Letters(name, count));
    }

    private String send(DefaultMQProducer producer, Letters letters) throws Exception {
        producer.start();
        for (Message message : letters.sent) {
            letters.acknowledged(message, Session.routed(() -> producer.send(message)));
        }
        producer.shutdown();
        return letters.sent.size() + " messages";
    }

    /** By the hash of a key, of which there are five: what has an equal one is in one queue, in order. */
    private String sharded(String topic) throws Exception {
        Letters letters = letters(topic, session.count);
        SelectMessageQueueByHash byHash = new SelectMessageQueueByHash();
        for (Message message : letters.sent) {
            String key = "order " + Letters.number(message) % 5;
            message.putUserProperty("order", key);
            letters.acknowledged(message, Session.routed(() -> session.producer().send(message, byHash, key)));
        }
        return letters.sent.size() + " messages";
    }

    private String compressed(DefaultMQProducer producer, String topic) throws Exception {
        Letters letters = letters(topic, 0);
        for (int n = 0; n < FEW; n++) {
            letters.add(("compressible " + n + " ").repeat(500 + n).getBytes());
        }
        return send(producer, letters);
    }

    private String largest(String topic) throws Exception {
        Letters letters = letters(topic, 0);
        byte[] body = new byte[LARGEST];
        for (int i = 0; i < LARGEST; i++) {
            body[i] = (byte) (i * 31 + (i >> 8));
        }
        letters.add(body);
        DefaultMQProducer producer = producer("largest");
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        return send(producer, letters);
    }

    private String levels(String topic) throws Exception {
        Letters letters = letters(topic, FEW);
        letters.sent.forEach(message -> message.setDelayTimeLevel(Letters.number(message) % 4));
        return send(producer("levels"), letters);
    }

    private String levelsOneway(String topic) throws Exception {
        for (Message message : letters(topic, FEW).sent) {
            message.setDelayTimeLevel(Letters.number(message) % 4);
            oneway(message);
        }
        return FEW + " messages";
    }

    private SendResult oneway(Message message) throws Exception {
        return Session.routed(() -> {
            session.producer().sendOneway(message);
            return null;
        });
    }

    /** By n mod 3: committed, rolled back, and committed when the broker asks. Everything is called as without a namespace. */
    private String transactions(String topic) throws Exception {
        Letters letters = letters(topic, FEW);
        Set<Integer> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-group");
        session.patient(producer).setInstanceName("transactions");
        producer.setNamespace(session.prefix + "-space");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object n) {
                return new LocalTransactionState[] {LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE,
                    LocalTransactionState.UNKNOW}[(Integer) n % 3];
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Check.equal(topic, message.getTopic(), "topic of a question");
                asked.add(Letters.number(message));
                return Letters.number(message) % 3 == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (Message message : letters.sent) {
            int n = Letters.number(message);
            letters.acknowledged(message, Session.routed(() -> producer.sendMessageInTransaction(message, n)));
        }
        Check.eventually("every question of " + topic, () -> asked.stream().filter(n -> n % 3 == 2).count() == FEW / 3);
        session.readWhenComplete(producer.getNamespace() + "%" + topic, FEW / 3 * 2); // the answers go one-way
        producer.shutdown();
        return FEW + " transactions, " + asked.size() + " questions";
    }

    private String namespace(String topic, String setter) throws Exception {
        DefaultMQProducer producer = producer(setter);
        producer.getClass().getMethod(setter, String.class).invoke(producer, session.prefix + "-space");
        return send(producer, letters(topic, FEW));
    }

    /** All at once, with callbacks: the client gathers what goes at the same time. */
    private String autoBatch(String topic) throws Exception {
        Letters letters = letters(topic, session.count);
        DefaultMQProducer producer = producer("auto_batch");
        producer.start();
        Message first = letters.sent.get(0);
        letters.acknowledged(first, Session.routed(() -> producer.send(first))); // makes the topic
        producer.getClass().getMethod("setAutoBatch", boolean.class).invoke(producer, true);
        CountDownLatch open = new CountDownLatch(letters.sent.size() - 1);
        Map<Integer, String> failures = new ConcurrentHashMap<>();
        for (Message message : letters.sent.subList(1, letters.sent.size())) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.put(Letters.number(message), String.valueOf(error));
                    open.countDown();
                }
            });
        }
        Check.that(open.await(Main.PATIENCE_SECONDS, TimeUnit.SECONDS), "callbacks missing: " + open.getCount());
        Check.equal(Map.of(), failures, "callbacks");
        producer.shutdown();
        return letters.sent.size() + " messages";
    }

    /** What finds its topic is not due before it comes to the broker, on a machine busy with all the other kinds. */
    private void make(String topic) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(60_000L);
        session.patient(admin).setInstanceName("admin-" + topic);
        admin.start();
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(4);
        config.setWriteQueueNums(4);
        var broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next();
        admin.createAndUpdateTopicConfig(broker.getBrokerAddrs().get(0L), config);
        admin.shutdown();
        Check.eventually("route of " + topic, () -> !session.producer().fetchPublishMessageQueues(topic).isEmpty());
    }

    /** Due so many ms from now, by one of Message's three ways to say so. */
    private static void due(Message message, String setter, long ahead) throws Exception {
        long due = System.currentTimeMillis() + ahead;
        message.putUserProperty("due", Long.toString(due));
        long said = setter.equals("setDeliverTimeMs") ? due : setter.equals("setDelayTimeSec") ? ahead / 1000 : ahead;
        Message.class.getMethod(setter, long.class).invoke(message, said);
    }

    private SendResult timer(Message message, String setter, long ahead) throws Exception {
        return Session.routed(() -> {
            due(message, setter, ahead);
            return session.producer().send(message);
        });
    }

    private String timers(String topic, String setter, boolean oneway) throws Exception {
        make(topic);
        for (Message message : letters(topic, FEW).sent) {
            int n = Letters.number(message);
            long ahead = setter.equals("setDelayTimeSec") ? 2000 + 1000 * (n % 4) : 3000 + 100 * n;
            if (oneway) {
                due(message, setter, ahead);
                oneway(message);
            } else {
                Check.equal("SEND_OK", timer(message, setter, ahead).getSendStatus().name(), "status of " + n);
            }
        }
        return FEW + " messages";
    }

    /** Those with an even number are called back. */
    private String recalled(String topic) throws Exception {
        make(topic);
        for (Message message : letters(topic, FEW).sent) {
            SendResult result = timer(message, "setDeliverTimeMs", 15_000);
            if (Letters.number(message) % 2 == 0) {
                Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
                Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                    .invoke(session.producer(), topic, handle);
                Check.equal(result.getMsgId(), id, "id of what was called back");
            }
        }
        return FEW / 2 + " called back";
    }

    /** Its records are sent by the dispatcher's own producer behind the sends: it may end when each is found. */
    private String traced(String topic) throws Exception {
        Letters letters = letters(topic, FEW);
        DefaultMQProducer producer = new DefaultMQProducer(session.prefix + "-traced", true, null);
        session.patient(producer).setInstanceName("traced");
        producer.start();
        List<String> ids = new ArrayList<>();
        for (Message message : letters.sent) {
            SendResult result = Session.routed(() -> producer.send(message));
            letters.acknowledged(message, result);
            ids.add(result.getMsgId());
        }
        for (String id : ids) {
            Check.eventually("trace of " + id, () -> !session.producer()
                .queryMessage("RMQ_SYS_TRACE_TOPIC", id, 1, 0, Long.MAX_VALUE).getMessageList().isEmpty());
        }
        producer.shutdown();
        return FEW + " messages";
    }
}
