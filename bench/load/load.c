/* The load generator: keeps a fixed number of requests outstanding on one broker (closed loop), checks every reply,
 * and prints one JSON object about the measured window. Its one rule: anything unexpected ends the run with status 2. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "frames.h"
#include "latency.h"
#include "replies.h"
#include "transport.h"
#include "unique_id.h"

#define IN_FLIGHT_SLOTS 65536
#define IN_SIZE (1 << 20)
#define SILENCE_MS 20000

enum mode { SEND, BATCH, PULL };

struct connection {
    struct transport transport;
    char *in, *out;
    size_t in_used, in_size, out_start, out_used, out_size;
    int waits_for_room;
};

/* A `queue` is a number for a queue of a topic: (number of the topic) * (queues of a topic) + queueId. */
struct flight {
    uint32_t opaque;
    int queue;
    int64_t sent_ns, offset;
};

static struct {
    const char *host;
    int port, connections, outstanding, cpu, watched_pid;
    enum mode mode;
    double settle, seconds;
    int64_t limit;
    int tls;
    int once; /* pull every queue from its start to its end: the window is all of it */
    const char *topic_stem;
    int topics; /* sends go round so many topics, "<topic>-0" and on; 0: the one topic */
    struct frame_shape shape;
} options = {"127.0.0.1", 0, 1, 64, -1, 0, SEND, 0.5, 5.0, 0, 0, 0, NULL, 0, {"bench", "bench", "bench", NULL, 1024, 8, 32, 32}};

static struct flight flights[IN_FLIGHT_SLOTS];
static struct connection *connections;
static int64_t pull_offsets[1024];
static int is_read[1024]; /* pulled to its end by this run, which reads once */
static uint32_t next_opaque = 1;
static int next_queue, next_topic, poll_fd, in_flight;
static char topic_name[256];
static int64_t now_ns, now_ms, messages_asked;
static int sending = 1, measuring;
static struct {
    int64_t messages, requests, bytes_in, bytes_out, start_ns, stop_ns;
    double broker_cpu, own_cpu;
} window;

static void read_clocks(void)
{
    struct timespec monotonic, wall;
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    clock_gettime(CLOCK_REALTIME, &wall);
    now_ns = monotonic.tv_sec * 1000000000LL + monotonic.tv_nsec;
    now_ms = wall.tv_sec * 1000LL + wall.tv_nsec / 1000000;
}

