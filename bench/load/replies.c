#define _GNU_SOURCE
#include "replies.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FRAME (16 * 1024 * 1024)
#define MAX_OFFSET (1LL << 33)

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static uint32_t big_endian(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static int64_t big_endian_long(const char *at)
{
    return (int64_t)(((uint64_t)big_endian(at) << 32) | big_endian(at + 4));
}

size_t reply_frame_size(const char *data, size_t available)
{
    if (available < 8)
        return 0;
    uint32_t size = big_endian(data);
    if (size < 4 || size > MAX_FRAME)
        die("a frame of %u bytes from the broker", size);
    return available < (size_t)size + 4 ? 0 : (size_t)size + 4;
}

/* The value after `key` in the header's JSON: our keys are plain and occur once, so no parser is needed. */
static const char *value_of(const struct reply *reply, const char *key)
{
    const char *found = memmem(reply->header, reply->header_size, key, strlen(key));
    if (found == NULL)
        die("no %s in the reply %.*s", key, (int)reply->header_size, reply->header);
    return found + strlen(key);
}

static int64_t number_at(const char *at, const char *stop)
{
    int64_t value = 0;
    int negative = at < stop && *at == '-';
    for (at += negative; at < stop && *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (*at - '0');
    return negative ? -value : value;
}

struct reply reply_open(const char *frame, size_t size)
{
    uint32_t mark = big_endian(frame + 4), header_size = mark & 0xFFFFFF;
    if (mark >> 24 != 0)
        die("the reply's header is not JSON (type %u)", mark >> 24);
    if (header_size > size - 8)
        die("a header of %u bytes in a frame of %zu", header_size, size);
    struct reply reply = {0, frame + 8, header_size, frame + 8 + header_size, size - 8 - header_size};
    const char *stop = reply.header + header_size;
    if (number_at(value_of(&reply, "\"code\":"), stop) != 0 || (number_at(value_of(&reply, "\"flag\":"), stop) & 1) == 0)
        die("not a good reply: %.*s", (int)header_size, reply.header);
    reply.opaque = (uint32_t)number_at(value_of(&reply, "\"opaque\":"), stop);
    return reply;
}

int64_t reply_number(const struct reply *reply, const char *key)
{
    const char *at = value_of(reply, key), *stop = reply->header + reply->header_size;
    int quoted = at < stop && *at == '"';
    return number_at(at + quoted, stop);
}

/* One bit for each offset of a queue that this run was given. */
static struct {
    uint64_t *bits;
    int64_t words, lowest, highest, count;
} *taken;
static int queues, queues_of_topic;

void offsets_open(int count, int of_topic)
{
    queues = count;
    queues_of_topic = of_topic;
    taken = calloc((size_t)count, sizeof *taken);
    if (taken == NULL)
        die("out of memory for %d queues", count);
}

static void make_room(int queue, int64_t words)
{
    int64_t old = taken[queue].words, wanted = old == 0 ? 16 : old;
    while (wanted <= words)
        wanted *= 2;
    if (wanted == old)
        return;
    taken[queue].bits = realloc(taken[queue].bits, (size_t)wanted * 8);
    if (taken[queue].bits == NULL)
        die("out of memory for the offsets of queueId=%d", queue % queues_of_topic);
    memset(taken[queue].bits + old, 0, (size_t)(wanted - old) * 8);
    taken[queue].words = wanted;
}

void offsets_take(int queue, int64_t offset, int count)
{
    if (queue < 0 || queue >= queues || offset < 0 || offset > MAX_OFFSET)
        die("queueId=%d queueOffset=%lld in a reply", queue % queues_of_topic, (long long)offset);
    int64_t last = offset + count - 1;
    make_room(queue, last / 64);
    for (int64_t each = offset; each <= last; each++) {
        uint64_t bit = 1ULL << (each % 64);
        if (taken[queue].bits[each / 64] & bit)
            die("queueOffset=%lld of queueId=%d was given out twice", (long long)each, queue % queues_of_topic);
        taken[queue].bits[each / 64] |= bit;
    }
    if (taken[queue].count == 0 || offset < taken[queue].lowest)
        taken[queue].lowest = offset;
    if (taken[queue].count == 0 || last > taken[queue].highest)
        taken[queue].highest = last;
    taken[queue].count += count;
}

void offsets_check_whole(void)
{
    for (int queue = 0; queue < queues; queue++) {
        int64_t span = taken[queue].highest - taken[queue].lowest + 1;
        if (taken[queue].count > 0 && span != taken[queue].count)
            die("queueId=%d: %lld messages acknowledged but their offsets span %lld", queue % queues_of_topic, (long long)taken[queue].count,
                (long long)span);
    }
}

/* Stored entry: totalSize 4 | magic 4 | crc 4 | queueId 4 | flag 4 | queueOffset 8 | physicalOffset 8 | sysFlag 4 | born 8 + 8
 * | stored 8 + 8 | reconsumeTimes 4 | prepared 8 | body 4 + n | topic | properties (hosts are IPv4 here). */
int stored_messages_check(const struct reply *reply, int queue, int64_t offset, const char *payload, size_t payload_size)
{
    const char *at = reply->body, *stop = reply->body + reply->body_size;
    int count = 0;
    for (; at < stop; count++) {
        size_t left = (size_t)(stop - at);
        uint32_t size = left < 88 ? 0 : big_endian(at);
        if (size < 91 + payload_size || size > left)
            die("entry %d of a pull has %u bytes, %zu are left", count, size, left);
        if (big_endian(at + 4) != 0xDAA320A7)
            die("entry %d of a pull has the magic %08x", count, big_endian(at + 4));
        if ((int)big_endian(at + 12) != queue || big_endian_long(at + 20) != offset + count)
            die("pulled queueId=%d queueOffset=%lld, got queueId=%d queueOffset=%lld", queue, (long long)(offset + count),
                (int)big_endian(at + 12), (long long)big_endian_long(at + 20));
        if (big_endian(at + 84) != payload_size || memcmp(at + 88, payload, payload_size) != 0)
            die("the body of queueId=%d queueOffset=%lld is not what was sent", queue, (long long)(offset + count));
        at += size;
    }
    return count;
}
