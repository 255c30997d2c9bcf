#include "rigs.h"

#include "magman.h"
#include "pendulum.h"

#define LEASE_MAX 255u
#define PERIOD_MIN_US 1000u
#define PERIOD_MAX_US 1000000u

#define SENSOR(name_, unit_, resolution_, wrap_, low_, high_) \
    {.name = (name_), .unit = (unit_), .resolution = (resolution_), .wrap = (wrap_), .low = (low_), .high = (high_)},
#define ACTUATOR(name_, unit_, resolution_, low_, high_, safe_) \
    {.name = (name_), .unit = (unit_), .resolution = (resolution_), .low = (low_), .high = (high_), .safe = (safe_)},
#define COUNT(array) ((uint8_t)(sizeof(array) / sizeof(array)[0]))
#ifdef ONRIG_RIG_NAME /* make flash NAME=...: a user's rig */
#define NAMED(name_) ONRIG_RIG_NAME
typedef char onrig_name_is_too_long[sizeof(ONRIG_RIG_NAME) <= ONRIG_NAME_BYTES + 1u ? 1 : -1];
#else
#define NAMED(name_) name_
#endif
#define RIG(name_, sensors_, actuators_) \
    { \
        .name = NAMED(name_), .sensors = (sensors_), .actuators = (actuators_), .n_sensors = COUNT(sensors_), \
        .n_actuators = COUNT(actuators_), .lease_max = LEASE_MAX, .period_min_us = PERIOD_MIN_US, \
        .period_max_us = PERIOD_MAX_US \
    }

static const struct onrig_channel pendulum_sensors[] = {PENDULUM_SENSORS(SENSOR)};
static const struct onrig_channel pendulum_actuators[] = {PENDULUM_ACTUATORS(ACTUATOR)};
static const struct onrig_channel magman_sensors[] = {MAGMAN_SENSORS(SENSOR)};
static const struct onrig_channel magman_actuators[] = {MAGMAN_ACTUATORS(ACTUATOR)};

const struct onrig_rig onrig_pendulum = RIG("pendulum", pendulum_sensors, pendulum_actuators);
const struct onrig_rig onrig_pendulum_hw = RIG("pendulum-hw", pendulum_sensors, pendulum_actuators);
const struct onrig_rig onrig_magman = RIG("magman", magman_sensors, magman_actuators);
