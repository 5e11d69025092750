import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Apache's producer as a load: reads MODE SIZE SECONDS, one a line, and answers each with a line of JSON. program.py is its twin. */
public final class ProducerLoad {
    private static final int IN_FLIGHT = 64;
    private static final int ROUND_TRIPS_KEPT = 1_000_000;
    private static DefaultMQProducer producer;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(arguments[0]);
        topic = arguments[1];
        producer.start();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            byte[] body = new byte[Integer.parseInt(words[1])];
            Arrays.fill(body, (byte) 'x');
            long nanos = (long) (Double.parseDouble(words[2]) * 1e9);
            System.out.println(measured(words[0], body, nanos));
        }
        producer.shutdown();
    }

    private static String measured(String mode, byte[] body, long nanos) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long cpu = system.getProcessCpuTime();
        long begun = System.nanoTime();
        long[] trips;
        switch (mode) {
            case "threads-64": trips = threads(IN_FLIGHT, body, begun + nanos, failure); break;
            case "threads-1": trips = threads(1, body, begun + nanos, failure); break;
            case "async-64": trips = async(body, begun + nanos, failure); break;
            default: throw new IllegalArgumentException(mode);
        }
        double seconds = (System.nanoTime() - begun) / 1e9;
        double spent = (system.getProcessCpuTime() - cpu) / 1e9;
        if (failure.get() != null) {
            return "{\"error\": \"" + failure.get().toString().replace('"', '\'').replace('\n', ' ') + "\"}";
        }
        Arrays.sort(trips);
        return String.format(Locale.ROOT, "{\"messages\": %d, \"seconds\": %.4f, \"cpu_s\": %.4f, \"p50_us\": %.1f, \"p99_us\": %.1f}",
            trips.length, seconds, spent, trips[trips.length / 2] / 1e3, trips[(int) (trips.length * 0.99)] / 1e3);
    }

    /** So many threads, each with one synchronous send after the other; the nanoseconds of each send. */
    private static long[] threads(int count, byte[] body, long until, AtomicReference<Throwable> failure) throws Exception {
        long[] trips = new long[ROUND_TRIPS_KEPT];
        AtomicInteger done = new AtomicInteger();
        CountDownLatch open = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(() -> {
                try {
                    for (long before = System.nanoTime(); before < until && failure.get() == null; before = System.nanoTime()) {
                        SendResult result = producer.send(new Message(topic, body));
                        check(result);
                        trips[done.getAndIncrement()] = System.nanoTime() - before;
                    }
                } catch (Throwable error) {
                    failure.set(error);
                } finally {
                    open.countDown();
                }
            });
            thread.start();
        }
        open.await();
        return Arrays.copyOf(trips, done.get());
    }

    private static long[] async(byte[] body, long until, AtomicReference<Throwable> failure) throws Exception {
        long[] trips = new long[ROUND_TRIPS_KEPT];
        AtomicInteger done = new AtomicInteger();
        Semaphore room = new Semaphore(IN_FLIGHT);
        while (System.nanoTime() < until && failure.get() == null) {
            room.acquire();
            long before = System.nanoTime();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    try {
                        check(result);
                        trips[done.getAndIncrement()] = System.nanoTime() - before;
                    } catch (Throwable error) {
                        failure.set(error);
                    } finally {
                        room.release();
                    }
                }

                @Override
                public void onException(Throwable error) {
                    failure.set(error);
                    room.release();
                }
            });
        }
        room.acquire(IN_FLIGHT);
        return Arrays.copyOf(trips, done.get());
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK || result.getMsgId() == null || result.getQueueOffset() < 0) {
            throw new IllegalStateException("not stored: " + result);
        }
    }
}
