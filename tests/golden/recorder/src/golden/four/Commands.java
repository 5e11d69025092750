package golden.four;

import golden.Golden;
import io.netty.buffer.ByteBuf;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.ResponseCode;
import org.apache.rocketmq.common.protocol.header.*;
import org.apache.rocketmq.common.protocol.header.namesrv.*;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Frames of a 4.9 peer: fewer header fields, another version number. */
final class Commands {
    /** Not the answer to any one request. */
    private static final int NOTHING = -1;

    private final Golden golden;
    private int opaque = 2000;

    Commands(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        SendMessageRequestHeader send = new SendMessageRequestHeader();
        send.setProducerGroup("producers");
        send.setTopic("TopicTest");
        send.setDefaultTopic("TBW102");
        send.setDefaultTopicQueueNums(4);
        send.setQueueId(3);
        send.setSysFlag(0);
        send.setBornTimestamp(1700000000123L);
        send.setFlag(7);
        send.setProperties("KEYS\u0001k1 k2\u0002WAIT\u0001true\u0002TAGS\u0001TagA");
        send.setReconsumeTimes(0);
        send.setUnitMode(false);
        send.setBatch(false);
        byte[] body = "Hello RocketMQ \u00e4\u20ac".getBytes(StandardCharsets.UTF_8);
        request("send-10", RequestCode.SEND_MESSAGE, send, body);
        request("send-310", RequestCode.SEND_MESSAGE_V2,
            SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send), body);
        send.setBatch(true);
        request("send-320", RequestCode.SEND_BATCH_MESSAGE,
            SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send), body);
        SendMessageResponseHeader sent = new SendMessageResponseHeader();
        sent.setMsgId("7F00000100002A9F0000000000000123");
        sent.setQueueId(3);
        sent.setQueueOffset(42L);
        response("send-answer", ResponseCode.SUCCESS, null, SendMessageResponseHeader.class, sent, null,
            RequestCode.SEND_MESSAGE_V2);

        PullMessageRequestHeader pull = new PullMessageRequestHeader();
        pull.setConsumerGroup("consumers");
        pull.setTopic("TopicTest");
        pull.setQueueId(3);
        pull.setQueueOffset(42L);
        pull.setMaxMsgNums(32);
        pull.setSysFlag(7);
        pull.setCommitOffset(41L);
        pull.setSuspendTimeoutMillis(15000L);
        pull.setSubscription("TagA || TagB");
        pull.setSubVersion(1700000000123L);
        pull.setExpressionType("TAG");
        request("pull-11", RequestCode.PULL_MESSAGE, pull, null);
        PullMessageResponseHeader pulled = new PullMessageResponseHeader();
        pulled.setSuggestWhichBrokerId(0L);
        pulled.setNextBeginOffset(43L);
        pulled.setMinOffset(0L);
        pulled.setMaxOffset(44L);
        response("pull-answer", ResponseCode.SUCCESS, "FOUND", PullMessageResponseHeader.class, pulled,
            new byte[] {0, 1, 2, (byte) 0xff}, RequestCode.PULL_MESSAGE);

        QueryConsumerOffsetRequestHeader query = new QueryConsumerOffsetRequestHeader();
        query.setConsumerGroup("consumers");
        query.setTopic("TopicTest");
        query.setQueueId(1);
        request("offset-query-14", RequestCode.QUERY_CONSUMER_OFFSET, query, null);
        SearchOffsetRequestHeader search = new SearchOffsetRequestHeader();
        search.setTopic("TopicTest");
        search.setQueueId(1);
        search.setTimestamp(1700000000123L);
        request("offset-search-29", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search, null);
        GetMaxOffsetRequestHeader max = new GetMaxOffsetRequestHeader();
        max.setTopic("TopicTest");
        max.setQueueId(1);
        request("offset-max-30", RequestCode.GET_MAX_OFFSET, max, null);
        request("heartbeat-34", RequestCode.HEART_BEAT, null, "{}".getBytes(StandardCharsets.UTF_8));

        RegisterBrokerRequestHeader register = new RegisterBrokerRequestHeader();
        register.setBrokerName("broker-a");
        register.setBrokerAddr("127.0.0.1:10911");
        register.setClusterName("DefaultCluster");
        register.setHaServerAddr("127.0.0.1:10912");
        register.setBrokerId(0L);
        register.setCompressed(true);
        register.setBodyCrc32(1234567);
        request("register-103", RequestCode.REGISTER_BROKER, register, null);
        GetRouteInfoRequestHeader route = new GetRouteInfoRequestHeader();
        route.setTopic("TopicTest");
        route.setAcceptStandardJsonOnly(true);
        request("route-105", RequestCode.GET_ROUTEINFO_BY_TOPIC, route, null);

        CreateTopicRequestHeader create = new CreateTopicRequestHeader();
        create.setTopic("TopicTest");
        create.setDefaultTopic("TBW102");
        create.setReadQueueNums(8);
        create.setWriteQueueNums(4);
        create.setPerm(6);
        create.setTopicFilterType("SINGLE_TAG");
        create.setTopicSysFlag(0);
        create.setOrder(false);
        request("topic-create-17", RequestCode.UPDATE_AND_CREATE_TOPIC, create, null);

        QueryMessageRequestHeader byKey = new QueryMessageRequestHeader();
        byKey.setTopic("TopicTest");
        byKey.setKey("order#17");
        byKey.setMaxNum(64);
        byKey.setBeginTimestamp(1700000000123L);
        byKey.setEndTimestamp(Long.MAX_VALUE);
        request("query-12", RequestCode.QUERY_MESSAGE, byKey, null);
        ViewMessageRequestHeader view = new ViewMessageRequestHeader();
        view.setOffset(9007199254740993L);
        request("view-33", RequestCode.VIEW_MESSAGE_BY_ID, view, null);
    }

    private void request(String name, int code, CommandCustomHeader header, byte[] body) {
        frame(name, () -> RemotingCommand.createRequestCommand(code, header), header, body, NOTHING);
    }

    private void response(String name, int code, String remark, Class<? extends CommandCustomHeader> type,
        CommandCustomHeader header, byte[] body, int answerTo) {
        frame(name, () -> {
            RemotingCommand command = RemotingCommand.createResponseCommand(type);
            command.setCode(code);
            command.setRemark(remark);
            command.writeCustomHeader(header);
            return command;
        }, header, body, answerTo);
    }

    /** A fresh command per form: encoding one leaves its header fields behind in its ext fields. */
    private void frame(String name, Supplier<RemotingCommand> fresh, CommandCustomHeader header, byte[] body,
        int answerTo) {
        opaque++;
        for (SerializeType form : SerializeType.values()) {
            RemotingCommand command = fresh.get();
            command.setBody(body);
            command.setOpaque(opaque);
            command.setSerializeTypeCurrentRPC(form);
            golden.add("frame", name + "-" + form.name().toLowerCase(), onTheWire(command),
                "form", form.name(), "code", command.getCode(), "answerTo", answerTo,
                "language", command.getLanguage().name(), "version", command.getVersion(),
                "opaque", command.getOpaque(), "flag", command.getFlag(), "remark", command.getRemark(),
                "header", Golden.header(header), "ext", Golden.header(header),
                "body", body == null ? "" : Golden.hex(body));
        }
    }

    private static byte[] onTheWire(RemotingCommand command) {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyEncoder());
        channel.writeOutbound(command);
        ByteBuf out = channel.readOutbound();
        byte[] bytes = new byte[out.readableBytes()];
        out.readBytes(bytes);
        channel.close();
        return bytes;
    }
}
