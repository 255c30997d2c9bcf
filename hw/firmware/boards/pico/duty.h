/* Conversion of commands to PWM duty, in levels per period. Feed-forward, without measurement. */
#ifndef ONRIG_PICO_DUTY_H
#define ONRIG_PICO_DUTY_H

#include <stdint.h>

struct onrig_bridge {
    uint32_t in1;
    uint32_t in2;
};

/* Input levels of an H-bridge for a motor voltage in volts: it drives, and brakes for the rest of each period, so that
 * the mean voltage is linear in the duty. Both are high at 0 V, which shorts the motor. Clamped to the supply. */
struct onrig_bridge onrig_bridge_of_volts(float volts, float supply_v, uint32_t levels);

/* Level that drives the square root of a value in A^2 through a coil in steady state: at most duty_max of the supply, 0
 * for a negative value. */
uint32_t onrig_level_of_squared_current(float squared_a, float coil_ohm, float supply_v, float duty_max, uint32_t levels);

#endif
