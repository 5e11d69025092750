import java.lang.reflect.Method;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group until its standard input ends: NAMESRV TOPIC GROUP MODE. In mode `ordered` it handles each queue in
 * order, fails each tenth message once, and prints a line when a handler begins (B queue offset ms) and ends (E, or F for a
 * failure). In mode `broadcast` it prints a line for each message (E queue offset ms).
 */
public final class Ordering {
    private static final Set<String> FAILED = ConcurrentHashMap.newKeySet();

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(60_000); // it does not start without a route, and has three seconds for that
        consumer.setAwaitTerminationMillisWhenShutdown(60_000); // what was handled is in the offsets that it leaves
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        if (arguments[3].equals("ordered")) {
            consumer.setInstanceName("ordering-" + ProcessHandle.current().pid());
            consumer.setSuspendCurrentQueueTimeMillis(50);
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                MessageExt message = messages.get(0);
                print("B", message);
                pause(5);
                boolean bad = message.getQueueOffset() % 10 == 3 && FAILED.add(message.getQueueId() + " " + message.getQueueOffset());
                print(bad ? "F" : "E", message);
                return bad ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            broadcast(consumer);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> print("E", message));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        System.out.println("ready " + consumer.buildMQClientId());
        while (System.in.read() >= 0) {
            pause(1);
        }
        consumer.shutdown();
        System.out.println("closed");
        System.exit(0);
    }

    /** The enum stands in another package in 4.9. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    private static void print(String what, MessageExt message) {
        synchronized (System.out) {
            System.out.println(what + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + System.currentTimeMillis());
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
