/* The least broker there can be: answers every send or batch with the next queueOffset and stores nothing. It shows how fast
 * the load generator itself is. Prints its port, serves one connection at a time, ends when its standard input does. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER (4 << 20)

static char in[BUFFER], out[BUFFER];
static long long next_offset[1024];

static uint32_t big_endian(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static long value_after(const char *header, size_t size, const char *key)
{
    const char *found = memmem(header, size, key, strlen(key));
    return found == NULL ? 0 : strtol(found + strlen(key), NULL, 10);
}

static int messages_in(const char *body, const char *stop)
{
    int count = 0;
    for (; body < stop; body += big_endian(body))
        count++;
    return count;
}

static size_t answer(char *to, const char *frame, size_t size)
{
    size_t header_size = big_endian(frame + 4) & 0xFFFFFF;
    const char *header = frame + 8, *body = header + header_size;
    long queue = value_after(header, header_size, "\"e\":\"") & 1023;
    int batch = value_after(header, header_size, "\"code\":") == 320;
    int text = sprintf(to + 8,
        "{\"code\":0,\"extFields\":{\"queueId\":\"%ld\",\"queueOffset\":\"%lld\",\"msgId\":\"7F00000100002A9F0000000000000000\"},"
        "\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        queue, next_offset[queue], value_after(header, header_size, "\"opaque\":"));
    next_offset[queue] += batch ? messages_in(body, frame + size) : 1;
    uint32_t total = htonl((uint32_t)text + 4), mark = htonl((uint32_t)text);
    memcpy(to, &total, 4);
    memcpy(to + 4, &mark, 4);
    return (size_t)text + 8;
}

static void serve(int peer)
{
    size_t used = 0, got;
    while ((got = (size_t)read(peer, in + used, sizeof in - used)) > 0 && got <= sizeof in) {
        size_t start = 0, size, answered = 0;
        used += got;
        while (used - start >= 8 && used - start >= (size = big_endian(in + start) + 4)) {
            answered += answer(out + answered, in + start, size);
            start += size;
        }
        for (size_t sent = 0; sent < answered;) {
            ssize_t more = write(peer, out + sent, answered - sent);
            if (more <= 0)
                return;
            sent += (size_t)more;
        }
        memmove(in, in + start, used - start);
        used -= start;
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (argc > 1) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(argv[1]), &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    if (bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 16) != 0)
        return 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct pollfd waits[2] = {{listener, POLLIN, 0}, {0, POLLIN, 0}};
        poll(waits, 2, -1);
        if (waits[1].revents != 0)
            return 0;
        int peer = accept(listener, NULL, NULL);
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        serve(peer);
        close(peer);
    }
}
