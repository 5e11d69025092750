import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * As a program with Main's arguments: scenarios of this client with servers that check who asks. Producers sign for a user who may
 * publish, consumers for one who may consume, and nobody may do both. STALE has the right secret for the name server, another one for
 * the broker; NOBODY is known to none.
 */
final class Accounts {
    private static final String STALE = "INTEROP_STALE";
    private static final String NOBODY = "INTEROP_NOBODY";
    private final Session session;

    private Accounts(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        Accounts accounts = new Accounts(session);
        Map<String, Main.Scenario> scenarios = new LinkedHashMap<>();
        Sending.addTo(scenarios, session);
        Consuming.addTo(scenarios, session);
        Administration.addTo(scenarios, session);
        Querying.addTo(scenarios, session);
        RequestReply.addTo(scenarios, session);
        Transacting.addTo(scenarios, session);
        addFive(scenarios, session);
        scenarios.put("refused", accounts::refused);
        boolean passed = Main.all(scenarios, args[1]);
        session.close();
        System.exit(passed ? 0 : 1);
    }

    /** What only 5.x has. */
    private static void addFive(Map<String, Main.Scenario> scenarios, Session session) throws Exception {
        try {
            Class.forName("Popping").getDeclaredMethod("addTo", Map.class, Session.class).invoke(null, scenarios, session);
        } catch (ClassNotFoundException error) {
            return;
        }
    }

    /** Those who may not are told so, and get no message; those who may, beside them, do. */
    private String refused(String topic) throws Exception {
        Letters letters = new Letters(topic, 8);
        Collection<MessageExt> stolen = new ConcurrentLinkedQueue<>();
        Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
        send(letters.sent.get(0), letters, session.producer());
        DefaultMQPushConsumer thief = push(topic + "-stale", STALE, topic, stolen);
        DefaultMQPushConsumer reader = push(topic + "-group", Session.CONSUMER, topic, received);
        for (String user : List.of(STALE, Session.CONSUMER)) {
            DefaultMQProducer producer = new DefaultMQProducer(topic + "-" + user, Session.signer(user));
            session.patient(producer).setInstanceName(topic + "-producer-" + user);
            producer.start();
            isDenied(user + " sends", () -> producer.send(new Message(topic, new byte[] {1})));
            producer.shutdown();
        }
        for (String user : List.of(STALE, Session.PRODUCER)) {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(topic + "-group", Session.signer(user));
            session.patient(consumer).setInstanceName(topic + "-reader-" + user);
            consumer.start();
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            isDenied(user + " pulls", () -> consumer.pull(queue, "*", 0, 8));
            consumer.shutdown();
        }
        DefaultMQProducer unknown = new DefaultMQProducer(topic + "-unknown", Session.signer(NOBODY));
        session.patient(unknown).setInstanceName(topic + "-unknown");
        unknown.start();
        isDenied("a stranger asks for a route", () -> unknown.fetchPublishMessageQueues(topic));
        unknown.shutdown();
        for (Message message : letters.sent.subList(1, letters.sent.size())) {
            send(message, letters, session.producer());
        }
        Check.eventually("all", () -> received.size() >= letters.sent.size());
        thief.shutdown();
        reader.shutdown();
        letters.check(letters.sent, List.copyOf(received));
        Check.equal(0, stolen.size(), "messages of who has a wrong key");
        return "five were refused";
    }

    private static void send(Message message, Letters letters, DefaultMQProducer producer) throws Exception {
        letters.acknowledged(message, Session.routed(() -> producer.send(message)));
    }

    private DefaultMQPushConsumer push(String group, String user, String topic, Collection<MessageExt> into) throws Exception {
        DefaultMQPushConsumer consumer = session.pushConsumer(group, user);
        consumer.subscribe(topic, "*");
        consumer.setMessageListener((MessageListenerConcurrently) (messages, context) -> {
            into.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** By code 16, which 4.9 and 5.x both print. */
    private static void isDenied(String what, Callable<Object> call) {
        String said = "it was done";
        try {
            call.call();
        } catch (Exception error) {
            said = error + " " + error.getCause();
        }
        Check.that(said.contains("CODE: 16"), what + ": " + said);
    }
}
