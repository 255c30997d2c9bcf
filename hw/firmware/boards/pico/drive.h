/* A rig's pins: sensors to counts, counts to actuators. One of drive_*.c stands in an image. */
#ifndef ONRIG_PICO_DRIVE_H
#define ONRIG_PICO_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../rigs/rigs.h"

#define ONRIG_POLL_US 1000u

/* The rig's name and channels. */
extern const struct onrig_rig *const onrig_drive_rig;

/* Pins into their first state: drivers disabled, inputs pulled to where a torn wire is seen. */
void onrig_drive_start(void);
/* Readings between the samples, every ONRIG_POLL_US; false where the drive has to be stopped for good (overcurrent). */
bool onrig_drive_poll(void);
/* The sample: false where a sensor gives no reading. */
bool onrig_drive_sense(int32_t *counts);
/* The safe output is driven: the drivers stay awake from the first arming on, until the board fails. Otherwise they sleep
 * whenever the rig is not armed. */
extern const bool onrig_drive_holds;
/* Put setpoints out; drivers that are not to be awake sleep, whatever the setpoints are. */
void onrig_drive_put(const int32_t *counts, bool awake);
/* The e-stop's second contact: closed to ground when released, so that a torn wire is a pressed one. */
bool onrig_drive_estop(void);

#endif
