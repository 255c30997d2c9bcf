/* What a board provides. The core calls these from wherever the board calls the core, and nothing else of the board.
 *
 * The core is not reentrant: a board that samples in a timer interrupt masks that interrupt while the main loop is
 * inside onrig_device_handle (and the like). None of these may block. Times are microseconds of device time.
 */
#ifndef ONRIG_PORT_H
#define ONRIG_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct onrig_port {
    void *board; /* handed back as the first argument */
    float time_scale;
    /* Send a whole frame. What the line does not take is lost. */
    void (*send)(void *board, const uint8_t *wire, size_t n);
    /* Read all sensors, in counts, at the sample of t_us; false where one of them gives no reading. */
    bool (*sense)(void *board, uint64_t t_us, int32_t *counts);
    /* Put out all setpoints at once, in counts. They lie within the rig's limits. */
    void (*actuate)(void *board, uint64_t t_us, const int32_t *counts);
    /* Put a simulated plant into its start state, where it stays until the next sample; null on a real rig. */
    void (*reset)(void *board, uint64_t t_us, uint64_t seed);
    /* Disarmed, the actuators are released (the drivers sleep) instead of driven to their safe values. */
    bool releases;
};

#endif
