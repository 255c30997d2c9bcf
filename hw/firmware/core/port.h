/* Functions provided by a board. The core calls these from the context in which the board calls the core, and calls
 * nothing else of the board.
 *
 * The core is not reentrant: a board that samples in a timer interrupt masks that interrupt while the main loop is
 * inside onrig_device_handle and similar functions. None of these may block. Times are microseconds of device time.
 */
#ifndef ONRIG_PORT_H
#define ONRIG_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy.h"

struct onrig_port {
    void *board; /* passed as the first argument */
    float time_scale;
    /* Send a complete frame. What does not fit into the buffer is lost. */
    void (*send)(void *board, const uint8_t *wire, size_t n);
    /* Read all sensors, in counts, at the sample of t_us; false if one of them gives no reading. */
    bool (*sense)(void *board, uint64_t t_us, int32_t *counts);
    /* Output all setpoints at once, in counts. They lie within the rig's limits. */
    void (*actuate)(void *board, uint64_t t_us, const int32_t *counts);
    /* Put a simulated plant into its start state until the next sample; null on a real rig. */
    void (*reset)(void *board, uint64_t t_us, uint64_t seed);
    /* While disarmed, the actuators are released (the drivers sleep) instead of driven to their safe values. */
    bool releases;
    /* The policy built into the device: ONRIG_BUILT_IN_POLICY, or null. */
    const struct onrig_policy *policy;
};

#endif
