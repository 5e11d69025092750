package golden.five;

import golden.Golden;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.AppendMessageCallback;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.PutMessageContext;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Stored entries as the broker's commit log lays them out, end-of-file blanks, and batches on the wire. */
final class Messages {
    private static final byte[] LONG_BODY = "Turbopump drives the rocket. ".repeat(40).getBytes(StandardCharsets.UTF_8);
    private static final long FILE_START = 1073741824L;

    private final Golden golden;

    Messages(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        MessageExtBrokerInner plain = message();
        stored("stored-plain", plain);

        MessageExtBrokerInner bare = message();
        bare.setPropertiesString("");
        bare.getProperties().clear();
        bare.setBody(new byte[] {0});
        stored("stored-bare", bare);

        MessageExtBrokerInner empty = message();
        empty.setBody(new byte[0]);
        stored("stored-empty-body", empty);

        MessageExtBrokerInner tagged = message();
        tagged.setPropertiesString("TAGS\u0001TagA\u0002KEYS\u0001a b c\u0002empty\u0001\u0002odd\u0001\u00e4\u20ac\ud83d\ude00\"\\=:\n\u0000"
            + "\u0002TAGS\u0001TagB\u0002last\u0001without end");
        stored("stored-odd-properties", tagged);

        MessageExtBrokerInner longTopic = message();
        longTopic.setTopic("%RETRY%" + "long-topic-name-".repeat(12));
        longTopic.setVersion(MessageVersion.MESSAGE_VERSION_V2);
        stored("stored-v2-long-topic", longTopic);

        MessageExtBrokerInner born6 = message();
        born6.setBornHost(host("2001:db8::1", 50000));
        born6.setBornHostV6Flag();
        stored("stored-born-v6", born6);
        MessageExtBrokerInner store6 = message();
        store6.setStoreHost(host("::1", 10911));
        store6.setStoreHostAddressV6Flag();
        stored("stored-store-v6", store6);
        MessageExtBrokerInner both6 = message();
        both6.setBornHost(host("2001:db8::1", 50000));
        both6.setStoreHost(host("2001:db8::2", 10911));
        both6.setBornHostV6Flag();
        both6.setStoreHostAddressV6Flag();
        stored("stored-both-v6", both6);

        for (CompressionType type : CompressionType.values()) {
            MessageExtBrokerInner compressed = message();
            compressed.setBody(CompressorFactory.getCompressor(type).compress(LONG_BODY, 5));
            compressed.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
            stored("stored-" + type.name().toLowerCase(), compressed, LONG_BODY, false);
        }
        MessageExtBrokerInner oldZlib = message();
        oldZlib.setBody(CompressorFactory.getCompressor(CompressionType.ZLIB).compress(LONG_BODY, 5));
        oldZlib.setSysFlag(MessageSysFlag.COMPRESSED_FLAG);
        stored("stored-zlib-without-type", oldZlib, LONG_BODY, false);

        int[] transactions = {MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE,
            MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};
        for (int type : transactions) {
            MessageExtBrokerInner transaction = message();
            transaction.setSysFlag(type | MessageSysFlag.MULTI_TAGS_FLAG);
            transaction.setPreparedTransactionOffset(123456789L);
            stored("stored-transaction-" + type, transaction);
        }
        MessageExtBrokerInner retried = message();
        retried.setFlag(-1);
        retried.setQueueId(Integer.MAX_VALUE);
        retried.setReconsumeTimes(16);
        retried.setQueueOffset(Long.MAX_VALUE);
        stored("stored-extremes", retried);
        stored("stored-whole-crc", message(), null, true);

        blank();
        batches();
    }

