import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.consumer.store.RemoteBrokerOffsetStore;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** The addresses and counts of this run, one producer and one reader that scenarios share. */
final class Session {
    /** Environment variables: for whom producers, consumers and administrators sign. */
    static final String PRODUCER = "INTEROP_PRODUCER";
    static final String CONSUMER = "INTEROP_CONSUMER";
    static final String ADMIN = "INTEROP_ADMIN";
    private static final int CALL_MS = 60_000;
    final String namesrv;
    final String prefix;
    final int count;
    final List<Letters> letters = Collections.synchronizedList(new ArrayList<>()); // what Sending has sent and compared
    private final AtomicInteger instances = new AtomicInteger();
    private final DefaultMQProducer producer;
    private final DefaultMQPullConsumer reader;

    Session(String namesrv, String prefix, int count) throws Exception {
        this.namesrv = namesrv;
        this.prefix = prefix;
        this.count = count;
        producer = new DefaultMQProducer(prefix + "-producer", signer(PRODUCER));
        patient(producer).start();
        patientInAsking(producer);
        reader = new DefaultMQPullConsumer(prefix + "-reader", signer(CONSUMER));
        patient(reader).setInstanceName("reader");
        reader.start();
        patientInAsking(reader);
    }

    /** Signs for the user whom an environment variable names, as ACCESS:SECRET. Null if it does not: requests are not signed. */
    static RPCHook signer(String variable) {
        String pair = System.getenv(variable);
        return pair == null ? null : new AclClientRPCHook(new SessionCredentials(pair.split(":")[0], pair.split(":")[1]));
    }

    /**
     * The name server's address, and a minute for every call: after the usual three seconds a producer on a busy machine would
     * send again, and the message would be there twice.
     */
    <C extends ClientConfig> C patient(C client) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(CALL_MS);
        if (client instanceof DefaultMQProducer producer) {
            producer.setSendMsgTimeout(CALL_MS);
        } else if (client instanceof DefaultMQPullConsumer consumer) {
            consumer.setConsumerPullTimeoutMillis(CALL_MS);
        } else if (client instanceof DefaultLitePullConsumer consumer) {
            consumer.setConsumerPullTimeoutMillis(CALL_MS);
        }
        return client;
    }

    /** A minute for what a client that has started asks about queues and single messages: it has six seconds for that by no setting. */
    static void patientInAsking(ClientConfig started) {
        MQClientManager.getInstance().getOrCreateMQClientInstance(started).getMQAdminImpl().setTimeoutMillis(CALL_MS);
    }

    DefaultMQProducer producer() {
        return producer;
    }

    /**
     * What a send answers, made again while the client has no route: it waits three seconds for another thread's look-up, no
     * longer. What had no route was not sent, so nothing is sent twice.
     */
    static <T> T routed(Callable<T> send) throws Exception {
        for (long deadline = System.nanoTime() + Main.PATIENCE_SECONDS * 1_000_000_000L;; Thread.sleep(20)) {
            try {
                return send.call();
            } catch (MQClientException error) {
                if (!(error.getMessage() + error.getCause()).contains("No route info") || System.nanoTime() > deadline) {
                    throw error;
                }
            }
        }
    }

    DefaultMQPullConsumer reader() {
        return reader;
    }

    DefaultMQPushConsumer pushConsumer(String group) {
        return pushConsumer(group, CONSUMER);
    }

    DefaultMQPushConsumer pushConsumer(String group, String user) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, signer(user), new AllocateMessageQueueAveragely());
        patient(consumer).setInstanceName("consumer-" + instances.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        return consumer;
    }

    /**
     * The offsets that the broker holds for a group, added up over a topic's queues. Asked through a store of its own: a
     * consumer's store would take the broker's answer over the newer offset that it has in memory.
     */
    long committed(String group, String topic) throws Exception {
        long sum = 0;
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            sum += Math.max(0, committed(group, queue));
        }
        return sum;
    }

    /** Below 0: the broker knows none, or did not answer. */
    long committed(String group, MessageQueue queue) {
        OffsetStore store = new RemoteBrokerOffsetStore(
            reader.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory(), group);
        return store.readOffset(queue, ReadOffsetType.READ_FROM_STORE);
    }

    /** All messages of a topic by pulls from offset 0 of each queue, in queue and offset order. */
    List<MessageExt> readAll(String topic) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            long offset = reader.minOffset(queue);
            PullResult result;
            do {
                result = reader.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    all.addAll(result.getMsgFoundList());
                }
                offset = result.getNextBeginOffset();
            } while (result.getPullStatus() == PullStatus.FOUND);
        }
        return all;
    }

    List<MessageExt> readWhenComplete(String topic, int wanted) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        Check.eventually(topic + " holds " + wanted, () -> {
            all.clear();
            all.addAll(readAll(topic));
            return all.size() >= wanted;
        });
        return all;
    }

    void close() {
        producer.shutdown();
        reader.shutdown();
    }
}
