import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * java Campaign NAMESRV BROKER,BROKER,… LANES: Java's part of a campaign of kills, as tests/crash/campaign.py says what each kind of
 * message is. A line of standard output for each event: "begun ID BEGUN_MS DUE_MS" before a send, "sent AT_MS ID BROKER TOPIC QUEUE
 * OFFSET STATUS" when it is answered, "got AT_MS BROKER TOPIC QUEUE OFFSET BODY" by a consumer, all tab-separated. "stop" on standard
 * input ends the lanes and is answered with "stopped"; "end" ends the program.
 */
final class Campaign {
    private static final int[] LEVELS_S = {1, 2, 1, 1};
    private static final int QUEUES = 4;
    private static final long PAUSE_MS = 200;
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final String namesrv;
    private final String[] brokers;
    private volatile boolean stopping;

    private Campaign(String namesrv, String[] brokers) {
        this.namesrv = namesrv;
        this.brokers = brokers;
    }

    public static void main(String[] args) throws Exception {
        Campaign campaign = new Campaign(args[0], args[1].split(","));
        DefaultMQProducer retrying = campaign.started(new DefaultMQProducer("j-plain"), 2);
        DefaultMQProducer once = campaign.started(new DefaultMQProducer("j-once"), 0);
        TransactionMQProducer transactions = new TransactionMQProducer("j-tx");
        transactions.setTransactionListener(campaign.deciding());
        campaign.started(transactions, 0);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String topic : new String[] {"plain", "later", "tx", "pop", "dead", "ordered"}) {
            consumers.add(campaign.consumer(topic));
        }
        List<Thread> lanes = new ArrayList<>();
        for (String kind : new String[] {"plain", "ordered", "delay", "timer", "commit", "rollback", "asked", "pop", "dead"}) {
            for (int lane = 0; lane < Integer.parseInt(args[2]); lane++) {
                int number = lane;
                DefaultMQProducer producer = kind.equals("plain") ? retrying : once;
                lanes.add(new Thread(() -> campaign.lane(kind, number, producer, transactions), kind + "-" + lane));
            }
        }
        lanes.forEach(Thread::start);
        BufferedReader words = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String word = words.readLine(); word != null && !word.equals("end"); word = words.readLine()) {
            campaign.stopping = true;
            for (Thread lane : lanes) {
                lane.join();
            }
            say("stopped");
        }
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        System.exit(0);
    }

    private static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : "\t").append(word);
        }
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    // --- what is sent

    private <T extends DefaultMQProducer> T started(T producer, int retries) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(producer.getProducerGroup());
        producer.setRetryTimesWhenSendFailed(retries);
        producer.setPollNameServerInterval(1000);
        producer.start();
        return producer;
    }

    private void lane(String kind, int lane, DefaultMQProducer producer, TransactionMQProducer transactions) {
        Random random = new Random(kind.hashCode() + lane);
        for (int number = 1; !stopping; number++) {
            String id = "j-" + kind + "-" + lane + "-" + number;
            long pause = random.nextInt((int) (2 * PAUSE_MS));
            try {
                SendResult result = sent(kind, lane, id, random, producer, transactions);
                MessageQueue queue = result.getMessageQueue();
                say(
                    "sent", System.currentTimeMillis(), id, queue.getBrokerName(), queue.getTopic(), queue.getQueueId(),
                    result.getQueueOffset(), result.getSendStatus()
                );
            } catch (Exception error) { // it may be stored or not
                pause += 100;
            }
            try {
                Thread.sleep(pause);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private SendResult sent(
        String kind, int lane, String id, Random random, DefaultMQProducer producer, TransactionMQProducer transactions
    ) throws Exception {
        long begun = System.currentTimeMillis();
        byte[] body = bodyOf(id);
        Callable<SendResult> send;
        long due = begun;
        switch (kind) {
            case "commit", "rollback", "asked" -> send = () -> transactions.sendMessageInTransaction(new Message("tx", body), id);
            case "ordered" -> {
                MessageQueue queue = new MessageQueue("ordered", brokers[lane % brokers.length], (lane + 1) % QUEUES);
                send = () -> producer.send(new Message("ordered", body), queue);
            }
            case "delay" -> {
                int level = random.nextInt(LEVELS_S.length);
                due += 1000L * LEVELS_S[level];
                Message message = new Message("later", body);
                message.setDelayTimeLevel(level + 1);
                send = () -> producer.send(message);
            }
            case "timer" -> {
                due += 500 + random.nextInt(2500);
                Message message = new Message("later", body);
                message.setDeliverTimeMs(due);
                send = () -> producer.send(message);
            }
            default -> send = () -> producer.send(new Message(kind, body));
        }
        say("begun", id, begun, due);
        return send.call();
    }

    private TransactionListener deciding() {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object id) {
                return kindOf((String) id).equals("asked") ? LocalTransactionState.UNKNOW : decided((String) id);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return decided(idIn(message.getBody()));
            }
        };
    }

    private static LocalTransactionState decided(String id) {
        boolean even = Long.parseLong(id.substring(id.lastIndexOf('-') + 1)) % 2 == 0;
        boolean commit = kindOf(id).equals("commit") || kindOf(id).equals("asked") && even;
        return commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private static String kindOf(String id) {
        return id.split("-")[1];
    }

    private static String idIn(byte[] body) {
        String text = new String(body, StandardCharsets.UTF_8);
        return text.substring(0, text.indexOf('|'));
    }

    private static byte[] bodyOf(String id) {
        CRC32 crc = new CRC32();
        crc.update(id.getBytes(StandardCharsets.UTF_8));
        long begin = crc.getValue() * 15 % 26;
        StringBuilder body = new StringBuilder(id).append('|');
        for (long i = 0; i < (crc.getValue() >> 8) % 1000; i++) {
            body.append((char) (97 + (begin + i) * 7 % 26));
        }
        return body.toString().getBytes(StandardCharsets.UTF_8);
    }

    // --- what is got

    private DefaultMQPushConsumer consumer(String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("j-" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("j-" + topic);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(topic, "*");
        if (topic.equals("pop")) {
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(5_000);
        }
        if (topic.equals("dead")) {
            consumer.setMaxReconsumeTimes(1);
        }
        if (topic.equals("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(Campaign::got);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(Campaign::got);
                return topic.equals("dead") ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    private static void got(MessageExt message) {
        say(
            "got", System.currentTimeMillis(), message.getBrokerName(), message.getTopic(), message.getQueueId(), message.getQueueOffset(),
            new String(message.getBody(), StandardCharsets.UTF_8)
        );
    }
}
