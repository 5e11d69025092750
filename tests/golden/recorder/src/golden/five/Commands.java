package golden.five;

import golden.Golden;
import io.netty.buffer.ByteBuf;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.body.UnlockBatchRequestBody;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.header.namesrv.*;

/** Whole frames in both header forms, as Apache's own Netty encoder puts them on the wire. */
final class Commands {
    /** Not the answer to any one request. */
    private static final int NOTHING = -1;

    private final Golden golden;
    private int opaque = 1000;

    Commands(Golden golden) {
        this.golden = golden;
    }

    void record() {
        sends();
        pulls();
        offsets();
        clients();
        nameServer();
        topics();
        oddities();
        queries();
        replies();
        administration();
    }

    /** New ones go to the end: the opaque of each frame is its number. */
    private void administration() {
        byte[] empty = "{}".getBytes(StandardCharsets.UTF_8);
        request("check-client-46", RequestCode.CHECK_CLIENT_CONFIG, null, empty);
        request("topic-list-18", RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, null, empty);
        DeleteTopicRequestHeader delete = new DeleteTopicRequestHeader();
        delete.setTopic("TopicTest");
        request("topic-delete-215", RequestCode.DELETE_TOPIC_IN_BROKER, delete, null);
        GetTopicConfigRequestHeader config = new GetTopicConfigRequestHeader();
        config.setTopic("TopicTest");
        request("topic-config-351", RequestCode.GET_TOPIC_CONFIG, config, null);
        GetTopicStatsInfoRequestHeader stats = new GetTopicStatsInfoRequestHeader();
        stats.setTopic("TopicTest");
        request("topic-stats-202", RequestCode.GET_TOPIC_STATS_INFO, stats, null);
        DeleteTopicFromNamesrvRequestHeader forget = new DeleteTopicFromNamesrvRequestHeader();
        forget.setTopic("TopicTest");
        forget.setClusterName("DefaultCluster");
        request("topic-delete-216", RequestCode.DELETE_TOPIC_IN_NAMESRV, forget, null);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup("consumers");
        lock.setClientId("127.0.0.1@1");
        lock.setMqSet(Set.of(new MessageQueue("TopicTest", "broker-a", 3)));
        request("lock-41", RequestCode.LOCK_BATCH_MQ, null, lock.encode());
        UnlockBatchRequestBody unlock = new UnlockBatchRequestBody();
        unlock.setConsumerGroup("consumers");
        unlock.setClientId("127.0.0.1@1");
        unlock.setMqSet(lock.getMqSet());
        request("unlock-42", RequestCode.UNLOCK_BATCH_MQ, null, unlock.encode());
        offsetsFromOutside();
        groupsAndConsumers(empty);
        PutKVConfigRequestHeader put = new PutKVConfigRequestHeader();
        put.setNamespace("ORDER_TOPIC_CONFIG");
        put.setKey("TopicTest");
        put.setValue("broker-a:4;broker-b:2");
        request("kv-put-100", RequestCode.PUT_KV_CONFIG, put, null);
        GetKVConfigRequestHeader get = new GetKVConfigRequestHeader();
        get.setNamespace("ORDER_TOPIC_CONFIG");
        get.setKey("TopicTest");
        request("kv-get-101", RequestCode.GET_KV_CONFIG, get, null);
        GetKVConfigResponseHeader got = new GetKVConfigResponseHeader();
        got.setValue("broker-a:4;broker-b:2");
        response("kv-get-answer", ResponseCode.SUCCESS, null, got, null, RequestCode.GET_KV_CONFIG, Map.of());
        DeleteKVConfigRequestHeader forgetKey = new DeleteKVConfigRequestHeader();
        forgetKey.setNamespace("ORDER_TOPIC_CONFIG");
        forgetKey.setKey("TopicTest");
        request("kv-delete-102", RequestCode.DELETE_KV_CONFIG, forgetKey, null);
        GetKVListByNamespaceRequestHeader space = new GetKVListByNamespaceRequestHeader();
        space.setNamespace("ORDER_TOPIC_CONFIG");
        request("kv-list-219", RequestCode.GET_KVLIST_BY_NAMESPACE, space, null);
        RegisterTopicRequestHeader single = new RegisterTopicRequestHeader();
        single.setTopic("TopicTest");
        request("topic-register-217", RequestCode.REGISTER_TOPIC_IN_NAMESRV, single, empty);
        request("system-topics-304", RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, null, null);
        request("unit-topics-311", RequestCode.GET_UNIT_TOPIC_LIST, null, null);
        request("unit-sub-topics-312", RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, null, null);
        request("unit-sub-ununit-topics-313", RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, null, null);
        byte[] settings = "enableTopicList=false\n".getBytes(StandardCharsets.UTF_8);
        request("namesrv-config-update-318", RequestCode.UPDATE_NAMESRV_CONFIG, null, settings);
        request("namesrv-config-319", RequestCode.GET_NAMESRV_CONFIG, null, null);
        request("broker-config-update-25", RequestCode.UPDATE_BROKER_CONFIG, null, settings);
        request("broker-config-26", RequestCode.GET_BROKER_CONFIG, null, null);
        GetBrokerConfigResponseHeader version = new GetBrokerConfigResponseHeader();
        version.setVersion("{\"counter\":3,\"stateVersion\":0,\"timestamp\":1700000000123}");
        response("broker-config-answer", ResponseCode.SUCCESS, null, version, null, RequestCode.GET_BROKER_CONFIG, Map.of());
        cleaningAndReplication();
    }

