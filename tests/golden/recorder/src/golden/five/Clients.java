package golden.five;

import golden.Golden;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.consistenthash.ConsistentHashRouter;
import org.apache.rocketmq.common.consistenthash.Node;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageType;
import org.apache.rocketmq.remoting.protocol.NamespaceUtil;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.header.GetMaxOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;

/** What a client computes before it sends: signatures, queues chosen, namespaces, traces. Facts, no files. */
final class Clients {
    private final Golden golden;

    Clients(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        signatures();
        List<MessageQueue> queues = queues();
        Object[] keys = {"", "a", "order-42", "polygenelubricants", "\u00e4\u20ac\ud83d\ude00", 0, 7, -7, Integer.MIN_VALUE,
            Integer.MAX_VALUE, 1L << 31, -(1L << 40) - 5, Long.MIN_VALUE, true, false, 1.5, -0.0, 1e300};
        for (Object key : keys) {
            MessageQueue chosen = new SelectMessageQueueByHash().select(queues, new Message(), key);
            golden.fact("hash-selector", "hash-selector " + key, "type", key.getClass().getSimpleName(), "key", key,
                "hashCode", key.hashCode(), "chosen", queues.indexOf(chosen));
        }
        ring(queues);
        namespaces();
        traces();
    }

    private void signatures() {
        String[] tokens = {null, "token/\u00fc"};
        for (String token : tokens) {
            signed("send", token, sendCommand(), "body \u20ac".getBytes(java.nio.charset.StandardCharsets.UTF_8));
            GetMaxOffsetRequestHeader header = new GetMaxOffsetRequestHeader();
            header.setTopic("T\u00e4");
            header.setQueueId(3);
            signed("max-offset", token, RemotingCommand.createRequestCommand(30, header), null);
            signed("no-fields", token, RemotingCommand.createRequestCommand(206, null), null);
            RemotingCommand namespaced = sendCommand();
            namespaced.addExtField("nsd", "true");
            namespaced.addExtField("ns", "space");
            signed("namespaced", token, namespaced, new byte[] {0, 1, (byte) 0xff});
        }
    }

    private RemotingCommand sendCommand() {
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("group");
        header.setTopic("Topic");
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(2);
        header.setSysFlag(769);
        header.setBornTimestamp(1700000000123L);
        header.setFlag(5);
        header.setProperties("KEYS\u0001k\u00e4\u0002UNIQ_KEY\u00017F00\u0002");
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(false);
        header.setBrokerName("broker-a");
        return RemotingCommand.createRequestCommand(310, SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(header));
    }

    private void signed(String name, String token, RemotingCommand command, byte[] body) {
        command.setBody(body);
        SessionCredentials credentials = token == null ? new SessionCredentials("access", "secret\u00e9")
            : new SessionCredentials("access", "secret\u00e9", token);
        new AclClientRPCHook(credentials).doBeforeRequest("127.0.0.1:10911", command);
        golden.fact("signature", "signature " + name + (token == null ? "" : " with token"), "accessKey", "access",
            "secretKey", "secret\u00e9", "securityToken", token, "body", body == null ? "" : Golden.hex(body),
            "ext", new java.util.TreeMap<>(command.getExtFields()));
    }

    private static List<MessageQueue> queues() {
        List<MessageQueue> queues = new ArrayList<>();
        for (String broker : new String[] {"broker-a", "broker-b"}) {
            for (int i = 0; i < 4; i++) {
                queues.add(new MessageQueue("Topic", broker, i));
            }
        }
        return queues;
    }

    private void ring(List<MessageQueue> queues) {
        List<Node> nodes = new ArrayList<>();
        for (MessageQueue queue : queues) {
            nodes.add(queue::toString);
        }
        for (int virtual : new int[] {1, 10, 100}) {
            ConsistentHashRouter<Node> router = new ConsistentHashRouter<>(nodes, virtual);
            List<Object> chosen = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                chosen.add(nodes.indexOf(router.routeNode("key-\u00e4-" + i)));
            }
            golden.fact("hash-ring", "hash-ring " + virtual, "virtualNodes", virtual, "chosen", chosen);
        }
    }

    private void namespaces() {
        String[] resources = {"Topic", "%RETRY%group", "%DLQ%group", "ns%Topic", "%RETRY%ns%group", "", "TBW102",
            "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "CID_RMQ_SYS_TRANS", "other%Topic"};
        for (String resource : resources) {
            golden.fact("namespace", "namespace " + resource, "resource", resource,
                "wrapped", NamespaceUtil.wrapNamespace("ns", resource),
                "unwrapped", NamespaceUtil.withoutNamespace(resource, "ns"));
        }
    }

    private void traces() {
        for (TraceType type : TraceType.values()) {
            for (boolean full : new boolean[] {true, false}) {
                TraceBean bean = new TraceBean();
                bean.setTopic("Topic");
                bean.setMsgId("7F000001");
                bean.setTags(full ? "TagA" : null);
                bean.setKeys(full ? "k1 k\u00e4" : null);
                bean.setStoreHost("127.0.0.1:10911");
                bean.setBodyLength(1024);
                bean.setMsgType(full ? MessageType.Delay_Msg : MessageType.Normal_Msg);
                bean.setOffsetMsgId("7F00000100002A9F0000000000000001");
                bean.setTransactionId("7F000001");
                bean.setTransactionState(full ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW);
                bean.setFromTransactionCheck(full);
                TraceContext context = new TraceContext();
                context.setTraceType(type);
                context.setTimeStamp(1700000000123L);
                context.setRegionId("DefaultRegion");
                context.setGroupName("group");
                context.setCostTime(12);
                context.setSuccess(full);
                bean.setRetryTimes(full ? 3 : 0);
                context.setRequestId("7F000002");
                context.setContextCode(full ? 0 : 2);
                context.setAccessChannel(AccessChannel.LOCAL);
                context.setTraceBeans(new ArrayList<>(List.of(bean)));
                TraceTransferBean made = TraceDataEncoder.encoderFromContextBean(context);
                Map<String, Object> in = new LinkedHashMap<>();
                in.put("tags", bean.getTags());
                in.put("keys", bean.getKeys());
                in.put("kind", bean.getMsgType().ordinal());
                in.put("state", bean.getTransactionState().name());
                in.put("flag", full);
                in.put("retryTimes", bean.getRetryTimes());
                in.put("contextCode", context.getContextCode());
                golden.fact("trace", "trace " + type + (full ? " full" : " bare"), "type", type.name(), "in", in,
                    "text", made.getTransData(), "keys", new ArrayList<>(new java.util.TreeSet<>(made.getTransKey())));
            }
        }
    }
}
