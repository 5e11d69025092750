import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a consumer in the namespace PREFIX-space, with somebody else in it on the other side: as a program with Main's
 * arguments it sends on the topic PREFIX-theirs and receives on PREFIX-ours, which must exist. One message is sent back once.
 */
final class Namespaces {
    private Namespaces() {
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        String namespace = args[1] + "-space";
        boolean received = Main.report("receives", topic -> receive(session, namespace, topic), args[1] + "-ours");
        boolean sent = Main.report("sends", topic -> send(session, namespace, topic), args[1] + "-theirs");
        session.close();
        System.exit(received && sent ? 0 : 1);
    }

    private static String send(Session session, String namespace, String topic) throws Exception {
        DefaultMQProducer producer = session.patient(new DefaultMQProducer(topic + "-senders"));
        producer.setNamespace(namespace);
        producer.setInstanceName("namespaces");
        producer.start();
        for (int n = 0; n < session.count; n++) {
            SendResult result = producer.send(new Message(topic, String.valueOf(n).getBytes()));
            Check.equal(topic, result.getMessageQueue().getTopic(), "topic of the result");
        }
        producer.shutdown();
        return session.count + " messages";
    }

    private static String receive(Session session, String namespace, String topic) throws Exception {
        DefaultMQPushConsumer consumer = session.patient(new DefaultMQPushConsumer(topic + "-readers"));
        consumer.setNamespace(namespace);
        consumer.setInstanceName("namespaces-in");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        AtomicReference<String> odd = new AtomicReference<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody());
                if (!message.getTopic().equals(topic)) {
                    odd.set(message.getTopic());
                }
                if (body.equals("7") && message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                bodies.add(body);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.eventually("all messages on " + topic, () -> bodies.size() == session.count);
        consumer.shutdown();
        Check.equal(null, odd.get(), "topic of a message");
        return bodies.size() + " messages";
    }
}
