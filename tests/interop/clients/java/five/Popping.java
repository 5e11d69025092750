import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * As a program with Main's arguments: two push consumers whose broker tells them to pop. One message fails at first, and comes
 * again; one is never answered, and comes again when its invisible time is over.
 */
final class Popping {
    private static final int FAILS = 7;
    private static final int HANGS = 11;

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        scenarios.put("push_pops", topic -> pop(session, topic));
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        boolean ok = Main.report("push_pops", topic -> pop(session, topic), args[1]);
        session.close();
        System.exit(ok ? 0 : 1);
    }

    private static String pop(Session session, String topic) throws Exception {
        String group = topic + "-group";
        Letters letters = new Letters(topic, session.count);
        send(session, letters, 0, session.count / 2);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Session.signer(Session.ADMIN), 60_000L);
        session.patient(admin).setInstanceName("admin");
        admin.start();
        String broker = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 60_000);
        admin.shutdown();

        ConcurrentLinkedQueue<MessageExt> received = new ConcurrentLinkedQueue<>();
        Map<Integer, List<Integer>> attempts = new ConcurrentHashMap<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.pushConsumer(group);
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(20_000);
            consumer.setConsumeThreadMax(8);
            consumer.setConsumeThreadMin(8);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                int number = Letters.number(message);
                List<Integer> times = attempts.computeIfAbsent(number, n -> new ArrayList<>());
                times.add(message.getReconsumeTimes());
                if (number == FAILS && message.getReconsumeTimes() == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (number == HANGS && message.getReconsumeTimes() == 0) {
                    try {
                        Thread.sleep(25_000);
                    } catch (InterruptedException error) {
                        Thread.currentThread().interrupt();
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; // too late: it is not waited for any more
                }
                Check.that(message.getProperty(MessageConst.PROPERTY_POP_CK) != null, "a receipt");
                received.add(message);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            Check.eventually("it pops", () ->
                !consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().isEmpty());
        }
        send(session, letters, session.count / 2, session.count);
        Check.eventually("all", () -> numbers(received).size() >= session.count);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        // what comes again has another place than its send was answered with
        letters.check(letters.sent.stream().filter(Popping::goesWell).toList(), received.stream().filter(Popping::goesWell).toList());
        Check.equal(List.of(0, 1), attempts.get(FAILS), "attempts of the message that failed");
        Check.equal(List.of(0, 1), attempts.get(HANGS), "attempts of the message that was not answered in time");
        return received.size() + " messages, two of them twice";
    }

    private static Set<Integer> numbers(Collection<MessageExt> received) {
        return received.stream().map(Letters::number).collect(Collectors.toSet());
    }

    private static boolean goesWell(Message message) {
        int number = Letters.number(message);
        return number != FAILS && number != HANGS;
    }

    private static void send(Session session, Letters letters, int from, int to) throws Exception {
        for (Message message : letters.sent.subList(from, to)) {
            letters.acknowledged(message, Session.routed(() -> session.producer().send(message)));
        }
    }
}