    private void cleaningAndReplication() {
        request("system-topics-305", RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, null, null);
        request("clean-queues-306", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, null, null);
        request("clean-topics-316", RequestCode.CLEAN_UNUSED_TOPIC, null, null);
        request("clean-log-329", RequestCode.DELETE_EXPIRED_COMMITLOG, null, null);
        QueryConsumeQueueRequestHeader units = new QueryConsumeQueueRequestHeader();
        units.setTopic("TopicTest");
        units.setQueueId(3);
        units.setIndex(7L);
        units.setCount(10);
        units.setConsumerGroup("consumers");
        request("consume-queue-321", RequestCode.QUERY_CONSUME_QUEUE, units, null);
        UpdateGroupForbiddenRequestHeader ban = new UpdateGroupForbiddenRequestHeader();
        ban.setGroup("consumers");
        ban.setTopic("TopicTest");
        request("ban-353-question", RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ban, null);
        ban.setReadable(false);
        request("ban-353", RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ban, null);
        request("all-offsets-43", RequestCode.GET_ALL_CONSUMER_OFFSET, null, null);
        request("all-delays-45", RequestCode.GET_ALL_DELAY_OFFSET, null, null);
        request("all-modes-402", RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, null, null);
        NotifyMinBrokerIdChangeRequestHeader acting = new NotifyMinBrokerIdChangeRequestHeader();
        acting.setMinBrokerId(1L);
        acting.setBrokerName("broker-a");
        acting.setMinBrokerAddr("127.0.0.1:10921");
        acting.setOfflineBrokerAddr("127.0.0.1:10911");
        request("min-broker-905", RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, acting, null);
        request("ha-status-907", RequestCode.GET_BROKER_HA_STATUS, null, null);
        ResetMasterFlushOffsetHeader flushed = new ResetMasterFlushOffsetHeader();
        flushed.setMasterFlushOffset(123456789L);
        request("flush-offset-908", RequestCode.RESET_MASTER_FLUSH_OFFSET, flushed, null);
        request("runtime-info-28", RequestCode.GET_BROKER_RUNTIME_INFO, null, null);
        ViewBrokerStatsDataRequestHeader figure = new ViewBrokerStatsDataRequestHeader();
        figure.setStatsName("TOPIC_PUT_NUMS");
        figure.setStatsKey("TopicTest");
        request("statistic-315", RequestCode.VIEW_BROKER_STATS_DATA, figure, null);
        byte[] thresholds = "consumers=3145728\n".getBytes(StandardCharsets.UTF_8);
        request("cold-flow-update-2001", RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, null, thresholds);
        byte[] name = "consumers".getBytes(StandardCharsets.UTF_8);
        request("cold-flow-remove-2002", RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, null, name);
        request("cold-flow-2003", RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, null, null);
    }

