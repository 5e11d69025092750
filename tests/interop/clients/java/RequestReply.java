import java.io.OutputStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Requests and replies of this client: with each other (the scenario), or, as a program with Main's arguments, with somebody else:
 * it asks on the topic PREFIX-asks and answers on PREFIX-answers, which must exist, and stays until its standard input ends: a reply
 * wakes the one who asked before the broker is told that it has arrived. A reply is "re:" and the request.
 */
final class RequestReply {
    private static final int TIMEOUT_MS = 60_000;
    private final Session session;

    private RequestReply(Session session) {
        this.session = session;
    }

    static void addTo(Map<String, Main.Scenario> scenarios, Session session) {
        scenarios.put("request_reply", new RequestReply(session)::both);
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        RequestReply client = new RequestReply(session);
        Set<String> answered = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer replier = client.replier(args[1] + "-answers", answered);
        boolean asked = Main.report("asks", client::ask, args[1] + "-asks");
        boolean replied = Main.report("answers", topic -> {
            Check.eventually("replies on " + topic, () -> answered.size() >= session.count);
            return answered.size() + " replies";
        }, args[1] + "-answers");
        System.in.transferTo(OutputStream.nullOutputStream());
        replier.shutdown();
        session.close();
        System.exit(asked && replied ? 0 : 1);
    }

    /** The replier starts when the topic is there: made by the first request, which waits. */
    private String both(String topic) throws Exception {
        FutureTask<String> asking = new FutureTask<>(() -> ask(topic));
        new Thread(asking, "asking").start();
        Check.eventually("route of " + topic, () -> !session.reader().fetchSubscribeMessageQueues(topic).isEmpty());
        Set<String> answered = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer replier = replier(topic, answered);
        String detail = asking.get(2 * Main.PATIENCE_SECONDS, TimeUnit.SECONDS);
        Check.eventually("all replies acknowledged", () -> answered.size() >= session.count);
        replier.shutdown();
        return detail;
    }

    private DefaultMQPushConsumer replier(String topic, Set<String> answered) throws Exception {
        DefaultMQPushConsumer consumer = session.pushConsumer(topic + "-repliers");
        DefaultMQProducer replies = new DefaultMQProducer(topic + "-repliers", Session.signer(Session.CONSUMER));
        session.patient(replies).setInstanceName(topic + "-replies");
        replies.start();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt request : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(request, answerTo(request.getBody()));
                    reply.putUserProperty("n", request.getUserProperty("n"));
                    SendResult result = replies.send(reply);
                    Check.equal("SEND_OK", result.getSendStatus().name(), "reply");
                    answered.add(request.getUserProperty("n"));
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** The first half one by one, the second all at once. */
    private String ask(String topic) throws Exception {
        int half = session.count / 2;
        for (int n = 0; n < half; n++) {
            Message request = request(topic, n);
            check(request, asked(request).get(Main.PATIENCE_SECONDS, TimeUnit.SECONDS));
        }
        Map<Message, CompletableFuture<Message>> open = new HashMap<>();
        for (int n = half; n < session.count; n++) {
            Message request = request(topic, n);
            open.put(request, asked(request));
        }
        for (Map.Entry<Message, CompletableFuture<Message>> entry : open.entrySet()) {
            check(entry.getKey(), entry.getValue().get(Main.PATIENCE_SECONDS, TimeUnit.SECONDS));
        }
        return session.count + " requests";
    }

    /** With a callback: the form that waits gives up when the broker acknowledges the request before the reply is there (5.3.3). */
    private CompletableFuture<Message> asked(Message request) throws Exception {
        CompletableFuture<Message> future = new CompletableFuture<>();
        session.producer().request(request, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) { // called when the request was sent, too
                    future.complete(reply);
                }
            }

            @Override
            public void onException(Throwable error) {
                if (String.valueOf(error).contains("No route info")) { // it waits three seconds for another thread's look-up
                    try {
                        Thread.sleep(20);
                        asked(request).thenAccept(future::complete);
                        return;
                    } catch (Exception again) {
                        error = again;
                    }
                }
                future.completeExceptionally(error);
            }
        }, TIMEOUT_MS);
        return future;
    }

    /** Every tenth is long enough to be compressed. */
    private static Message request(String topic, int n) {
        Message request = new Message(topic, ("request " + n + " é 漢字 ").repeat(n % 10 == 9 ? 500 : 1).getBytes());
        request.putUserProperty("n", String.valueOf(n));
        return request;
    }

    private static byte[] answerTo(byte[] request) {
        byte[] answer = Arrays.copyOf("re:".getBytes(), 3 + request.length);
        System.arraycopy(request, 0, answer, 3, request.length);
        return answer;
    }

    private static void check(Message request, Message reply) {
        String which = "reply to " + request.getUserProperty("n");
        Check.that(Arrays.equals(answerTo(request.getBody()), reply.getBody()), which + ": body of " + reply.getBody().length);
        Check.equal(request.getUserProperty("n"), reply.getUserProperty("n"), which);
        Check.equal(request.getProperty("CORRELATION_ID"), reply.getProperty("CORRELATION_ID"), which);
        Check.equal("reply", reply.getProperty("MSG_TYPE"), which);
    }
}