/* User and system CPU seconds of the watched broker, all its threads: fields 14 and 15 of /proc/PID/stat. */
static double broker_cpu_seconds(void)
{
    char path[64], content[1024];
    unsigned long long user, system;
    if (options.watched_pid == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", options.watched_pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        die("cannot read %s: %s", path, strerror(errno));
    size_t size = fread(content, 1, sizeof content - 1, file);
    fclose(file);
    content[size] = 0;
    char *after_name = strrchr(content, ')');
    if (after_name == NULL || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        die("cannot understand %s", path);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double own_cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Puts the next request on a connection's outgoing buffer; its bytes leave with `flush_out`. */
static void ask(struct connection *connection, int queue)
{
    struct flight *flight = &flights[next_opaque % IN_FLIGHT_SLOTS];
    if (flight->opaque != 0)
        die("request %u is still unanswered after %d later ones", flight->opaque, IN_FLIGHT_SLOTS);
    size_t bound = frame_bound(&options.shape), size;
    if (connection->out_used + bound > connection->out_size) {
        memmove(connection->out, connection->out + connection->out_start, connection->out_used - connection->out_start);
        connection->out_used -= connection->out_start;
        connection->out_start = 0;
        if (connection->out_used + bound > connection->out_size)
            die("the outgoing buffer of %zu bytes is full", connection->out_size);
    }
    *flight = (struct flight){next_opaque, queue, now_ns, 0};
    char *at = connection->out + connection->out_used;
    if (options.topics > 0)
        sprintf(topic_name, "%s-%d", options.topic_stem, queue / options.shape.topic_queues);
    int queue_id = queue % options.shape.topic_queues;
    if (options.mode == PULL) {
        flight->offset = pull_offsets[queue];
        size = frame_pull(at, &options.shape, next_opaque, queue, flight->offset);
    } else if (options.mode == BATCH) {
        size = frame_send_batch(at, &options.shape, next_opaque, queue_id, now_ms);
        messages_asked += options.shape.batch_count;
    } else {
        size = frame_send(at, &options.shape, next_opaque, queue_id, now_ms);
        messages_asked++;
    }
    if (options.limit > 0 && messages_asked >= options.limit)
        sending = 0;
    connection->out_used += size;
    next_opaque = next_opaque == 0x7FFFFFFF ? 1 : next_opaque + 1;
    in_flight++;
}

/* A pull keeps to its queue, as a consumer has one pull outstanding for each; sends go round the topics, and in each
 * round the queues. */
static int queue_for_next(int queue_before)
{
    if (options.mode == PULL)
        return queue_before;
    int queue = next_topic * options.shape.topic_queues + next_queue;
    if (++next_topic >= options.topics) {
        next_topic = 0;
        next_queue = (next_queue + 1) % options.shape.topic_queues;
    }
    return queue;
}

static void flush_out(struct connection *connection)
{
    while (connection->out_start < connection->out_used) {
        ssize_t size = transport_write(&connection->transport, connection->out + connection->out_start,
                                       connection->out_used - connection->out_start);
        if (size < 0 && errno == EAGAIN)
            break;
        if (size < 0)
            die("write: %s", strerror(errno));
        connection->out_start += (size_t)size;
        if (measuring)
            window.bytes_out += size;
    }
    int must_wait = connection->out_start < connection->out_used;
    if (!must_wait)
        connection->out_start = connection->out_used = 0;
    if (must_wait != connection->waits_for_room) {
        struct epoll_event event = {.events = EPOLLIN | (must_wait ? EPOLLOUT : 0), .data.ptr = connection};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, connection->transport.fd, &event);
        connection->waits_for_room = must_wait;
    }
}

static int check_pull(const struct reply *reply, const struct flight *flight)
{
    int count = stored_messages_check(reply, flight->queue, flight->offset, options.shape.payload, options.shape.payload_size);
    int64_t next = reply_number(reply, "\"nextBeginOffset\":"), end = reply_number(reply, "\"maxOffset\":");
    if (count < 1 || count > options.shape.pull_count || next != flight->offset + count)
        die("a pull at %lld gave %d messages and nextBeginOffset %lld", (long long)flight->offset, count, (long long)next);
    pull_offsets[flight->queue] = next < end ? next : reply_number(reply, "\"minOffset\":");
    is_read[flight->queue] = options.once && next >= end;
    return count;
}

static int check_send(const struct reply *reply, const struct flight *flight)
{
    int count = options.mode == BATCH ? options.shape.batch_count : 1;
    if (reply_number(reply, "\"queueId\":") != flight->queue % options.shape.topic_queues)
        die("a send to queueId=%d was answered for another queue", flight->queue % options.shape.topic_queues);
    offsets_take(flight->queue, reply_number(reply, "\"queueOffset\":"), count);
    return count;
}

static void answered(struct connection *connection, const char *frame, size_t size)
{
    struct reply reply = reply_open(frame, size);
    struct flight *flight = &flights[reply.opaque % IN_FLIGHT_SLOTS];
    if (reply.opaque == 0 || flight->opaque != reply.opaque)
        die("a reply with opaque=%u, which nobody waits for", reply.opaque);
    int count = options.mode == PULL ? check_pull(&reply, flight) : check_send(&reply, flight);
    if (measuring) {
        latency_record(now_ns - flight->sent_ns);
        window.messages += count;
        window.requests++;
        window.bytes_in += (int64_t)size;
    }
    int queue = flight->queue;
    flight->opaque = 0;
    in_flight--;
    if (sending && !(options.once && is_read[queue]))
        ask(connection, queue_for_next(queue));
}

static void read_in(struct connection *connection)
{
    size_t start = 0, size;
    ssize_t got = transport_read(&connection->transport, connection->in + connection->in_used, connection->in_size - connection->in_used);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        die("the broker closed the connection: %s", got == 0 ? "end of stream" : strerror(errno));
    connection->in_used += (size_t)got;
    read_clocks();
    while ((size = reply_frame_size(connection->in + start, connection->in_used - start)) > 0) {
        answered(connection, connection->in + start, size);
        start += size;
    }
    memmove(connection->in, connection->in + start, connection->in_used - start);
    connection->in_used -= start;
    if (connection->in_used == connection->in_size) {
        connection->in_size *= 2;
        if ((connection->in = realloc(connection->in, connection->in_size)) == NULL)
            die("out of memory for a reply");
    }
}

static void connect_all(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1)
        die("not an IPv4 address: %s", options.host);
    unique_id_open(ntohl(address.sin_addr.s_addr));
    connections = calloc((size_t)options.connections, sizeof *connections);
    poll_fd = epoll_create1(0);
    for (int i = 0; i < options.connections; i++) {
        struct connection *connection = &connections[i];
        int on = 1;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
            die("connect to %s:%d: %s", options.host, options.port, strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        transport_open(&connection->transport, fd, options.tls);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        connection->in_size = options.connections > 1 ? IN_SIZE / 16 : IN_SIZE;
        connection->out_size = (size_t)(options.outstanding + 1) * frame_bound(&options.shape);
        connection->in = malloc(connection->in_size);
        connection->out = malloc(connection->out_size);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void enter_window(void)
{
    measuring = 1;
    window.own_cpu = own_cpu_seconds();
    window.broker_cpu = broker_cpu_seconds();
    window.start_ns = now_ns;
}

static void leave_window(void)
{
    measuring = sending = 0;
    window.stop_ns = now_ns;
    window.broker_cpu = broker_cpu_seconds() - window.broker_cpu;
    window.own_cpu = own_cpu_seconds() - window.own_cpu;
}

static void run(void)
{
    struct epoll_event events[64];
    read_clocks();
    int64_t start_ns = now_ns + (int64_t)(options.settle * 1e9), stop_ns = start_ns + (int64_t)(options.seconds * 1e9);
    if (options.once)
        enter_window();
    for (int i = 0; i < options.connections * options.outstanding; i++)
        ask(&connections[i % options.connections], options.mode == PULL ? i % options.shape.topic_queues : queue_for_next(0));
    for (int i = 0; i < options.connections; i++)
        flush_out(&connections[i]);
    while (in_flight > 0) {
        int ready = epoll_wait(poll_fd, events, 64, SILENCE_MS);
        if (ready == 0)
            die("no reply within %d ms, %d requests are unanswered", SILENCE_MS, in_flight);
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                do
                    read_in(connection);
                while (transport_holds(&connection->transport));
            flush_out(connection);
        }
        if (!measuring && window.start_ns == 0 && now_ns >= start_ns && options.limit == 0)
            enter_window();
        if (measuring && now_ns >= stop_ns && !options.once)
            leave_window();
    }
    if (options.once)
        leave_window();
    offsets_check_whole();
}

static void report(void)
{
    double seconds = (double)(window.stop_ns - window.start_ns) / 1e9;
    if (options.limit > 0)
        printf("{\"messages\": %lld}\n", (long long)messages_asked);
    else if (window.messages == 0)
        die("no reply within the measured window");
    else
        printf("{\"messages\": %lld, \"requests\": %lld, \"seconds\": %.6f, \"broker_cpu_s\": %.3f, \"generator_cpu_s\": %.3f, "
               "\"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f, \"bytes_in\": %lld, \"bytes_out\": %lld}\n",
               (long long)window.messages, (long long)window.requests, seconds, window.broker_cpu, window.own_cpu,
               (double)latency_percentile(0.5) / 1e3, (double)latency_percentile(0.99) / 1e3, (double)latency_percentile(0.999) / 1e3,
               (double)latency_max() / 1e3, (long long)window.bytes_in, (long long)window.bytes_out);
}

static enum mode mode_named(const char *name)
{
    if (strcmp(name, "send") == 0)
        return SEND;
    if (strcmp(name, "batch") == 0)
        return BATCH;
    if (strcmp(name, "pull") == 0)
        return PULL;
    die("no mode %s (send, batch, pull)", name);
}

static void read_options(int argc, char **argv)
{
    static const struct option table[] = {
        {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"mode", 1, 0, 'm'}, {"topic", 1, 0, 't'}, {"group", 1, 0, 'g'},
        {"broker", 1, 0, 'b'}, {"queues", 1, 0, 'q'}, {"connections", 1, 0, 'c'}, {"outstanding", 1, 0, 'o'},
        {"size", 1, 0, 's'}, {"count", 1, 0, 'n'}, {"settle", 1, 0, 'e'}, {"seconds", 1, 0, 'd'}, {"limit", 1, 0, 'l'},
        {"cpu", 1, 0, 'k'}, {"watch", 1, 0, 'w'}, {"once", 0, 0, '1'}, {"tls", 0, 0, '2'},
        {"topics", 1, 0, 'T'}, {0, 0, 0, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case 'h': options.host = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'm': options.mode = mode_named(optarg); break;
        case 't': options.shape.topic = optarg; break;
        case 'g': options.shape.group = optarg; break;
        case 'b': options.shape.broker_name = optarg; break;
        case 'q': options.shape.topic_queues = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 'o': options.outstanding = atoi(optarg); break;
        case 's': options.shape.payload_size = (size_t)atol(optarg); break;
        case 'n': options.shape.batch_count = options.shape.pull_count = atoi(optarg); break;
        case 'e': options.settle = atof(optarg); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'l': options.limit = atoll(optarg); break;
        case 'k': options.cpu = atoi(optarg); break;
        case 'w': options.watched_pid = atoi(optarg); break;
        case '1': options.once = 1; break;
        case '2': options.tls = 1; break;
        case 'T': options.topics = atoi(optarg); break;
        default: die("unknown option");
        }
    }
    if (options.mode != BATCH)
        options.shape.batch_count = 1;
    if (options.port < 1 || options.connections < 1 || options.outstanding < 1 || options.shape.topic_queues < 1
        || options.shape.topic_queues > 1024 || options.connections * options.outstanding > IN_FLIGHT_SLOTS / 4)
        die("a port, connections, outstanding and 1..1024 queues are needed");
    if (options.topics < 0 || options.topics > 100000 || (options.topics > 0 && options.mode == PULL))
        die("sends alone go to several topics, 100,000 at most");
    if (options.topics > 0) {
        options.topic_stem = options.shape.topic;
        if (snprintf(topic_name, sizeof topic_name, "%s-%d", options.topic_stem, options.topics) >= 128)
            die("the topics' names are too long");
        options.shape.topic = topic_name;
    }
    offsets_open((options.topics > 0 ? options.topics : 1) * options.shape.topic_queues, options.shape.topic_queues);
    if (options.mode == PULL && options.connections * options.outstanding > options.shape.topic_queues)
        die("pulling needs a queue for each outstanding request");
    if (options.once && (options.mode != PULL || options.connections * options.outstanding != options.shape.topic_queues))
        die("reading once needs a pull outstanding for each queue");
}

/* The same bytes in every run, without a pattern that a compressor or a cache could like. */
static const char *make_payload(size_t size)
{
    char *payload = malloc(size + 1);
    uint64_t state = 88172645463325252ULL;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        payload[i] = (char)state;
    }
    return payload;
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    if (options.cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(options.cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            die("cannot run on core %d: %s", options.cpu, strerror(errno));
    }
    options.shape.payload = make_payload(options.shape.payload_size);
    connect_all();
    run();
    report();
    return 0;
}
