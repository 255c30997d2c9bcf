/* Output of the actuators: values in force at the start of the period and now, and the time of the switch.
 *
 * The timing rule of hw/PROTOCOL.md, section 4, with the limits and the clamp.
 */
#ifndef ONRIG_OUTPUT_H
#define ONRIG_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "rig.h"

/* Setpoints in force, in counts. */
struct onrig_setpoint {
    int32_t counts[ONRIG_MAX_ACTUATORS];
    uint32_t answers; /* number of the frame that they answer; 0 for the safe output */
    bool safe;
    bool clamped;
};

struct onrig_output {
    struct onrig_setpoint start;
    struct onrig_setpoint end;
    bool switched;
    uint32_t tau_us; /* of the last switch in this period */
    int32_t low[ONRIG_MAX_ACTUATORS];
    int32_t high[ONRIG_MAX_ACTUATORS];
};

/* Restore the device's own limits. */
void onrig_output_unlimit(struct onrig_output *output, const struct onrig_rig *rig);
/* Tighten the limits of one actuator; false, without a change, if they are empty or wider than the device's own. */
bool onrig_output_limit(
    struct onrig_output *output, const struct onrig_rig *rig, uint8_t index, int32_t low, int32_t high);
/* Begin a period with the safe output in force. */
void onrig_output_restart(struct onrig_output *output, const struct onrig_rig *rig);
/* Output the safe values from tau_us on; if they are already in force, this is not a switch. */
void onrig_output_fall_safe(struct onrig_output *output, const struct onrig_rig *rig, uint32_t tau_us);
/* Clamp setpoints and output them from tau_us on. */
void onrig_output_command(
    struct onrig_output *output, const struct onrig_rig *rig, const int32_t *asked, uint32_t answers, uint32_t tau_us);
/* Carry the output in force into the next period. */
void onrig_output_next_period(struct onrig_output *output);

#endif
