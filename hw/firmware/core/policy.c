#include "policy.h"

#include <string.h>

#define TURN 6.2833 /* rad, rounded up */

static bool agrees(const struct onrig_signal *signal, const struct onrig_channel *channel) {
    /* The host wraps an angle of several turns, the device does not. */
    bool wrapped = !channel->wrap || ((double)channel->high - channel->low + 1.0) * channel->resolution <= TURN;
    return wrapped && strcmp(signal->name, channel->name) == 0 && strcmp(signal->unit, channel->unit) == 0;
}

bool onrig_policy_fits(const struct onrig_policy *policy, const struct onrig_rig *rig) {
    if (policy->n_observations != rig->n_sensors || policy->n_actions != rig->n_actuators) return false;
    for (uint8_t i = 0; i < rig->n_sensors; i++)
        if (!agrees(&policy->signals[i], &rig->sensors[i])) return false;
    for (uint8_t i = 0; i < rig->n_actuators; i++)
        if (!agrees(&policy->signals[rig->n_sensors + i], &rig->actuators[i])) return false;
    return true;
}

void onrig_policy_observe(const struct onrig_rig *rig, const int32_t *sensors, float *observation) {
    for (uint8_t i = 0; i < rig->n_sensors; i++) observation[i] = (float)(sensors[i] * rig->sensors[i].resolution);
}

bool onrig_policy_counts(const struct onrig_rig *rig, const float *action, int32_t *counts) {
    for (uint8_t i = 0; i < rig->n_actuators; i++) {
        double count = (double)action[i] / rig->actuators[i].resolution;
        if (count - count != 0.0) return false; /* NaN or infinite */
        double bounded = count < -2147483647.0 ? -2147483647.0 : count > 2147483647.0 ? 2147483647.0 : count;
        counts[i] = (int32_t)(bounded < 0.0 ? bounded - 0.5 : bounded + 0.5);
    }
    return true;
}
