#include "latency.h"

#define SUB_BITS 7
#define SUB_COUNT (1 << SUB_BITS)
#define BUCKETS ((64 - SUB_BITS) * SUB_COUNT)

static uint64_t buckets[BUCKETS];
static uint64_t samples;
static int64_t longest;

static int bucket_of(uint64_t value)
{
    if (value < 2 * SUB_COUNT)
        return (int)value;
    int shift = 63 - __builtin_clzll(value) - SUB_BITS;
    return shift * SUB_COUNT + (int)(value >> shift);
}

static int64_t middle_of(int bucket)
{
    if (bucket < 2 * SUB_COUNT)
        return bucket;
    int shift = bucket / SUB_COUNT - 1;
    int64_t low = (int64_t)(bucket - shift * SUB_COUNT) << shift;
    return low + ((1LL << shift) >> 1);
}

void latency_record(int64_t nanoseconds)
{
    if (nanoseconds < 0)
        nanoseconds = 0;
    buckets[bucket_of((uint64_t)nanoseconds)]++;
    samples++;
    if (nanoseconds > longest)
        longest = nanoseconds;
}

int64_t latency_percentile(double fraction)
{
    uint64_t wanted = (uint64_t)(fraction * (double)samples + 0.5), seen = 0;
    if (wanted == 0)
        wanted = 1;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += buckets[bucket];
        if (seen >= wanted)
            return middle_of(bucket);
    }
    return 0;
}

int64_t latency_max(void) { return longest; }

uint64_t latency_samples(void) { return samples; }