    private static MessageExtBrokerInner message() throws UnknownHostException {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("TopicTest");
        message.setQueueId(3);
        message.setFlag(7);
        message.setQueueOffset(42);
        message.setBornTimestamp(1700000000123L);
        message.setBornHost(host("127.0.0.1", 50000));
        message.setStoreTimestamp(1700000000456L);
        message.setStoreHost(host("192.0.2.200", 10911));
        message.setBody("Hello RocketMQ \u00e4\u20ac".getBytes(StandardCharsets.UTF_8));
        MessageAccessor.setProperties(message, new LinkedHashMap<>());
        message.putUserProperty("colour", "red");
        message.setTags("TagA");
        message.setKeys("k1 k2");
        MessageAccessor.putProperty(message, "UNIQ_KEY", "7F0000010BB818B4AAC2000000000001");
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private static SocketAddress host(String ip, int port) throws UnknownHostException {
        return new InetSocketAddress(InetAddress.getByName(ip), port);
    }

    private void stored(String name, MessageExtBrokerInner message) throws Exception {
        stored(name, message, null, false);
    }

    private void stored(String name, MessageExtBrokerInner message, byte[] plainBody, boolean wholeCrc) throws Exception {
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        MessageStoreConfig config = config(wholeCrc);
        ByteBuffer file = ByteBuffer.allocate(8192);
        file.position(100);
        append(config, message, file, 8000);
        byte[] entry = new byte[file.position() - 100];
        file.position(100);
        file.get(entry);
        MessageExt read = MessageDecoder.decode(ByteBuffer.wrap(entry), true);
        golden.add("stored", name, entry, "topic", message.getTopic(), "queueId", message.getQueueId(),
            "flag", message.getFlag(), "queueOffset", queueOffset(message), "physicalOffset", FILE_START + 100,
            "sysFlag", message.getSysFlag(), "bornTimestamp", message.getBornTimestamp(),
            "bornHost", text(message.getBornHost()), "storeTimestamp", message.getStoreTimestamp(),
            "storeHost", text(message.getStoreHost()), "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(), "bodyCrc", message.getBodyCRC(),
            "storedBody", Golden.hex(message.getBody()),
            "body", Golden.hex(plainBody == null ? message.getBody() : plainBody),
            "propertiesText", message.getPropertiesString(),
            "properties", read.getProperties(), "offsetMsgId", ((MessageClientExt) clientDecode(entry)).getOffsetMsgId(),
            "magic", message.getVersion().getMagicCode(),
            "tagsCode", MessageExtBrokerInner.tagsString2tagsCode(read.getTags()), "wholeCrc", wholeCrc);
    }

    private static MessageExt clientDecode(byte[] entry) {
        return MessageDecoder.clientDecode(ByteBuffer.wrap(entry), true);
    }

    /** RocketMQ: a prepared or rolled-back message is stored with queue offset 0. */
    private static long queueOffset(MessageExtBrokerInner message) {
        int type = MessageSysFlag.getTransactionValue(message.getSysFlag());
        boolean queued = type == MessageSysFlag.TRANSACTION_NOT_TYPE || type == MessageSysFlag.TRANSACTION_COMMIT_TYPE;
        return queued ? message.getQueueOffset() : 0;
    }

    private static String text(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return Golden.hex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    private static MessageStoreConfig config(boolean wholeCrc) throws Exception {
        Path root = Files.createTempDirectory("golden-store");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setEnabledAppendPropCRC(wholeCrc);
        return config;
    }

    private static AppendMessageCallback callback(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("golden", false), null,
            new BrokerConfig(), new ConcurrentHashMap<>());
        Field field = CommitLog.class.getDeclaredField("appendMessageCallback");
        field.setAccessible(true);
        return (AppendMessageCallback) field.get(store.getCommitLog());
    }

    private static void append(MessageStoreConfig config, MessageExtBrokerInner message, ByteBuffer file, int space)
        throws Exception {
        MessageExtEncoder encoder = new MessageExtEncoder(config);
        if (encoder.encode(message) != null) {
            throw new IllegalStateException("refused");
        }
        message.setEncodedBuff(encoder.getEncoderBuffer());
        callback(config).doAppend(FILE_START, file, space, message, new PutMessageContext("TopicTest-3"));
    }

    private void blank() throws Exception {
        ByteBuffer file = ByteBuffer.allocate(64);
        MessageExtBrokerInner message = message();
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        append(config(false), message, file, 64);
        golden.add("blank", "end-of-file", file.array(), "size", 64);
    }

    private void batches() throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("TopicTest", "Tag" + i, "key" + i, ("batch " + i + " \u20ac").getBytes(StandardCharsets.UTF_8));
            message.setFlag(i);
            message.setWaitStoreMsgOK(true);
            MessageAccessor.putProperty(message, "UNIQ_KEY", "7F0000010BB818B4AAC200000000000" + i);
            messages.add(message);
        }
        byte[] wire = MessageDecoder.encodeMessages(messages);
        List<Object> expected = new ArrayList<>();
        for (Message message : messages) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("flag", message.getFlag());
            fields.put("body", Golden.hex(message.getBody()));
            fields.put("properties", new LinkedHashMap<>(message.getProperties()));
            expected.add(fields);
        }
        golden.add("batch", "batch-wire", wire, "messages", expected);

        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic("TopicTest");
        batch.setQueueId(3);
        batch.setQueueOffset(42);
        batch.setSysFlag(0);
        batch.setBornTimestamp(1700000000123L);
        batch.setBornHost(host("127.0.0.1", 50000));
        batch.setStoreTimestamp(1700000000456L);
        batch.setStoreHost(host("192.0.2.200", 10911));
        batch.setBody(wire);
        MessageAccessor.setProperties(batch, new HashMap<>(Map.of("CLUSTER", "DefaultCluster")));
        MessageStoreConfig config = config(false);
        PutMessageContext context = new PutMessageContext("TopicTest-3");
        batch.setEncodedBuff(new MessageExtEncoder(config).encode(batch, context));
        ByteBuffer file = ByteBuffer.allocate(8192);
        callback(config).doAppend(FILE_START, file, 8192, batch, context);
        byte[] entries = new byte[file.position()];
        file.flip();
        file.get(entries);
        golden.add("stored-batch", "batch-stored", entries, "messages", expected, "physicalOffset", FILE_START,
            "queueOffset", 42, "batchProperties", "CLUSTER\u0001DefaultCluster\u0002");
    }
}
