/* The device as a state machine in device time: bytes and sensor counts in, bytes and actuator counts out.
 *
 * It touches no hardware and reads no clock. A board (port.h) owns one, passes each message with its time of arrival
 * and calls onrig_device_tick at least once per period; times never decrease. Samples that are due are processed
 * before anything else at that time, so a message never precedes the end of its period.
 *
 * In lockstep (time_scale 0) the board passes sampled_us as the time, and ticks one period later whenever
 * onrig_device_awaits_sample returns true.
 */
#ifndef ONRIG_DEVICE_H
#define ONRIG_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "framing.h"
#include "lease.h"
#include "messages.h"
#include "output.h"
#include "policy.h"
#include "port.h"
#include "rig.h"

struct onrig_device {
    const struct onrig_rig *rig;
    const struct onrig_port *port;
    uint32_t boot_id;
    uint64_t sampled_us; /* time of the latest sample, or of CONFIGURE: start of the current period */
    uint32_t period_us;  /* 0 until configured */
    uint32_t frame;      /* number of the latest frame; 0 before the first */
    uint8_t fault;       /* the most severe latched fault */
    bool armed;
    bool answered; /* a command was accepted in this period */
    bool first;    /* a RESET awaits its frame */
    bool evaluates; /* the policy acts, as long as the device is armed and the host renews the lease */
    bool asked;     /* the policy had its turn in this period */
    bool acted;     /* and its action was applied */
    bool acted_last; /* likewise in the period before */
    bool estop_pressed;
    const struct onrig_policy *policy; /* null if there is none for this rig */
    int32_t sensors[ONRIG_MAX_SENSORS]; /* the latest sample */
    struct onrig_output output;
    struct onrig_lease lease;
    uint8_t request[ONRIG_MAX_BODY]; /* the last request, and its answer */
    size_t request_n;
    uint8_t response[ONRIG_RESPONSE_BYTES];
    size_t response_n;
};

/* Power-on: outputs the safe values and sends one HELLO; unconfigured. boot_id must differ at each start. The rig and
 * the port remain owned by the board. */
void onrig_device_start(
    struct onrig_device *device, const struct onrig_rig *rig, const struct onrig_port *port, uint32_t boot_id);

/* Process all samples that are due. */
void onrig_device_tick(struct onrig_device *device, uint64_t now_us);
/* Process one message, type byte included, as found by onrig_reader_take. */
void onrig_device_handle(struct onrig_device *device, const uint8_t *body, size_t n, uint64_t now_us);

/* The policy's turn, at most once per sample: whether there is one, and its observation. A board that masks an
 * interrupt around the core releases it while the network runs:
 *
 *     if (onrig_device_turn(&device, &turn)) { device.policy->act(turn.observation, turn.action);
 *                                              onrig_device_act(&device, &turn, now_us); } */
bool onrig_device_turn(struct onrig_device *device, struct onrig_turn *turn);
/* Apply the policy's action; dropped, like a late command, if the next sample has been taken. */
void onrig_device_act(struct onrig_device *device, const struct onrig_turn *turn, uint64_t now_us);
/* All three, for a board whose time does not pass meanwhile. */
void onrig_device_evaluate(struct onrig_device *device, uint64_t now_us);

/* Set the e-stop input, at each change or periodically. */
void onrig_device_estop(struct onrig_device *device, bool pressed, uint64_t now_us);
/* Report that the host has closed the connection, if the board can detect it. */
void onrig_device_link_lost(struct onrig_device *device, uint64_t now_us);
/* Report an impossible state of the board; only a restart releases this fault. */
void onrig_device_fail(struct onrig_device *device, uint64_t now_us);

/* In lockstep: whether the next sample has its command, or follows a RESET. */
bool onrig_device_awaits_sample(const struct onrig_device *device);

/* -- for the core's own modules ---------------------------------------------------------------------------------- */

uint32_t onrig_device_next_frame(const struct onrig_device *device);
/* Microseconds since the period began. */
uint32_t onrig_device_tau_us(const struct onrig_device *device, uint64_t now_us);
void onrig_device_send(const struct onrig_device *device, const uint8_t *body, size_t n);
/* Output the safe values at once; renews the lease. */
void onrig_device_disarm(struct onrig_device *device, uint64_t now_us);
/* Process a REQUEST (requests.c). */
void onrig_device_request(struct onrig_device *device, const uint8_t *body, size_t n, uint64_t now_us);

#endif
