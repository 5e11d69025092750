import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * As a program with Main's arguments: a lite pull consumer beside somebody else's in the group PREFIX-group. It takes its share, half, of
 * COUNT messages of the topic PREFIX, commits, and reports their numbers.
 */
final class LitePulling {
    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        boolean ok = Main.report("lite_shares", topic -> share(session, topic), args[1]);
        session.close();
        System.exit(ok ? 0 : 1);
    }

    private static String share(Session session, String topic) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(topic + "-group");
        session.patient(consumer).setInstanceName("lite-beside");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullThreadNums(4);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<String> numbers = new ArrayList<>();
        Check.eventually("half of the messages", () -> {
            for (MessageExt message : consumer.poll(200)) {
                numbers.add(message.getProperty("n"));
            }
            return numbers.size() >= session.count / 2;
        });
        consumer.shutdown();
        return String.join(",", numbers);
    }
}
