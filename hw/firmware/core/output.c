#include "output.h"

#include <string.h>

void onrig_output_unlimit(struct onrig_output *output, const struct onrig_rig *rig) {
    for (uint8_t i = 0; i < rig->n_actuators; i++) {
        output->low[i] = rig->actuators[i].low;
        output->high[i] = rig->actuators[i].high;
    }
}

bool onrig_output_limit(
    struct onrig_output *output, const struct onrig_rig *rig, uint8_t index, int32_t low, int32_t high) {
    if (index >= rig->n_actuators || low > high) return false;
    if (low < rig->actuators[index].low || high > rig->actuators[index].high) return false;
    output->low[index] = low;
    output->high[index] = high;
    return true;
}

static void set_safe(struct onrig_setpoint *setpoint, const struct onrig_rig *rig) {
    memset(setpoint, 0, sizeof *setpoint);
    for (uint8_t i = 0; i < rig->n_actuators; i++) setpoint->counts[i] = rig->actuators[i].safe;
    setpoint->safe = true;
}

void onrig_output_restart(struct onrig_output *output, const struct onrig_rig *rig) {
    set_safe(&output->end, rig);
    onrig_output_next_period(output);
}

static void switch_at(struct onrig_output *output, uint32_t tau_us) {
    output->switched = true;
    output->tau_us = tau_us;
}

void onrig_output_fall_safe(struct onrig_output *output, const struct onrig_rig *rig, uint32_t tau_us) {
    if (output->end.safe) return;
    set_safe(&output->end, rig);
    switch_at(output, tau_us);
}

void onrig_output_command(
    struct onrig_output *output, const struct onrig_rig *rig, const int32_t *asked, uint32_t answers, uint32_t tau_us) {
    struct onrig_setpoint *end = &output->end;
    end->answers = answers;
    end->safe = false;
    end->clamped = false;
    for (uint8_t i = 0; i < rig->n_actuators; i++) {
        int32_t low = output->low[i], high = output->high[i];
        end->counts[i] = asked[i] < low ? low : asked[i] > high ? high : asked[i];
        end->clamped = end->clamped || end->counts[i] != asked[i];
    }
    switch_at(output, tau_us);
}

void onrig_output_next_period(struct onrig_output *output) {
    output->start = output->end;
    output->switched = false;
}
