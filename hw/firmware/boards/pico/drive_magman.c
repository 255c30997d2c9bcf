/* Magnetic manipulator: analogue position, four coil drivers with an enable, e-stop. */
#include "../../rigs/magman.h"
#include "drive.h"
#include "duty.h"
#include "pins.h"
#include "rp2040.h"
#include "slope.h"

#define LEVELS (SYS_HZ / MAGMAN_PWM_HZ)
#define COILS 4u
#define POLLS_PER_S (1e6f / (float)ONRIG_POLL_US)

const struct onrig_rig *const onrig_drive_rig = &onrig_magman;
const bool onrig_drive_holds = false; /* a sleeping driver leaves its coil without current */

static const uint32_t coils[COILS] = {MAGMAN_PIN_COIL_1, MAGMAN_PIN_COIL_2, MAGMAN_PIN_COIL_3, MAGMAN_PIN_COIL_4};
static struct onrig_slope slope;

void onrig_drive_start(void) {
    onrig_pin_output(MAGMAN_PIN_ENABLE);
    for (uint32_t i = 0; i < COILS; i++) onrig_pin_pwm(coils[i], LEVELS);
    onrig_pin_input(MAGMAN_PIN_ESTOP, ONRIG_PULL_UP);
    onrig_pin_analog(MAGMAN_PIN_POSITION, ONRIG_PULL_UP);
}

/* On an undriven pin the pull-up gives a position beyond the high wall, which the core treats as a dead sensor. */
static int32_t position(void) {
    float volts = (float)onrig_pin_adc_sum(MAGMAN_PIN_POSITION) * ONRIG_ADC_V_PER_SUM;
    float place_m = (float)MAGMAN_POSITION_AT_0_V_M + (float)MAGMAN_POSITION_M_PER_V * volts;
    return (int32_t)(place_m / (float)onrig_drive_rig->sensors[0].resolution);
}

bool onrig_drive_poll(void) {
    onrig_slope_take(&slope, position());
    return true;
}

bool onrig_drive_sense(int32_t *counts) {
    const struct onrig_channel *sensors = onrig_drive_rig->sensors;
    counts[0] = position();
    float m_s = onrig_slope_of(&slope, MAGMAN_VELOCITY_POLLS) * (float)sensors[0].resolution * POLLS_PER_S;
    counts[1] = (int32_t)(m_s / (float)sensors[1].resolution);
    return true;
}

void onrig_drive_put(const int32_t *counts, bool awake) {
    if (!awake) onrig_pin_put(MAGMAN_PIN_ENABLE, false); /* immediately; the PWM follows in its next period */
    for (uint32_t i = 0; i < COILS; i++) {
        float squared_a = awake ? (float)counts[i] * (float)onrig_drive_rig->actuators[i].resolution : 0.0f;
        onrig_pin_level(coils[i], onrig_level_of_squared_current(
            squared_a, (float)MAGMAN_COIL_OHM, (float)MAGMAN_SUPPLY_V, (float)MAGMAN_DUTY_MAX, LEVELS));
    }
    if (awake) onrig_pin_put(MAGMAN_PIN_ENABLE, true);
}

bool onrig_drive_estop(void) {
    return onrig_pin_high(MAGMAN_PIN_ESTOP);
}
