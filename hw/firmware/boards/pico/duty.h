/* How commands become duty: levels of a PWM, of so many a period. Feed-forward, nothing is measured. */
#ifndef ONRIG_PICO_DUTY_H
#define ONRIG_PICO_DUTY_H

#include <stdint.h>

struct onrig_bridge {
    uint32_t in1;
    uint32_t in2;
};

/* Inputs of an H-bridge that put so many volts on the motor: driving, and in the rest of each period braking, so that
 * the mean voltage is linear in the duty. Both are high at 0 V, which shorts the motor as 0 V does. Clamped to the supply. */
struct onrig_bridge onrig_bridge_of_volts(float volts, float supply_v, uint32_t levels);

/* Level that drives the square root of so many square amperes through a coil once its inductance has given way: at most
 * duty_max of the supply, none for less than nothing. */
uint32_t onrig_level_of_squared_current(float squared_a, float coil_ohm, float supply_v, float duty_max, uint32_t levels);

#endif
