import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions against a broker that asks soon and often, as a program with Main's arguments. What is delivered in the end is for the
 * caller to read. Message n is, by n mod 6: committed, rolled back, undecided and then committed, undecided and then rolled back, of an
 * executor that throws and then committed, undecided twice and then committed.
 */
final class Transacting {
    private final Session session;

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        scenarios.put("transactions", new Transacting(session)::transactions);
    }

    private Transacting(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        Transacting transacting = new Transacting(session);
        boolean all = Main.report("transactions", transacting::transactions, args[1] + "-transactions");
        boolean adopts = Main.report("adopts", transacting::adopts, args[1] + "-adopts");
        boolean orphans = Main.report("orphans", transacting::orphans, args[1] + "-orphans");
        session.close();
        System.exit(all && adopts && orphans ? 0 : 1);
    }

    /** Every kind, by this producer alone. */
    private String transactions(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        Map<Integer, AtomicInteger> checks = new ConcurrentHashMap<>();
        Set<Integer> settled = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = producer(topic, new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                switch ((Integer) arg % 6) {
                    case 0:
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case 1:
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    case 4:
                        throw new IllegalStateException("the data base is away");
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int n = Letters.number(message);
                int times = checks.computeIfAbsent(n, key -> new AtomicInteger()).incrementAndGet();
                Check.equal(topic, message.getTopic(), "topic of " + n);
                Check.equal(letters.sent.get(n).getKeys(), message.getKeys(), "keys of " + n);
                Check.that(message.getTransactionId() != null, "transaction id of " + n);
                if (n % 6 == 5 && times == 1) {
                    return LocalTransactionState.UNKNOW;
                }
                if (n % 6 > 1) {
                    settled.add(n);
                }
                return n % 6 == 1 || n % 6 == 3 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        for (Message message : letters.sent) {
            int n = Letters.number(message);
            TransactionSendResult result = Session.routed(() -> producer.sendMessageInTransaction(message, n));
            Check.equal("SEND_OK", result.getSendStatus().name(), "status of " + n);
        }
        int wanted = session.count - session.count / 6 * 2;
        Check.eventually("every question of " + topic, () -> settled.size() >= wanted);
        committed(topic, session.count - session.count / 6 * 2);
        producer.shutdown();
        // Apache's broker may ask about what ended a moment ago
        long needless = checks.keySet().stream().filter(n -> n % 6 < 2).count();
        int questions = checks.values().stream().mapToInt(AtomicInteger::get).sum();
        return session.count + " transactions, " + questions + " questions, " + needless + " needless";
    }

    /** Answers for somebody else's messages: those with an even number are committed. */
    private String adopts(String topic) throws Exception {
        Set<Integer> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = producer(topic, new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int n = Letters.number(message);
                asked.add(n);
                return n % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        // a producer that has sent nothing is not known to the broker
        Session.routed(() -> producer.send(new Message(topic + "-door", new byte[] {1})));
        Check.eventually("every question of " + topic, () -> asked.size() >= session.count);
        committed(topic, session.count / 2);
        producer.shutdown();
        return asked.size() + " adopted";
    }

    /** Answers go one-way: they have arrived when so many messages are to be read. */
    private void committed(String topic, int wanted) throws Exception {
        Check.eventually(wanted + " committed in " + topic,
            () -> session.readAll(topic).stream().map(Letters::number).distinct().count() >= wanted);
    }

    /** Leaves its messages undecided, also when it is asked, and ends. */
    private String orphans(String topic) throws Exception {
        TransactionMQProducer producer = producer(topic, new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        for (Message message : new Letters(topic, session.count).sent) {
            Session.routed(() -> producer.sendMessageInTransaction(message, null));
        }
        producer.shutdown();
        return session.count + " left";
    }

    private TransactionMQProducer producer(String topic, TransactionListener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-group", Session.signer(Session.PRODUCER));
        session.patient(producer).setInstanceName(topic);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }
}
