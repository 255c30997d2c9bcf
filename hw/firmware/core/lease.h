/* The command lease: number of periods that may end without an accepted command (hw/PROTOCOL.md, section 4). */
#ifndef ONRIG_LEASE_H
#define ONRIG_LEASE_H

#include <stdbool.h>
#include <stdint.h>

struct onrig_lease {
    uint8_t periods; /* 0 until configured */
    uint8_t missed;
    bool fresh; /* the current period is a partial one and does not count */
};

static inline void onrig_lease_renew(struct onrig_lease *lease) {
    lease->missed = 0;
    lease->fresh = true;
}

/* A renewal that answers a frame which is so many periods old, in a period that ends without another answer. */
static inline void onrig_lease_extend(struct onrig_lease *lease, uint32_t age) {
    if (lease->missed >= age) lease->missed = (uint8_t)(age - 1u);
}

/* Count a period that ends; true if the lease has expired. */
static inline bool onrig_lease_end_period(struct onrig_lease *lease, bool answered) {
    if (answered || lease->fresh)
        lease->missed = 0;
    else if (lease->missed < lease->periods)
        lease->missed++;
    lease->fresh = false;
    return lease->missed >= lease->periods;
}

/* Periods that may still end without a command, the current one included. */
static inline uint8_t onrig_lease_left(const struct onrig_lease *lease) {
    return (uint8_t)(lease->periods - lease->missed);
}

#endif
