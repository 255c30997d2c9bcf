/* A device with a simulated rig: the core, a plant, and quantising sensors. Boards add time and a connection. */
#ifndef ONRIG_SIM_SIMULATOR_H
#define ONRIG_SIM_SIMULATOR_H

#include "../../core/device.h"
#include "plant.h"

#define ONRIG_SIM_MAX_ACTUATORS 4

struct onrig_simulator {
    struct onrig_device device;
    struct onrig_reader reader;
    struct onrig_port port;
    const struct onrig_plant *plant;
    double state[2];
    double action[ONRIG_SIM_MAX_ACTUATORS];
    bool released;         /* the actuators, since moved_us */
    uint64_t moved_us;     /* time to which the plant has been simulated */
    bool at_start;         /* after RESET, until the next sample */
    bool sensors_dead;     /* injected fault */
    void *line;            /* argument of send */
    void (*send)(void *line, const uint8_t *wire, size_t n);
};

/* Power on the rig of that name; false if there is none. time_scale is announced in the hello, 0 for lockstep. */
bool onrig_simulator_start(
    struct onrig_simulator *simulator, const char *rig, float time_scale, uint32_t boot_id, void *line,
    void (*send)(void *line, const uint8_t *wire, size_t n));
/* The effective time; in lockstep it is frozen, whatever the clock shows. */
uint64_t onrig_simulator_now_us(const struct onrig_simulator *simulator, uint64_t now_us);
/* Process received bytes and, in lockstep, the samples that they trigger. */
void onrig_simulator_bytes(struct onrig_simulator *simulator, const uint8_t *bytes, size_t n, uint64_t now_us);

#endif
