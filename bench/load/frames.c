#include "frames.h"

#include <arpa/inet.h>
#include <string.h>

#include "unique_id.h"

#define PREFIX 8

static char *text(char *at, const char *value)
{
    size_t size = strlen(value);
    memcpy(at, value, size);
    return at + size;
}

static char *number(char *at, int64_t value)
{
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static char *big_endian(char *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
    return at + 4;
}

static char *header_end(char *at, uint32_t opaque)
{
    at = text(at, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
    at = number(at, opaque);
    return text(at, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}");
}

static size_t finish(char *out, char *header_stop, char *stop)
{
    big_endian(out, (uint32_t)(stop - out - 4));
    big_endian(out + 4, (uint32_t)(header_stop - out - PREFIX));
    return (size_t)(stop - out);
}

static char *send_header(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t now_ms, int batch)
{
    char *at = out + PREFIX;
    at = text(at, batch ? "{\"code\":320,\"extFields\":{\"a\":\"" : "{\"code\":310,\"extFields\":{\"a\":\"");
    at = text(at, shape->group);
    at = text(at, "\",\"b\":\"");
    at = text(at, shape->topic);
    at = text(at, "\",\"c\":\"TBW102\",\"d\":\"");
    at = number(at, shape->topic_queues);
    at = text(at, "\",\"e\":\"");
    at = number(at, queue);
    at = text(at, "\",\"f\":\"0\",\"g\":\"");
    at = number(at, now_ms);
    at = text(at, "\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001");
    unique_id_write(at, now_ms);
    at += UNIQUE_ID_SIZE;
    at = text(at, "\\u0002WAIT\\u0001true\\u0002\",\"j\":\"0\",\"k\":\"false\",\"m\":\"");
    at = text(at, batch ? "true" : "false");
    at = text(at, "\",\"n\":\"");
    at = text(at, shape->broker_name);
    at = text(at, "\"");
    return header_end(at, opaque);
}

size_t frame_bound(const struct frame_shape *shape)
{
    size_t messages = (size_t)(shape->batch_count > 1 ? shape->batch_count : 1);
    return 1024 + strlen(shape->topic) + strlen(shape->group) + strlen(shape->broker_name)
        + messages * (shape->payload_size + 128);
}

size_t frame_send(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t now_ms)
{
    char *body = send_header(out, shape, opaque, queue, now_ms, 0);
    memcpy(body, shape->payload, shape->payload_size);
    return finish(out, body, body + shape->payload_size);
}

/* One message of a batch body: size 4 | magic 4 = 0 | crc 4 = 0 | flag 4 | body 4 + n | properties 2 + p */
static char *batch_message(char *at, const struct frame_shape *shape, int64_t now_ms)
{
    char *start = at;
    at = big_endian(at + 4, 0);
    at = big_endian(at, 0);
    at = big_endian(at, 0);
    at = big_endian(at, (uint32_t)shape->payload_size);
    memcpy(at, shape->payload, shape->payload_size);
    at += shape->payload_size;
    char *properties = at + 2;
    at = text(properties, "UNIQ_KEY\001");
    unique_id_write(at, now_ms);
    at = text(at + UNIQUE_ID_SIZE, "\002WAIT\001true\002");
    uint16_t size = htons((uint16_t)(at - properties));
    memcpy(properties - 2, &size, 2);
    big_endian(start, (uint32_t)(at - start));
    return at;
}

size_t frame_send_batch(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t now_ms)
{
    char *body = send_header(out, shape, opaque, queue, now_ms, 1), *at = body;
    for (int i = 0; i < shape->batch_count; i++)
        at = batch_message(at, shape, now_ms);
    return finish(out, body, at);
}

size_t frame_pull(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t offset)
{
    char *at = text(out + PREFIX, "{\"code\":11,\"extFields\":{\"queueId\":\"");
    at = number(at, queue);
    at = text(at, "\",\"maxMsgBytes\":\"2147483647\",\"maxMsgNums\":\"");
    at = number(at, shape->pull_count);
    /* sysFlag 4: the request itself says what it subscribes to; no long polling. */
    at = text(at, "\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"subscription\":\"*\",\"suspendTimeoutMillis\":\"20000\",\"bname\":\"");
    at = text(at, shape->broker_name);
    at = text(at, "\",\"topic\":\"");
    at = text(at, shape->topic);
    at = text(at, "\",\"queueOffset\":\"");
    at = number(at, offset);
    at = text(at, "\",\"expressionType\":\"TAG\",\"subVersion\":\"0\",\"consumerGroup\":\"");
    at = text(at, shape->group);
    at = text(at, "\"");
    at = header_end(at, opaque);
    return finish(out, at, at);
}