    private void offsetsFromOutside() {
        byte[] offsets = "{\"offsetTable\":{}}".getBytes(StandardCharsets.UTF_8);
        ResetOffsetRequestHeader reset = new ResetOffsetRequestHeader();
        reset.setGroup("consumers");
        reset.setTopic("TopicTest");
        reset.setTimestamp(-1L);
        reset.setForce(true);
        request("reset-222", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, null);
        reset.setQueueId(3);
        reset.setOffset(77L);
        reset.setForce(false);
        request("reset-222-queue", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, null);
        request("reset-220", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, offsets);
        GetConsumerStatusRequestHeader status = new GetConsumerStatusRequestHeader();
        status.setTopic("TopicTest");
        status.setGroup("consumers");
        request("status-221", RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, status, null);
        status.setClientAddr("127.0.0.1@1");
        request("status-223", RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status, null);
        CloneGroupOffsetRequestHeader clone = new CloneGroupOffsetRequestHeader();
        clone.setSrcGroup("consumers");
        clone.setDestGroup("others");
        clone.setTopic("TopicTest");
        clone.setOffline(true);
        request("clone-314", RequestCode.CLONE_GROUP_OFFSET, clone, null);
        QueryCorrectionOffsetHeader correction = new QueryCorrectionOffsetHeader();
        correction.setTopic("TopicTest");
        correction.setCompareGroup("consumers");
        correction.setFilterGroups("others,more");
        request("correction-308", RequestCode.QUERY_CORRECTION_OFFSET, correction, null);
    }

    private void groupsAndConsumers(byte[] empty) {
        request("group-create-200", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, null, empty);
        request("group-list-225", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, null, empty);
        DeleteSubscriptionGroupRequestHeader delete = new DeleteSubscriptionGroupRequestHeader();
        delete.setGroupName("consumers");
        delete.setCleanOffset(true);
        request("group-delete-207", RequestCode.DELETE_SUBSCRIPTIONGROUP, delete, null);
        request("groups-201", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, null, null);
        GetSubscriptionGroupConfigRequestHeader group = new GetSubscriptionGroupConfigRequestHeader();
        group.setGroup("consumers");
        request("group-352", RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group, null);
        GetConsumerConnectionListRequestHeader consumers = new GetConsumerConnectionListRequestHeader();
        consumers.setConsumerGroup("consumers");
        request("consumers-203", RequestCode.GET_CONSUMER_CONNECTION_LIST, consumers, null);
        GetProducerConnectionListRequestHeader producers = new GetProducerConnectionListRequestHeader();
        producers.setProducerGroup("producers");
        request("producers-204", RequestCode.GET_PRODUCER_CONNECTION_LIST, producers, null);
        GetConsumeStatsRequestHeader stats = new GetConsumeStatsRequestHeader();
        stats.setConsumerGroup("consumers");
        stats.setTopic("TopicTest");
        request("consume-stats-208", RequestCode.GET_CONSUME_STATS, stats, null);
        QueryTopicConsumeByWhoRequestHeader who = new QueryTopicConsumeByWhoRequestHeader();
        who.setTopic("TopicTest");
        request("who-300", RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, who, null);
        QueryTopicsByConsumerRequestHeader what = new QueryTopicsByConsumerRequestHeader();
        what.setGroup("consumers");
        request("topics-343", RequestCode.QUERY_TOPICS_BY_CONSUMER, what, null);
        QueryConsumeTimeSpanRequestHeader span = new QueryConsumeTimeSpanRequestHeader();
        span.setTopic("TopicTest");
        span.setGroup("consumers");
        request("time-span-303", RequestCode.QUERY_CONSUME_TIME_SPAN, span, null);
        GetConsumeStatsInBrokerHeader everyone = new GetConsumeStatsInBrokerHeader();
        everyone.setIsOrder(true);
        request("broker-stats-317", RequestCode.GET_BROKER_CONSUME_STATS, everyone, null);
        request("all-producers-328", RequestCode.GET_ALL_PRODUCER_INFO, new GetAllProducerInfoRequestHeader(), null);
        QuerySubscriptionByConsumerRequestHeader wants = new QuerySubscriptionByConsumerRequestHeader();
        wants.setGroup("consumers");
        wants.setTopic("TopicTest");
        request("subscription-345", RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, wants, null);
        GetConsumerRunningInfoRequestHeader running = new GetConsumerRunningInfoRequestHeader();
        running.setConsumerGroup("consumers");
        running.setClientId("127.0.0.1@1");
        running.setJstackEnable(true);
        request("running-307", RequestCode.GET_CONSUMER_RUNNING_INFO, running, null);
        ConsumeMessageDirectlyResultRequestHeader directly = new ConsumeMessageDirectlyResultRequestHeader();
        directly.setConsumerGroup("consumers");
        directly.setClientId("127.0.0.1@1");
        directly.setMsgId("7F00000100002A9F0000000000000001");
        directly.setBrokerName("broker-a");
        directly.setTopic("TopicTest");
        directly.setTopicSysFlag(0);
        directly.setGroupSysFlag(0);
        request("directly-309", RequestCode.CONSUME_MESSAGE_DIRECTLY, directly, empty);
    }

