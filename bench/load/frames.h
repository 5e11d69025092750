/* Requests as Apache's Java client 5.3.3 writes them: a frame is
 *   totalLen 4 | headerLen 4 (top byte 0 = JSON) | JSON header | body
 * with the header's keys in fastjson's order. Every message has its own UNIQ_KEY and WAIT, as `new Message(topic, body)` has. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stddef.h>
#include <stdint.h>

struct frame_shape {
    const char *topic;
    const char *group;
    const char *broker_name;
    const char *payload;
    size_t payload_size;
    int topic_queues;
    int batch_count; /* messages in one SEND_BATCH_MESSAGE */
    int pull_count;  /* maxMsgNums */
};

/* Room that any frame of this shape needs. */
size_t frame_bound(const struct frame_shape *shape);
/* Each writes one whole frame to `out` and returns its size. */
size_t frame_send(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t now_ms);
size_t frame_send_batch(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t now_ms);
size_t frame_pull(char *out, const struct frame_shape *shape, uint32_t opaque, int queue, int64_t offset);

#endif
