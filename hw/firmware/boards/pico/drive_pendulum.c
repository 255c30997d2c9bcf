/* Pendulum: quadrature encoder, H-bridge with two inputs and nSLEEP, current sense, e-stop. */
#include "../../rigs/pendulum.h"
#include "drive.h"
#include "duty.h"
#include "pins.h"
#include "quadrature.h"
#include "rp2040.h"
#include "slope.h"

#define LEVELS (SYS_HZ / PENDULUM_PWM_HZ)
#define RESOLUTION(i) ((float)onrig_drive_rig->sensors[i].resolution)
#define POLLS_PER_S (1e6f / (float)ONRIG_POLL_US)

#ifndef ONRIG_PICO_RIG
#define ONRIG_PICO_RIG onrig_pendulum_hw
#endif
const struct onrig_rig *const onrig_drive_rig = &ONRIG_PICO_RIG;
const bool onrig_drive_holds = PENDULUM_BRAKES_DISARMED;

static struct onrig_slope slope;
static bool counting; /* the decoder responds */
static int32_t angle; /* relative to the start, where the pendulum hangs down; within one turn */

void onrig_drive_start(void) {
    onrig_pin_output(PENDULUM_PIN_ENABLE);
    onrig_pin_pwm(PENDULUM_PIN_IN1, LEVELS);
    onrig_pin_pwm(PENDULUM_PIN_IN2, LEVELS);
    onrig_pin_input(PENDULUM_PIN_ESTOP, ONRIG_PULL_UP);
    onrig_pin_input(PENDULUM_PIN_ENCODER_A, ONRIG_PULL_UP);
    onrig_pin_input(PENDULUM_PIN_ENCODER_B, ONRIG_PULL_UP);
    onrig_pin_analog(PENDULUM_PIN_CURRENT, ONRIG_PULL_NONE);
    onrig_quadrature_start(PENDULUM_PIN_ENCODER_A);
}

/* Count in the rig's direction, with wrap-around; the angle follows it. */
static bool turned(int32_t *count) {
    static bool begun;
    static uint32_t before;
    if (!onrig_quadrature_read(count)) return false;
    uint32_t now = (uint32_t)PENDULUM_ENCODER_SIGN * (uint32_t)*count;
    if (!begun) before = now; /* the decoder may have counted one edge at start-up */
    begun = true;
    angle = onrig_quadrature_wrapped(angle + (int32_t)(now - before), PENDULUM_ENCODER_COUNTS_PER_TURN);
    before = now;
    *count = (int32_t)now;
    return true;
}

bool onrig_drive_poll(void) {
    int32_t count;
    counting = turned(&count);
    if (counting) onrig_slope_take(&slope, count);
    float sense_v = (float)onrig_pin_adc_sum(PENDULUM_PIN_CURRENT) * ONRIG_ADC_V_PER_SUM;
    return sense_v * (float)PENDULUM_CURRENT_A_PER_V <= (float)PENDULUM_CURRENT_MAX_A;
}

bool onrig_drive_sense(int32_t *counts) {
    int32_t count;
    if (!counting || !turned(&count)) return false;
    counts[0] = angle;
    float rad_s = onrig_slope_of(&slope, PENDULUM_VELOCITY_POLLS) * RESOLUTION(0) * POLLS_PER_S;
    counts[1] = (int32_t)(rad_s / RESOLUTION(1));
    return true;
}

void onrig_drive_put(const int32_t *counts, bool awake) {
    float volts = (float)counts[0] * (float)onrig_drive_rig->actuators[0].resolution * (float)PENDULUM_MOTOR_SIGN;
    struct onrig_bridge bridge = {0, 0};
    if (!awake) onrig_pin_put(PENDULUM_PIN_ENABLE, false); /* immediately; the PWM follows in its next period */
    if (awake) bridge = onrig_bridge_of_volts(volts, (float)PENDULUM_SUPPLY_V, LEVELS);
    onrig_pin_level(PENDULUM_PIN_IN1, bridge.in1);
    onrig_pin_level(PENDULUM_PIN_IN2, bridge.in2);
    if (awake) onrig_pin_put(PENDULUM_PIN_ENABLE, true);
}

bool onrig_drive_estop(void) {
    return onrig_pin_high(PENDULUM_PIN_ESTOP);
}