    private void replies() {
        SendMessageRequestHeader send = new SendMessageRequestHeader();
        send.setProducerGroup("CLIENT_INNER_PRODUCER");
        send.setTopic("DefaultCluster_REPLY_TOPIC");
        send.setDefaultTopic("TBW102");
        send.setDefaultTopicQueueNums(4);
        send.setQueueId(0);
        send.setSysFlag(0);
        send.setBornTimestamp(1700000000123L);
        send.setFlag(7);
        send.setProperties("MSG_TYPE\u0001reply\u0002CORRELATION_ID\u000159f2c0d0-9f1a-4f35-8a5e-0f6cbb1c4f10\u0002"
            + "REPLY_TO_CLIENT\u0001127.0.0.1@1234#5678\u0002TTL\u00013000\u0002");
        send.setReconsumeTimes(0);
        send.setUnitMode(false);
        send.setBatch(false);
        send.setBrokerName("broker-a");
        byte[] body = "re: \u00e4\u20ac".getBytes(StandardCharsets.UTF_8);
        request("reply-324", RequestCode.SEND_REPLY_MESSAGE, send, body);
        request("reply-325", RequestCode.SEND_REPLY_MESSAGE_V2,
            SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send), body);

        ReplyMessageRequestHeader push = new ReplyMessageRequestHeader();
        push.setProducerGroup("CLIENT_INNER_PRODUCER");
        push.setTopic("DefaultCluster_REPLY_TOPIC");
        push.setDefaultTopic("TBW102");
        push.setDefaultTopicQueueNums(4);
        push.setQueueId(0);
        push.setSysFlag(0);
        push.setBornTimestamp(1700000000123L);
        push.setFlag(7);
        push.setProperties(send.getProperties() + "PUSH_REPLY_TIME\u00011700000000456\u0002");
        push.setReconsumeTimes(0);
        push.setUnitMode(false);
        push.setBornHost("10.0.0.1:40000");
        push.setStoreHost("0:0:0:0:0:0:0:1:10911");
        push.setStoreTimestamp(1700000000456L);
        request("push-reply-326", RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body);
    }

    private void sends() {
        SendMessageRequestHeader send = new SendMessageRequestHeader();
        send.setProducerGroup("producers");
        send.setTopic("TopicTest");
        send.setDefaultTopic("TBW102");
        send.setDefaultTopicQueueNums(4);
        send.setQueueId(3);
        send.setSysFlag(0);
        send.setBornTimestamp(1700000000123L);
        send.setFlag(7);
        send.setProperties("KEYS\u0001k1 k2\u0002TAGS\u0001TagA\u0002UNIQ_KEY\u00017F0000010BB818B4AAC2000000000001\u0002"
            + "odd\u0001\u00e4\u20ac\ud83d\ude00\"\\/\n\t\u0002WAIT\u0001true\u0002");
        send.setReconsumeTimes(0);
        send.setUnitMode(false);
        send.setMaxReconsumeTimes(16);
        send.setBatch(false);
        send.setBrokerName("broker-a");
        byte[] body = "Hello RocketMQ \u00e4\u20ac".getBytes(StandardCharsets.UTF_8);
        request("send-10", RequestCode.SEND_MESSAGE, send, body);

        SendMessageRequestHeaderV2 v2 = SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send);
        request("send-310", RequestCode.SEND_MESSAGE_V2, v2, body);
        send.setBatch(true);
        SendMessageRequestHeaderV2 batch = SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send);
        request("send-320", RequestCode.SEND_BATCH_MESSAGE, batch, body);

        SendMessageResponseHeader answer = new SendMessageResponseHeader();
        answer.setMsgId("7F00000100002A9F0000000000000123");
        answer.setQueueId(3);
        answer.setQueueOffset(42L);
        response("send-answer", ResponseCode.SUCCESS, null, answer, null, RequestCode.SEND_MESSAGE_V2,
            Map.of("MSG_REGION", "DefaultRegion", "TRACE_ON", "true"));
        answer.setTransactionId("7F0000010BB818B4AAC2000000000001");
        answer.setBatchUniqId("7F0000010BB818B4AAC2000000000001,7F0000010BB818B4AAC2000000000002");
        answer.setRecallHandle("djEgdG9waWMgYnJva2VyIDE3MDAwMDAwMDAwMDAga2V5");
        response("send-answer-full", ResponseCode.FLUSH_DISK_TIMEOUT, null, answer, null, RequestCode.SEND_MESSAGE_V2, Map.of());

        ConsumerSendMsgBackRequestHeader back = new ConsumerSendMsgBackRequestHeader();
        back.setOffset(123456L);
        back.setGroup("consumers");
        back.setDelayLevel(0);
        back.setOriginMsgId("7F0000010BB818B4AAC2000000000001");
        back.setOriginTopic("TopicTest");
        back.setUnitMode(false);
        back.setMaxReconsumeTimes(16);
        back.setBrokerName("broker-a");
        request("send-back-36", RequestCode.CONSUMER_SEND_MSG_BACK, back, null);
    }

    private void pulls() {
        PullMessageRequestHeader pull = new PullMessageRequestHeader();
        pull.setConsumerGroup("consumers");
        pull.setTopic("TopicTest");
        pull.setQueueId(3);
        pull.setQueueOffset(9007199254740993L);
        pull.setMaxMsgNums(32);
        pull.setSysFlag(7);
        pull.setCommitOffset(41L);
        pull.setSuspendTimeoutMillis(15000L);
        pull.setSubscription("TagA || TagB");
        pull.setSubVersion(1700000000123L);
        pull.setExpressionType("TAG");
        pull.setMaxMsgBytes(Integer.MAX_VALUE);
        pull.setRequestSource(-1);
        pull.setBrokerName("broker-a");
        request("pull-11", RequestCode.PULL_MESSAGE, pull, null);
        pull.setLo(false);
        pull.setNamespace("space");
        pull.setNamespaced(true);
        pull.setProxyFrowardClientId("client@1");
        request("pull-361", RequestCode.LITE_PULL_MESSAGE, pull, null);
        PullMessageRequestHeader bare = new PullMessageRequestHeader();
        bare.setConsumerGroup("consumers");
        bare.setTopic("TopicTest");
        bare.setQueueId(0);
        bare.setQueueOffset(0L);
        bare.setMaxMsgNums(1);
        bare.setSysFlag(0);
        bare.setCommitOffset(0L);
        bare.setSuspendTimeoutMillis(0L);
        bare.setSubVersion(0L);
        request("pull-11-bare", RequestCode.PULL_MESSAGE, bare, null);

        PullMessageResponseHeader answer = new PullMessageResponseHeader();
        answer.setSuggestWhichBrokerId(0L);
        answer.setNextBeginOffset(43L);
        answer.setMinOffset(0L);
        answer.setMaxOffset(9007199254740993L);
        answer.setTopicSysFlag(0);
        answer.setGroupSysFlag(0);
        response("pull-answer", ResponseCode.SUCCESS, "FOUND", answer, new byte[] {0, 1, 2, (byte) 0xff},
            RequestCode.PULL_MESSAGE, Map.of());
        answer.setOffsetDelta(0L);
        answer.setForbiddenType(5);
        response("pull-answer-none", ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", answer, null,
            RequestCode.PULL_MESSAGE, Map.of());
    }

    private void offsets() {
        QueryConsumerOffsetRequestHeader query = new QueryConsumerOffsetRequestHeader();
        query.setConsumerGroup("consumers");
        query.setTopic("TopicTest");
        query.setQueueId(1);
        query.setSetZeroIfNotFound(false);
        query.setBrokerName("broker-a");
        request("offset-query-14", RequestCode.QUERY_CONSUMER_OFFSET, query, null);
        QueryConsumerOffsetResponseHeader offset = new QueryConsumerOffsetResponseHeader();
        offset.setOffset(77L);
        response("offset-query-answer", ResponseCode.SUCCESS, null, offset, null, RequestCode.QUERY_CONSUMER_OFFSET, Map.of());

        UpdateConsumerOffsetRequestHeader update = new UpdateConsumerOffsetRequestHeader();
        update.setConsumerGroup("consumers");
        update.setTopic("TopicTest");
        update.setQueueId(1);
        update.setCommitOffset(78L);
        update.setBrokerName("broker-a");
        oneway("offset-update-15", RequestCode.UPDATE_CONSUMER_OFFSET, update);

        SearchOffsetRequestHeader search = new SearchOffsetRequestHeader();
        search.setTopic("TopicTest");
        search.setQueueId(1);
        search.setTimestamp(1700000000123L);
        search.setBoundaryType(BoundaryType.UPPER);
        request("offset-search-29", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search, null);

        GetMaxOffsetRequestHeader max = new GetMaxOffsetRequestHeader();
        max.setTopic("TopicTest");
        max.setQueueId(1);
        max.setCommitted(false);
        request("offset-max-30", RequestCode.GET_MAX_OFFSET, max, null);
        GetMinOffsetRequestHeader min = new GetMinOffsetRequestHeader();
        min.setTopic("TopicTest");
        min.setQueueId(1);
        request("offset-min-31", RequestCode.GET_MIN_OFFSET, min, null);
    }

    private void clients() {
        request("heartbeat-34", RequestCode.HEART_BEAT, new HeartbeatRequestHeader(),
            "{\"clientID\":\"127.0.0.1@1\",\"producerDataSet\":[]}".getBytes(StandardCharsets.UTF_8));
        response("heartbeat-answer", ResponseCode.SUCCESS, null, null, null, RequestCode.HEART_BEAT,
            Map.of("IS_SUPPORT_HEART_BEAT_V2", "true", "IS_SUB_CHANGE", "true"));

        UnregisterClientRequestHeader unregister = new UnregisterClientRequestHeader();
        unregister.setClientID("127.0.0.1@1");
        unregister.setProducerGroup("producers");
        request("unregister-35", RequestCode.UNREGISTER_CLIENT, unregister, null);

        GetConsumerListByGroupRequestHeader list = new GetConsumerListByGroupRequestHeader();
        list.setConsumerGroup("consumers");
        request("consumer-list-38", RequestCode.GET_CONSUMER_LIST_BY_GROUP, list, null);

        NotifyConsumerIdsChangedRequestHeader changed = new NotifyConsumerIdsChangedRequestHeader();
        changed.setConsumerGroup("consumers");
        oneway("notify-40", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, changed);
    }

    private void nameServer() {
        RegisterBrokerRequestHeader register = new RegisterBrokerRequestHeader();
        register.setBrokerName("broker-a");
        register.setBrokerAddr("127.0.0.1:10911");
        register.setClusterName("DefaultCluster");
        register.setHaServerAddr("127.0.0.1:10912");
        register.setBrokerId(0L);
        register.setHeartbeatTimeoutMillis(30000L);
        register.setEnableActingMaster(false);
        register.setCompressed(false);
        register.setBodyCrc32(1234567);
        request("register-103", RequestCode.REGISTER_BROKER, register, null);
        RegisterBrokerResponseHeader registered = new RegisterBrokerResponseHeader();
        registered.setHaServerAddr("127.0.0.1:10912");
        registered.setMasterAddr("127.0.0.1:10911");
        response("register-answer", ResponseCode.SUCCESS, null, registered, null, RequestCode.REGISTER_BROKER, Map.of());

        UnRegisterBrokerRequestHeader unregister = new UnRegisterBrokerRequestHeader();
        unregister.setBrokerName("broker-a");
        unregister.setBrokerAddr("127.0.0.1:10911");
        unregister.setClusterName("DefaultCluster");
        unregister.setBrokerId(0L);
        request("unregister-104", RequestCode.UNREGISTER_BROKER, unregister, null);

        GetRouteInfoRequestHeader route = new GetRouteInfoRequestHeader();
        route.setTopic("%RETRY%consumers");
        route.setAcceptStandardJsonOnly(true);
        request("route-105", RequestCode.GET_ROUTEINFO_BY_TOPIC, route, null);
        request("cluster-106", RequestCode.GET_BROKER_CLUSTER_INFO, null, null);
        request("topics-206", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, null, null);

        GetTopicsByClusterRequestHeader cluster = new GetTopicsByClusterRequestHeader();
        cluster.setCluster("DefaultCluster");
        request("topics-224", RequestCode.GET_TOPICS_BY_CLUSTER, cluster, null);

        WipeWritePermOfBrokerRequestHeader wipe = new WipeWritePermOfBrokerRequestHeader();
        wipe.setBrokerName("broker-a");
        request("wipe-205", RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe, null);
        WipeWritePermOfBrokerResponseHeader wiped = new WipeWritePermOfBrokerResponseHeader();
        wiped.setWipeTopicCount(12);
        response("wipe-answer", ResponseCode.SUCCESS, null, wiped, null, RequestCode.WIPE_WRITE_PERM_OF_BROKER, Map.of());

        AddWritePermOfBrokerRequestHeader add = new AddWritePermOfBrokerRequestHeader();
        add.setBrokerName("broker-a");
        request("add-perm-327", RequestCode.ADD_WRITE_PERM_OF_BROKER, add, null);

        QueryDataVersionRequestHeader version = new QueryDataVersionRequestHeader();
        version.setBrokerName("broker-a");
        version.setBrokerAddr("127.0.0.1:10911");
        version.setClusterName("DefaultCluster");
        version.setBrokerId(0L);
        request("data-version-322", RequestCode.QUERY_DATA_VERSION, version,
            "{\"counter\":3,\"stateVersion\":0,\"timestamp\":1700000000123}".getBytes(StandardCharsets.UTF_8));
        QueryDataVersionResponseHeader changed = new QueryDataVersionResponseHeader();
        changed.setChanged(true);
        response("data-version-answer", ResponseCode.SUCCESS, null, changed, null, RequestCode.QUERY_DATA_VERSION, Map.of());

        GetBrokerMemberGroupRequestHeader members = new GetBrokerMemberGroupRequestHeader();
        members.setClusterName("DefaultCluster");
        members.setBrokerName("broker-a");
        request("members-901", RequestCode.GET_BROKER_MEMBER_GROUP, members, null);

        BrokerHeartbeatRequestHeader heartbeat = new BrokerHeartbeatRequestHeader();
        heartbeat.setClusterName("DefaultCluster");
        heartbeat.setBrokerName("broker-a");
        heartbeat.setBrokerAddr("127.0.0.1:10911");
        heartbeat.setBrokerId(0L);
        heartbeat.setEpoch(5);
        heartbeat.setMaxOffset(100L);
        heartbeat.setConfirmOffset(90L);
        heartbeat.setHeartbeatTimeoutMills(10000L);
        heartbeat.setElectionPriority(1);
        request("broker-heartbeat-904", RequestCode.BROKER_HEARTBEAT, heartbeat, null);
    }

    private void topics() {
        CreateTopicRequestHeader create = new CreateTopicRequestHeader();
        create.setTopic("TopicTest");
        create.setDefaultTopic("TBW102");
        create.setReadQueueNums(8);
        create.setWriteQueueNums(4);
        create.setPerm(6);
        create.setTopicFilterType("SINGLE_TAG");
        create.setTopicSysFlag(0);
        create.setOrder(false);
        create.setAttributes("+message.type=NORMAL,-queue.type");
        create.setForce(false);
        request("topic-create-17", RequestCode.UPDATE_AND_CREATE_TOPIC, create, null);
        request("topic-configs-21", RequestCode.GET_ALL_TOPIC_CONFIG, null, null);
    }

    private void oddities() {
        response("error-with-remark", ResponseCode.TOPIC_NOT_EXIST,
            "topic[t\u00f6pic \"x\"] not exist,\n\tapply first please! \ud83d\ude00 \u2028\u007f\u00a0", null, null, NOTHING, Map.of());
        response("error-unknown-code", 31999, "", null, null, NOTHING, Map.of());
        response("plain-success", ResponseCode.SUCCESS, null, null, null, NOTHING, Map.of());
        response("default-remark", ResponseCode.SYSTEM_ERROR, "not set any response code", null, null, NOTHING, Map.of());
        Map<String, String> odd = new TreeMap<>(Map.of("odd \"key\"\\", "\u00e4\u20ac\ud83d\ude00\u0001\u0002\u0000/",
            "Signature", "abc="));
        for (LanguageCode language : new LanguageCode[] {LanguageCode.CPP, LanguageCode.NODE_JS, LanguageCode.PYTHON}) {
            frame("language-" + language.name().toLowerCase(), () -> {
                RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null);
                command.setLanguage(language);
                odd.forEach(command::addExtField);
                return command;
            }, null, null, NOTHING, odd);
        }
    }

    private void queries() {
        QueryMessageRequestHeader query = new QueryMessageRequestHeader();
        query.setTopic("TopicTest");
        query.setKey("order#17 \u00e4");
        query.setMaxNum(64);
        query.setBeginTimestamp(1700000000123L);
        query.setEndTimestamp(Long.MAX_VALUE);
        for (boolean unique : new boolean[] {false, true}) {  // MQClientAPIImpl.queryMessage
            frame(unique ? "query-12-unique" : "query-12", () -> {
                RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.QUERY_MESSAGE, query);
                command.addExtField(MixAll.UNIQUE_MSG_QUERY_FLAG, String.valueOf(unique));
                return command;
            }, query, null, NOTHING, Map.of(MixAll.UNIQUE_MSG_QUERY_FLAG, String.valueOf(unique)));
        }
        QueryMessageResponseHeader found = new QueryMessageResponseHeader();
        found.setIndexLastUpdateTimestamp(1700000000123L);
        found.setIndexLastUpdatePhyoffset(9007199254740993L);
        response("query-answer", ResponseCode.SUCCESS, null, found, new byte[] {0, 1, 2, (byte) 0xff},
            RequestCode.QUERY_MESSAGE, Map.of());
        response("query-answer-none", ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", found,
            null, RequestCode.QUERY_MESSAGE, Map.of());

        ViewMessageRequestHeader view = new ViewMessageRequestHeader();
        view.setTopic("TopicTest");
        view.setOffset(9007199254740993L);
        request("view-33", RequestCode.VIEW_MESSAGE_BY_ID, view, null);

        GetEarliestMsgStoretimeRequestHeader earliest = new GetEarliestMsgStoretimeRequestHeader();
        earliest.setTopic("TopicTest");
        earliest.setQueueId(1);
        request("earliest-32", RequestCode.GET_EARLIEST_MSG_STORETIME, earliest, null);
        GetEarliestMsgStoretimeResponseHeader time = new GetEarliestMsgStoretimeResponseHeader();
        time.setTimestamp(1700000000123L);
        response("earliest-answer", ResponseCode.SUCCESS, null, time, null, RequestCode.GET_EARLIEST_MSG_STORETIME, Map.of());
    }

    private void request(String name, int code, CommandCustomHeader header, byte[] body) {
        frame(name, () -> RemotingCommand.createRequestCommand(code, header), header, body, NOTHING, Map.of());
    }

    private void oneway(String name, int code, CommandCustomHeader header) {
        frame(name, () -> {
            RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
            command.markOnewayRPC();
            return command;
        }, header, null, NOTHING, Map.of());
    }

    private void response(String name, int code, String remark, CommandCustomHeader header, byte[] body, int answerTo,
        Map<String, String> extra) {
        frame(name, () -> {
            RemotingCommand command = header == null ? RemotingCommand.createResponseCommand(code, remark)
                : RemotingCommand.createResponseCommandWithHeader(code, header);
            command.setRemark(remark);
            new TreeMap<>(extra).forEach(command::addExtField);
            return command;
        }, header, body, answerTo, extra);
    }

    /** A fresh command per form: encoding one leaves its header fields behind in its ext fields. */
    private void frame(String name, Supplier<RemotingCommand> fresh, CommandCustomHeader header, byte[] body,
        int answerTo, Map<String, String> extra) {
        Map<String, String> ext = Golden.header(header);
        ext.putAll(extra);
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
                "header", Golden.header(header), "ext", ext, "body", body == null ? "" : Golden.hex(body));
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
