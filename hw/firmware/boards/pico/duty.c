#include "duty.h"

#include <math.h>

static uint32_t rounded(float level, uint32_t most) {
    if (!(level > 0.0f)) return 0;
    return level < (float)most ? (uint32_t)(level + 0.5f) : most;
}

struct onrig_bridge onrig_bridge_of_volts(float volts, float supply_v, uint32_t levels) {
    uint32_t level = rounded(fabsf(volts) / supply_v * (float)levels, levels);
    struct onrig_bridge bridge = {levels, levels};
    if (volts > 0.0f)
        bridge.in2 = levels - level;
    else
        bridge.in1 = levels - level;
    return bridge;
}

uint32_t onrig_level_of_squared_current(
    float squared_a, float coil_ohm, float supply_v, float duty_max, uint32_t levels) {
    if (!(squared_a > 0.0f)) return 0;
    uint32_t most = (uint32_t)(duty_max * (float)levels);
    return rounded(sqrtf(squared_a) * coil_ohm / supply_v * (float)levels, most);
}
