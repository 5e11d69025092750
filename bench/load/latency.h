/* A histogram of durations in nanoseconds: exact below 256 ns, then 128 buckets to each doubling, so that
 * a percentile is at most 0.8 % away from the sample it stands for. No sample is left out. */
#ifndef LATENCY_H
#define LATENCY_H

#include <stdint.h>

void latency_record(int64_t nanoseconds);
/* The duration below or at which `fraction` (0..1) of all samples lie; 0 without samples. */
int64_t latency_percentile(double fraction);
int64_t latency_max(void);
uint64_t latency_samples(void);

#endif
