/* Description of a device's rig: channels with units, resolutions and limits (hw/PROTOCOL.md, section 2). */
#ifndef ONRIG_RIG_H
#define ONRIG_RIG_H

#include <stdbool.h>
#include <stdint.h>

#define ONRIG_MAX_COUNTS 56u /* sensors plus twice the actuators: the maximum that fits into a frame */
#define ONRIG_MAX_SENSORS 54u
#define ONRIG_MAX_ACTUATORS 27u
#define ONRIG_NAME_BYTES 16u
#define ONRIG_UNIT_BYTES 12u

struct onrig_channel {
    const char *name;
    const char *unit;
    double resolution; /* SI units per count */
    bool wrap;         /* an angle */
    int32_t low;       /* counts: a sensor outside them is dead, an actuator is clamped to them */
    int32_t high;
    int32_t safe; /* 0 for a sensor */
};

struct onrig_rig {
    const char *name;
    const struct onrig_channel *sensors;
    const struct onrig_channel *actuators;
    uint8_t n_sensors;
    uint8_t n_actuators;
    uint8_t lease_max; /* periods */
    uint32_t period_min_us;
    uint32_t period_max_us;
};

#endif
