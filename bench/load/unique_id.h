/* Unique ids of messages in RocketMQ's own form (MessageClientIDSetter): upper-case hex of
 *   ip 4 | pid 2 | class-loader hash 4 | ms since the month began 4 | counter 2
 * One rule: no two messages of a run share an id. */
#ifndef UNIQUE_ID_H
#define UNIQUE_ID_H

#include <stdint.h>

enum { UNIQUE_ID_SIZE = 32 };

void unique_id_open(uint32_t ipv4_host_order);
/* Writes 32 characters to `out`; `now_ms` is the wall clock, epoch milliseconds. */
void unique_id_write(char *out, int64_t now_ms);

#endif
