/* Rigs supported by this firmware. */
#ifndef ONRIG_RIGS_H
#define ONRIG_RIGS_H

#include "../core/rig.h"

extern const struct onrig_rig onrig_pendulum;    /* with the inertia printed in the paper */
extern const struct onrig_rig onrig_pendulum_hw; /* with the inertia of the real device */
extern const struct onrig_rig onrig_magman;

#endif
