#include "slope.h"

void onrig_slope_take(struct onrig_slope *slope, int32_t reading) {
    slope->readings[slope->taken++ % ONRIG_SLOPE_MAX] = reading;
    if (slope->taken == 2 * ONRIG_SLOPE_MAX) slope->taken = ONRIG_SLOPE_MAX;
}

float onrig_slope_of(const struct onrig_slope *slope, uint32_t n) {
    int64_t weighted = 0;
    if (slope->taken < n) return 0.0f;
    uint32_t first = slope->taken - n;
    uint32_t origin = (uint32_t)slope->readings[first % ONRIG_SLOPE_MAX];
    for (uint32_t i = 0; i < n; i++) {
        int32_t since = (int32_t)((uint32_t)slope->readings[(first + i) % ONRIG_SLOPE_MAX] - origin);
        weighted += (int64_t)(2 * (int32_t)i - (int32_t)n + 1) * since;
    }
    return 6.0f * (float)weighted / (float)(n * (n * n - 1));
}
