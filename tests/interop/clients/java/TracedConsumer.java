import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * java TracedConsumer NAMESRV TOPIC COUNT: a push consumer of the group TOPIC-java that leaves traces. It throws at the body "raises", wants
 * "later" again, and is content with others; what failed is a dead letter at once. Ends when it has handled three messages and
 * its standard input has ended.
 */
final class TracedConsumer {
    private TracedConsumer() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch handled = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1] + "-java", true, null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(60_000); // it does not start without a route, and has three seconds for that
        consumer.setInstanceName("traced-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(0);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            String body = text(messages);
            handled.countDown();
            if (body.equals("raises")) {
                throw new IllegalStateException("as it was told to");
            }
            return body.equals("later") ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = handled.await(Main.PATIENCE_SECONDS, TimeUnit.SECONDS);
        System.in.transferTo(OutputStream.nullOutputStream()); // sent back, and told in traces, it is behind the listener
        consumer.shutdown();
        System.exit(all ? 0 : 1);
    }

    private static String text(List<MessageExt> messages) {
        return new String(messages.get(0).getBody(), StandardCharsets.UTF_8);
    }
}
