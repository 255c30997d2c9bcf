/* The rigs that a device of this firmware can be. */
#ifndef ONRIG_RIGS_H
#define ONRIG_RIGS_H

#include "../core/rig.h"

extern const struct onrig_rig onrig_pendulum;    /* with the inertia that the paper prints */
extern const struct onrig_rig onrig_pendulum_hw; /* with that of the real device */
extern const struct onrig_rig onrig_magman;

#endif
