/* The magnetic manipulator's channels, scales and pins. A test compares them with configs/rigs/magman.yaml.
 *
 * Pins are GPIO numbers of a Raspberry Pi Pico; not yet tested on a bench.
 */
#ifndef ONRIG_RIGS_MAGMAN_H
#define ONRIG_RIGS_MAGMAN_H

/* name, unit, SI units per count, wraps, lowest and highest valid count of the sensor */
#define MAGMAN_SENSORS(X) \
    X("position", "m", 1.0e-6, false, -36000, 106000) \
    X("velocity", "m/s", 1.0e-4, false, -50000, 50000)

/* name, unit, SI units per count, lowest, highest and safe count */
#define MAGMAN_ACTUATORS(X) \
    X("current_1", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_2", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_3", "A^2", 1.0e-5, 0, 60000, 0) \
    X("current_4", "A^2", 1.0e-5, 0, 60000, 0)

/* Distance sensor with an analogue output: 0 V at the low wall, 3 V at the high one. The pin's pull-up (50 to 80 kOhm)
 * takes it beyond the high wall if the cable is broken; with a sensor of 100 Ohm it adds 0.3 mm at 0 V. */
#define MAGMAN_POSITION_M_PER_V 4.6667e-2
#define MAGMAN_POSITION_AT_0_V_M -3.5e-2
#define MAGMAN_VELOCITY_POLLS 16
#define MAGMAN_PIN_POSITION 26

/* Four coil drivers with a common enable. The current is not measured: duty = current * resistance / supply, so a coil
 * that is 30 K warmer gets a tenth less current and pulls a fifth less. A resistor at each driver sets its own current
 * limit. A pull-down at each input, so that a board in reset or in its bootloader drives nothing. */
#define MAGMAN_SUPPLY_V 12.0
#define MAGMAN_COIL_OHM 10.0
#define MAGMAN_CURRENT_MAX_A 0.8
#define MAGMAN_DUTY_MAX 0.67
#define MAGMAN_PWM_HZ 20000
#define MAGMAN_PIN_COIL_1 8
#define MAGMAN_PIN_COIL_2 9
#define MAGMAN_PIN_COIL_3 10
#define MAGMAN_PIN_COIL_4 11
#define MAGMAN_PIN_ENABLE 6

/* Second contact of the e-stop; its first one cuts the supply independently. Closed to ground when released. */
#define MAGMAN_PIN_ESTOP 7

#endif
