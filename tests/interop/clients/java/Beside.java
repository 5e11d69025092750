import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * java Beside NAMESRV TOPIC GROUP: a push consumer beside others in a group, until its standard input ends. A message fails while it was
 * sent back fewer times than its property `fails` says; one retry is allowed. Each delivery is a line: number, times sent back, queue,
 * topic, `ok` or `failed`.
 */
public final class Beside {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(60_000); // it does not start without a route, and has three seconds for that
        consumer.setAwaitTerminationMillisWhenShutdown(60_000); // what was handled is in the offsets that it leaves
        consumer.setInstanceName("beside-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String fails = message.getProperty("fails");
            boolean bad = fails != null && message.getReconsumeTimes() < Integer.parseInt(fails);
            synchronized (System.out) {
                System.out.println(message.getProperty("n") + " " + message.getReconsumeTimes() + " " + message.getQueueId()
                    + " " + message.getTopic() + " " + (bad ? "failed" : "ok"));
            }
            return bad ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            Thread.yield();
        }
        consumer.shutdown();
        System.exit(0);
    }
}
