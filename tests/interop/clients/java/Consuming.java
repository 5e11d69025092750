import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultLitePullConsumerImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Each way of consuming, with filters, groups and offsets. */
final class Consuming {
    private final Session session;

    private Consuming(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        Consuming consuming = new Consuming(session);
        scenarios.put("push_from_first", consuming::fromFirst);
        scenarios.put("push_from_last", consuming::fromLast);
        scenarios.put("push_tag_filter", consuming::tagFilter);
        scenarios.put("push_sql_filter", consuming::sqlFilter);
        scenarios.put("pull_sql_filter", consuming::sqlFilterPulled);
        scenarios.put("push_two_balance", consuming::twoBalance);
        scenarios.put("push_resume", consuming::resume);
        scenarios.put("pull", consuming::pull);
        scenarios.put("lite_pull_subscribe", consuming::liteSubscribe);
        scenarios.put("lite_pull_assign", consuming::liteAssign);
    }

    private void send(Letters letters, int from, int to) throws Exception {
        for (Message message : letters.sent.subList(from, to)) {
            letters.acknowledged(message, Session.routed(() -> session.producer().send(message)));
        }
    }

    private static MessageListenerConcurrently into(Collection<MessageExt> received) {
        return (messages, context) -> {
            received.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    /** Half is there before the consumer starts, half comes while its pulls are held. */
    private String fromFirst(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count / 2);
        Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, "*");
        consumer.setMessageListener(into(received));
        consumer.start();
        Check.eventually("first half", () -> received.size() >= session.count / 2);
        send(letters, session.count / 2, session.count);
        Check.eventually("second half", () -> received.size() >= session.count);
        committed(topic, session.count, consumer);
        consumer.shutdown();
        letters.check(letters.sent, List.copyOf(received));
        return received.size() + " messages";
    }

