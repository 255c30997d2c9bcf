/* Velocity of a quantity read at equal intervals: least-squares slope of its last readings. */
#ifndef ONRIG_PICO_SLOPE_H
#define ONRIG_PICO_SLOPE_H

#include <stdint.h>

#define ONRIG_SLOPE_MAX 32u

struct onrig_slope {
    int32_t readings[ONRIG_SLOPE_MAX]; /* ring buffer; readings may wrap around */
    uint32_t taken;
};

void onrig_slope_take(struct onrig_slope *slope, int32_t reading);
/* Counts per interval over the last n readings (2 to ONRIG_SLOPE_MAX); 0 until there are n. The lag is (n - 1) / 2
 * intervals plus the age of the last reading; noise of s counts appears as
 * s * sqrt(12 / (n * (n * n - 1))). */
float onrig_slope_of(const struct onrig_slope *slope, uint32_t n);

#endif
