#include "policy.h"

#include <string.h>

/* Single precision throughout: 24 bits are more than a sensor has, and boards without doubles in hardware are slow. */
#define TURN 6.2833f /* rad, rounded up */
#define TOO_FAR 2147483648.0f /* the first counts that do not fit */
#define LARGEST 3.40282347e+38f

static bool agrees(const struct onrig_signal *signal, const struct onrig_channel *channel) {
    /* The host wraps an angle of several turns, the device does not. */
    bool wrapped = !channel->wrap || ((float)channel->high - (float)channel->low) * (float)channel->resolution <= TURN;
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
    for (uint8_t i = 0; i < rig->n_sensors; i++) observation[i] = (float)sensors[i] * (float)rig->sensors[i].resolution;
}

bool onrig_policy_counts(const struct onrig_rig *rig, const float *action, int32_t *counts) {
    for (uint8_t i = 0; i < rig->n_actuators; i++) {
        float count = action[i] / (float)rig->actuators[i].resolution;
        if (!(count >= -LARGEST && count <= LARGEST)) return false;
        count += count < 0.0f ? -0.5f : 0.5f;
        counts[i] = count <= -TOO_FAR ? INT32_MIN : count >= TOO_FAR ? INT32_MAX : (int32_t)count;
    }
    return true;
}
