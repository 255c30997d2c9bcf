/* Pins of a rig: sensors to counts, counts to actuators. An image contains one of drive_*.c. */
#ifndef ONRIG_PICO_DRIVE_H
#define ONRIG_PICO_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../rigs/rigs.h"

#define ONRIG_POLL_US 1000u

/* The rig's name and channels. */
extern const struct onrig_rig *const onrig_drive_rig;

/* Set pins to their initial state: drivers disabled, inputs pulled to the level that reveals a broken wire. */
void onrig_drive_start(void);
/* Take readings between the samples, every ONRIG_POLL_US; false if the drive must stop for good (overcurrent). */
bool onrig_drive_poll(void);
/* Take the sample; false if a sensor gives no reading. */
bool onrig_drive_sense(int32_t *counts);
/* Whether the safe output is driven: drivers then remain awake from the first arming until the board fails. Otherwise
 * they sleep whenever the rig is not armed. */
extern const bool onrig_drive_holds;
/* Output setpoints; drivers that must not be awake sleep, whatever the setpoints. */
void onrig_drive_put(const int32_t *counts, bool awake);
/* Second contact of the e-stop: closed to ground when released, so that a broken wire reads as pressed. */
bool onrig_drive_estop(void);

#endif