    /** LAST in a topic whose queues begin at 0: the broker may answer 0 for it (the log holds all), or the end. */
    private String fromLast(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count / 2);
        Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setMessageListener(into(received));
        consumer.start();
        Check.eventually("all queues assigned", () -> assigned(consumer, topic).size() == 4);
        send(letters, session.count / 2, session.count);
        Check.eventually("second half", () -> received.stream().filter(m -> Letters.number(m) >= session.count / 2).count()
            >= session.count - session.count / 2);
        committed(topic, session.count, consumer); // one of the first half may be in the hands of the other thread until now
        consumer.shutdown();
        boolean whole = received.size() > session.count / 2;
        letters.check(whole ? letters.sent : letters.sent.subList(session.count / 2, session.count), List.copyOf(received));
        return whole ? "the broker said 0" : "the broker said the end";
    }

    private String tagFilter(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count);
        Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
        List<Message> wanted = letters.tagged("red", "blue");
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, "red || blue");
        consumer.setMessageListener(into(received));
        consumer.start();
        Check.eventually("red and blue", () -> received.size() >= wanted.size());
        consumer.shutdown();
        letters.check(wanted, List.copyOf(received));
        return received.size() + " of " + session.count + " messages";
    }

    private static final MessageSelector SQL = MessageSelector.bySql("n BETWEEN 20 AND 79 AND TAGS IN ('red', 'blue')");

    private static List<Message> selected(Letters letters) {
        return letters.tagged("red", "blue").stream().filter(m -> Letters.number(m) >= 20 && Letters.number(m) <= 79).toList();
    }

    private String sqlFilter(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count / 2);
        Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
        consumer.subscribe(topic, SQL);
        consumer.setMessageListener(into(received));
        consumer.start();
        send(letters, session.count / 2, session.count);
        List<Message> wanted = selected(letters);
        Check.eventually("what was selected", () -> received.size() >= wanted.size());
        consumer.shutdown();
        letters.check(wanted, List.copyOf(received));
        return received.size() + " of " + session.count + " messages";
    }

    /** By queue and offset, and by a lite pull consumer that subscribes. */
    private String sqlFilterPulled(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(topic + "-reader", Session.signer(Session.CONSUMER));
        session.patient(consumer).setInstanceName("pull-sql");
        consumer.setHeartbeatBrokerInterval(500); // by the answer to one it knows that a broker is new enough for filters
        consumer.start();
        Session.patientInAsking(consumer);
        List<MessageExt> received = new ArrayList<>();
        Collection<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        MessageQueue any = queues.iterator().next();
        Check.eventually("the broker's version is known", () -> consumer.pull(any, SQL, 0, 1) != null);
        for (MessageQueue queue : queues) {
            for (long offset = 0; offset < consumer.maxOffset(queue); ) {
                PullResult result = consumer.pull(queue, SQL, offset, 5);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    received.addAll(result.getMsgFoundList());
                }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
        letters.check(selected(letters), received);

        DefaultLitePullConsumer polls = lite(topic + "-group", "lite-sql");
        polls.subscribe(topic, SQL);
        polls.start();
        List<MessageExt> polled = new ArrayList<>();
        Check.eventually("what was selected", () -> {
            polled.addAll(polls.poll(200));
            return polled.size() >= selected(letters).size();
        });
        polls.shutdown();
        letters.check(selected(letters), polled);
        return received.size() + " of " + session.count + " messages, twice";
    }

    private static Set<Integer> assigned(DefaultMQPushConsumer consumer, String topic) {
        Set<Integer> ids = new HashSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                ids.add(queue.getQueueId());
            }
        }
        return ids;
    }

    /**
     * Waits until the group's offsets at the broker are past `messages` messages: all that were in hand are done with, and
     * who takes over a queue now gets none of them again. Commits go one-way, and are no answer to anything.
     */
    private void committed(String topic, long messages, DefaultMQPushConsumer... consumers) throws Exception {
        Check.eventually("offsets of " + messages + " messages", () -> {
            for (DefaultMQPushConsumer consumer : consumers) {
                consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            }
            return session.committed(topic + "-group", topic) == messages;
        });
    }

    private String twoBalance(String topic) throws Exception {
        int count = session.count;
        Letters letters = new Letters(topic, count + 8);
        send(letters, 0, 1);
        List<Collection<MessageExt>> received = List.of(new ConcurrentLinkedQueue<>(), new ConcurrentLinkedQueue<>());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
            consumer.subscribe(topic, "*");
            consumer.setMessageListener(into(received.get(i)));
            consumer.start();
            consumers.add(consumer);
            if (i == 0) {
                Check.eventually("the first message", () -> !received.get(0).isEmpty());
                committed(topic, 1, consumer);
            }
        }
        Check.eventually("two queues each, disjoint", () -> {
            Set<Integer> all = assigned(consumers.get(0), topic);
            Set<Integer> second = assigned(consumers.get(1), topic);
            boolean half = all.size() == 2 && second.size() == 2;
            all.addAll(second);
            return half && all.size() == 4;
        });
        send(letters, 1, count);
        Check.eventually("all", () -> once(received).size() >= count);
        committed(topic, count, consumers.get(0), consumers.get(1));
        // one leaves: the other takes over its queues
        consumers.get(0).shutdown();
        Check.eventually("all queues with the one that stays", () -> assigned(consumers.get(1), topic).size() == 4);
        int before = received.get(1).size();
        send(letters, count, count + 8);
        Check.eventually("what came after", () -> once(received).size() >= count + 8);
        committed(topic, count + 8, consumers.get(1));
        consumers.get(1).shutdown();
        letters.check(letters.sent, once(received));
        Check.that(received.get(0).size() > 1 && before > 0, "both had a share");
        return received.get(0).size() + " and " + received.get(1).size() + " messages";
    }

    private static List<MessageExt> once(List<Collection<MessageExt>> received) {
        List<MessageExt> all = new ArrayList<>();
        received.forEach(all::addAll);
        return Letters.once(all);
    }

    private String resume(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        int half = session.count / 2;
        send(letters, 0, half);
        for (int part = 0; part < 2; part++) {
            List<Message> wanted = part == 0 ? letters.sent.subList(0, half) : letters.sent.subList(half, session.count);
            Collection<MessageExt> received = new ConcurrentLinkedQueue<>();
            DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-group");
            consumer.subscribe(topic, "*");
            consumer.setMessageListener(into(received));
            consumer.start();
            Check.eventually("part " + part, () -> received.size() >= wanted.size());
            committed(topic, part == 0 ? half : session.count, consumer);
            consumer.shutdown();
            letters.check(wanted, List.copyOf(received));
            if (part == 0) {
                send(letters, half, session.count);
            }
        }
        return "half and half";
    }

    private String pull(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(topic + "-group", Session.signer(Session.CONSUMER));
        session.patient(consumer).setInstanceName("pull");
        consumer.start();
        Session.patientInAsking(consumer);
        List<MessageExt> received = new ArrayList<>();
        Map<MessageQueue, Long> ends = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            // a group without an offset is told 0, not "none", while the queue's first message is still in memory
            Check.eventually("offset 0 of a new group", () -> session.committed(topic + "-group", queue) == 0);
            Check.equal(0L, consumer.searchOffset(queue, 0), "offset at the beginning of time");
            long offset = 0;
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "green", offset, 5);
                Check.that(result.getNextBeginOffset() > offset, "progress past what the filter drops");
                if (result.getPullStatus() == PullStatus.FOUND) {
                    received.addAll(result.getMsgFoundList());
                }
                offset = result.getNextBeginOffset();
            }
            Check.equal(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", offset, 5).getPullStatus(), "pull at the end");
            Check.equal(PullStatus.OFFSET_ILLEGAL, consumer.pull(queue, "*", offset + 99, 5).getPullStatus(), "beyond it");
            consumer.updateConsumeOffset(queue, offset);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            ends.put(queue, offset);
        }
        letters.check(letters.tagged("green"), received);
        for (Map.Entry<MessageQueue, Long> end : ends.entrySet()) {
            Check.eventually("offset of " + end.getKey(),
                () -> session.committed(topic + "-group", end.getKey()) == end.getValue());
        }
        consumer.shutdown();
        return received.size() + " of " + session.count + " messages";
    }

    private DefaultLitePullConsumer lite(String group, String instance) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, Session.signer(Session.CONSUMER));
        session.patient(consumer).setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullThreadNums(8);
        return consumer;
    }

    private String liteSubscribe(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        int half = session.count / 2;
        send(letters, 0, half);
        for (int part = 0; part < 2; part++) {
            List<Message> wanted = part == 0 ? letters.sent.subList(0, half) : letters.sent.subList(half, session.count);
            DefaultLitePullConsumer consumer = lite(topic + "-group", "lite-" + part);
            consumer.subscribe(topic, "*");
            consumer.start();
            List<MessageExt> received = new ArrayList<>();
            Check.eventually("part " + part, () -> {
                received.addAll(consumer.poll(200));
                return received.size() >= wanted.size();
            });
            Field hidden = DefaultLitePullConsumer.class.getDeclaredField("defaultLitePullConsumerImpl");
            hidden.setAccessible(true);
            DefaultLitePullConsumerImpl inside = (DefaultLitePullConsumerImpl) hidden.get(consumer);
            long offsets = part == 0 ? half : session.count;
            Check.eventually("offsets of " + offsets + " messages", () -> {
                consumer.commitSync(); // into the client's memory; persisting sends it, one-way
                inside.persistConsumerOffset();
                return session.committed(topic + "-group", topic) == offsets;
            });
            consumer.shutdown();
            letters.check(wanted, received);
            if (part == 0) {
                send(letters, half, session.count);
            }
        }
        return "half and half";
    }

    private String liteAssign(String topic) throws Exception {
        Letters letters = new Letters(topic, session.count);
        send(letters, 0, session.count);
        DefaultLitePullConsumer consumer = lite(topic + "-group", "lite-assign");
        consumer.start();
        Session.patientInAsking(consumer);
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        Check.equal(4, queues.size(), "queues");
        consumer.assign(queues);
        List<MessageExt> received = new ArrayList<>();
        Check.eventually("all", () -> {
            received.addAll(consumer.poll(200));
            return received.size() >= session.count;
        });
        letters.check(letters.sent, received);

        // back to the second message of one queue
        MessageQueue queue = queues.stream().filter(q -> q.getQueueId() == 1).findFirst().orElseThrow();
        List<MessageExt> wanted = received.stream().filter(m -> m.getQueueId() == 1 && m.getQueueOffset() >= 1).toList();
        consumer.seek(queue, 1);
        List<MessageExt> again = new ArrayList<>();
        Check.eventually("the rest of queue 1 once more", () -> {
            again.addAll(consumer.poll(200));
            return again.size() >= wanted.size();
        });
        consumer.shutdown();
        Check.equal(wanted.stream().map(MessageExt::getMsgId).sorted().toList(),
            again.stream().map(MessageExt::getMsgId).sorted().toList(), "what a seek brings back");
        return received.size() + " messages, then " + again.size();
    }
}
