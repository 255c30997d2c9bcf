/* The magnetic manipulator's channels, scales and pins. A test holds them against configs/rigs/magman.yaml.
 *
 * Pins are GPIO numbers of a Raspberry Pi Pico; no bench has seen them yet.
 */
#ifndef ONRIG_RIGS_MAGMAN_H
#define ONRIG_RIGS_MAGMAN_H

/* name, unit, SI units per count, wraps, lowest and highest count of a sensor that is sound */
#define MAGMAN_SENSORS(X) \
    X("position", "m", 1.0e-6, false, -36000, 106000) \
    X("velocity", "m/s", 1.0e-4, false, -50000, 50000)

/* name, unit, SI units per count, lowest, highest and safe count */
#define MAGMAN_ACTUATORS(X) \
    X("current_1", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_2", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_3", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_4", "A^2", 1.0e-5, 0, 60000, 0)

/* Laser distance sensor with an analogue output: 0 V at the low wall, 3 V at the high one. */
#define MAGMAN_POSITION_M_PER_V 4.6667e-2
#define MAGMAN_POSITION_AT_0_V_M -3.5e-2
#define MAGMAN_PIN_POSITION 26

/* Four low-side current regulators, set by a filtered PWM; the squared current is what the wire carries. */
#define MAGMAN_CURRENT_A_PER_DUTY 1.0
#define MAGMAN_CURRENT_MAX_A 0.8
#define MAGMAN_PWM_HZ 100000
#define MAGMAN_PIN_COIL_1 2
#define MAGMAN_PIN_COIL_2 3
#define MAGMAN_PIN_COIL_3 4
#define MAGMAN_PIN_COIL_4 5
#define MAGMAN_PIN_ENABLE 8

/* Second contact of the e-stop; its first one cuts the supply without us. Closed to ground when released. */
#define MAGMAN_PIN_ESTOP 10

#endif
