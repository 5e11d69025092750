import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Apache's push consumer as a load: reads MODE COUNT, one a line, consumes so many as a new group and answers with a line of JSON. */
public final class ConsumerLoad {
    private static final int THREADS = 20;
    private static final long PATIENCE_SECONDS = 300;

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            System.out.println(measured(arguments[0], arguments[1], Integer.parseInt(words[1])));
        }
    }

    /** From the first message in a handler's hands to the last one. */
    private static String measured(String namesrv, String topic, int count) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        AtomicInteger handled = new AtomicInteger();
        AtomicLong begun = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        AtomicLong spent = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-java-" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            int number = handled.addAndGet(messages.size());
            if (number == 1) {
                begun.set(System.nanoTime());
                cpu.set(system.getProcessCpuTime());
            } else if (number == count) {
                ended.set(System.nanoTime());
                spent.set(system.getProcessCpuTime());
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(PATIENCE_SECONDS, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!complete || handled.get() != count) {
            return "{\"error\": \"" + handled.get() + " of " + count + " messages came\"}";
        }
        return String.format(Locale.ROOT, "{\"messages\": %d, \"seconds\": %.4f, \"cpu_s\": %.4f}",
            count, (ended.get() - begun.get()) / 1e9, (spent.get() - cpu.get()) / 1e9);
    }
}
