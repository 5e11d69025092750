/* What a broker answered, checked: a reply that is not what was asked for ends the run with a sentence. */
#ifndef REPLIES_H
#define REPLIES_H

#include <stddef.h>
#include <stdint.h>

struct reply {
    uint32_t opaque;
    const char *header;
    size_t header_size;
    const char *body;
    size_t body_size;
};

/* The size of the frame that begins at `data`, or 0 if it is not whole yet. Dies on an impossible length. */
size_t reply_frame_size(const char *data, size_t available);
/* Takes a whole frame apart; dies unless it is a JSON response with code 0 (the header is shown). */
struct reply reply_open(const char *frame, size_t size);
/* The number under `"key":"` in the header; dies if there is none. `key` is given with its quotes and colon. */
int64_t reply_number(const struct reply *reply, const char *key);

/* There are `count` queues, `of_topic` for each topic; to be called before the two below. */
void offsets_open(int count, int of_topic);
/* Records that `count` messages went to `queue` at `offset`..; dies if one of these offsets was given out before. */
void offsets_take(int queue, int64_t offset, int count);
/* Dies unless each queue's offsets of this run are without a gap. */
void offsets_check_whole(void);

/* Checks every stored message of a pull's body: size, magic, queue, consecutive offsets from `offset`, body bytes.
 * Returns their number. */
int stored_messages_check(const struct reply *reply, int queue, int64_t offset, const char *payload, size_t payload_size);

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

#endif
