#include "unique_id.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

static char fixed_part[20];
static int64_t month_start_ms;
static uint16_t counter;

static void write_hex(char *out, uint64_t value, int digits)
{
    static const char alphabet[] = "0123456789ABCDEF";
    for (int i = digits - 1; i >= 0; i--) {
        out[i] = alphabet[value & 15];
        value >>= 4;
    }
}

void unique_id_open(uint32_t ipv4_host_order)
{
    struct timespec now;
    struct tm month;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &month);
    month.tm_mday = 1;
    month.tm_hour = month.tm_min = month.tm_sec = 0;
    month.tm_isdst = -1;
    month_start_ms = (int64_t)mktime(&month) * 1000;
    write_hex(fixed_part, ipv4_host_order, 8);
    write_hex(fixed_part + 8, (uint16_t)getpid(), 4);
    /* In Java a hash code that differs between processes; here the start time does that. */
    write_hex(fixed_part + 12, (uint32_t)(now.tv_nsec ^ (now.tv_sec << 7)), 8);
}

void unique_id_write(char *out, int64_t now_ms)
{
    memcpy(out, fixed_part, sizeof fixed_part);
    write_hex(out + 20, (uint32_t)(now_ms - month_start_ms), 8);
    write_hex(out + 28, counter++, 4);
}
