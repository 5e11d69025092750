import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * java Switching NAMESRV TOPIC GROUP: sends numbers to the first queue, each until it is acknowledged, and consumes them in order. A line of
 * standard input ends the sending, its end ends the program. Lines: `sent N`, `got N`.
 */
public final class Switching {
    private static volatile boolean sending = true;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(arguments[2] + "-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(1000);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(60_000);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                say("got", new String(message.getBody()));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Thread sender = new Thread(() -> send(producer, arguments[1]));
        sender.start();
        while (System.in.read() >= 0) {
            sending = false;
        }
        sender.join();
        System.exit(0);
    }

    private static void send(DefaultMQProducer producer, String topic) {
        for (int number = 0; sending; ) {
            try {
                Message message = new Message(topic, String.valueOf(number).getBytes());
                SendStatus status = producer.send(message, Switching::first, null).getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    say("sent", String.valueOf(number++));
                }
                Thread.sleep(10);
            } catch (Exception refused) {
                // the next one is the same number
            }
        }
    }

    private static MessageQueue first(List<MessageQueue> queues, Message message, Object nothing) {
        return queues.get(0);
    }

    private static synchronized void say(String what, String number) {
        System.out.println(what + " " + number);
    }
}
