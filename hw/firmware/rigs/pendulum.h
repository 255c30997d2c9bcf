/* The pendulum's channels, scales and pins. A test compares them with configs/rigs/pendulum*.yaml.
 *
 * Pins are GPIO numbers of a Raspberry Pi Pico; not yet tested on a bench.
 */
#ifndef ONRIG_RIGS_PENDULUM_H
#define ONRIG_RIGS_PENDULUM_H

/* name, unit, SI units per count, wraps, lowest and highest valid count of the sensor */
#define PENDULUM_SENSORS(X) \
    X("angle", "rad", 3.834951969714103e-4, true, -8192, 8191) \
    X("velocity", "rad/s", 0.001, false, -200000, 200000)

/* name, unit, SI units per count, lowest, highest and safe count */
#define PENDULUM_ACTUATORS(X) X("voltage", "V", 1.0e-4, -30000, 30000, 0)

/* Quadrature encoder, four counts per line; angle 0 is the hanging position at start-up. The sign is -1 if A follows B
 * in the positive direction. Velocity: slope of the last readings, one per millisecond. */
#define PENDULUM_ENCODER_COUNTS_PER_TURN 16384
#define PENDULUM_ENCODER_SIGN 1
#define PENDULUM_VELOCITY_POLLS 8
#define PENDULUM_PIN_ENCODER_A 2
#define PENDULUM_PIN_ENCODER_B 3

/* H-bridge with one input per direction, which brakes if both are high, and nSLEEP. A pull-down at each of the three,
 * so that a board in reset or in its bootloader drives nothing. */
#define PENDULUM_SUPPLY_V 12.0
#define PENDULUM_MOTOR_SIGN 1
#define PENDULUM_PWM_HZ 20000
#define PENDULUM_PIN_IN1 4
#define PENDULUM_PIN_IN2 5
#define PENDULUM_PIN_ENABLE 6
/* While disarmed, the motor brakes through the bridge, once it has been armed. false: the driver sleeps and the motor
 * coasts, which leaves the shield much less room (runtime/SAFETY.md); the rig then needs safe_output: released. */
#define PENDULUM_BRAKES_DISARMED true

/* Motor current, through a shunt and a low-pass well below the PWM frequency. */
#define PENDULUM_CURRENT_A_PER_V 1.0
#define PENDULUM_CURRENT_MAX_A 1.5
#define PENDULUM_PIN_CURRENT 26

/* Second contact of the e-stop; its first one cuts the supply independently. Closed to ground when released. */
#define PENDULUM_PIN_ESTOP 7

#endif
