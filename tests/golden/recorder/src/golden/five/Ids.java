package golden.five;

import golden.Golden;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.HexFormat;
import java.util.TreeMap;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/** Message ids, tag hashes, checksums and request codes: facts, no files. */
final class Ids {
    private final Golden golden;

    Ids(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        offsetIds("127.0.0.1", 10911, 0L);
        offsetIds("192.0.2.200", 65535, 1073741924L);
        offsetIds("2001:db8::1", 10911, Long.MAX_VALUE);
        uniqueId();
        requestCodes();
        String[] texts = {"TagA", "", "a", "\u00e4\u20ac", "\ud83d\ude00", "polygenelubricants", "TagA || TagB", "*",
            "Zz".repeat(40)};
        for (String text : texts) {
            golden.fact("tags-code", "tags-code " + Golden.hex(text.getBytes("UTF-8")), "text", text,
                "tagsCode", MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, text),
                "crc32", UtilAll.crc32(text.getBytes("UTF-8")));
        }
    }

    private void requestCodes() throws Exception {
        TreeMap<String, Integer> codes = new TreeMap<>();
        for (Field field : RequestCode.class.getDeclaredFields()) {
            codes.put(field.getName(), field.getInt(null));
        }
        golden.fact("request-codes", "request-codes", "codes", codes);
    }

    private void offsetIds(String ip, int port, long offset) throws Exception {
        String id = MessageDecoder.createMessageId(new InetSocketAddress(InetAddress.getByName(ip), port), offset);
        MessageId read = MessageDecoder.decodeMessageId(id);
        golden.fact("offset-msg-id", "offset-msg-id " + ip, "id", id,
            "host", Golden.hex(((InetSocketAddress) read.getAddress()).getAddress().getAddress()),
            "port", ((InetSocketAddress) read.getAddress()).getPort(), "offset", read.getOffset());
    }

    /** The process's own part of the id is overwritten in place, so that the sample is the same each time. */
    private void uniqueId() throws Exception {
        char[] fixed = "7F0000010BB818B4AAC2".toCharArray();
        Field field = MessageClientIDSetter.class.getDeclaredField("FIX_STRING");
        field.setAccessible(true);
        char[] own = (char[]) field.get(null);
        if (own.length != fixed.length) {
            throw new IllegalStateException("run this with an IPv4 address: -Djava.net.preferIPv4Stack=true");
        }
        System.arraycopy(fixed, 0, own, 0, fixed.length);
        Field start = MessageClientIDSetter.class.getDeclaredField("startTime");
        start.setAccessible(true);
        Field counter = MessageClientIDSetter.class.getDeclaredField("COUNTER");
        counter.setAccessible(true);
        String id;
        do {
            ((java.util.concurrent.atomic.AtomicInteger) counter.get(null)).set(0x1234fffe);
            start.set(null, System.currentTimeMillis() - 123456789L);
            id = MessageClientIDSetter.createUniqID();
        } while (!id.startsWith(HexFormat.of().withUpperCase().toHexDigits(123456789), fixed.length));
        golden.fact("unique-id", "unique-id", "id", id, "host", Golden.hex(MessageClientIDSetter.getIPFromID(id)),
            "pid", MessageClientIDSetter.getPidFromID(id), "loader", 0x18B4AAC2, "sinceMonthMs", 123456789,
            "counter", 0xfffe);
    }
}
