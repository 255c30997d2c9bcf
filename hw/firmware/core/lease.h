/* The command lease: how many periods may end without an accepted command (hw/PROTOCOL.md, section 4). */
#ifndef ONRIG_LEASE_H
#define ONRIG_LEASE_H

#include <stdbool.h>
#include <stdint.h>

struct onrig_lease {
    uint8_t periods; /* 0 until configured */
    uint8_t missed;
    bool fresh; /* the period under way is part of one only and does not count */
};

static inline void onrig_lease_renew(struct onrig_lease *lease) {
    lease->missed = 0;
    lease->fresh = true;
}

/* Account for a period that ends; true when the lease has run out. */
static inline bool onrig_lease_end_period(struct onrig_lease *lease, bool answered) {
    if (answered || lease->fresh)
        lease->missed = 0;
    else if (lease->missed < lease->periods)
        lease->missed++;
    lease->fresh = false;
    return lease->missed >= lease->periods;
}

/* Periods that may still end without a command, the one under way included. */
static inline uint8_t onrig_lease_left(const struct onrig_lease *lease) {
    return (uint8_t)(lease->periods - lease->missed);
}

#endif
