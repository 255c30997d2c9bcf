#include "simulator.h"

#include <math.h>
#include <string.h>

#include "../../rigs/rigs.h"

#define SUBSTEPS 2u /* per period, as in sim/plants */

static void move(struct onrig_simulator *simulator, uint64_t t_us) {
    uint32_t period_us = simulator->device.period_us;
    if (t_us <= simulator->moved_us) return;
    uint64_t duration_us = t_us - simulator->moved_us;
    simulator->moved_us = t_us;
    if (period_us == 0 || simulator->at_start) return;
    unsigned substeps = (unsigned)((SUBSTEPS * duration_us + period_us - 1) / period_us);
    onrig_plant_advance(
        simulator->plant, simulator->state, simulator->released ? NULL : simulator->action,
        (double)duration_us * 1e-6, substeps);
}

/* Arming outputs nothing: the drivers wake at the next sample. */
static void follow(struct onrig_simulator *simulator) {
    simulator->released = simulator->port.releases && !simulator->device.armed;
}

static void actuate(void *board, uint64_t t_us, const int32_t *counts) {
    struct onrig_simulator *simulator = board;
    const struct onrig_rig *rig = simulator->device.rig;
    move(simulator, t_us);
    for (uint8_t i = 0; i < rig->n_actuators; i++)
        simulator->action[i] = counts[i] * rig->actuators[i].resolution;
    follow(simulator);
}

static int32_t quantised(const struct onrig_channel *sensor, double value) {
    double count = rint(value / sensor->resolution);
    double turn = (double)sensor->high - sensor->low + 1.0;
    if (sensor->wrap) count -= turn * floor((count - sensor->low) / turn);
    return count < INT32_MIN ? INT32_MIN : count > INT32_MAX ? INT32_MAX : (int32_t)count;
}

static bool sense(void *board, uint64_t t_us, int32_t *counts) {
    struct onrig_simulator *simulator = board;
    move(simulator, t_us);
    follow(simulator);
    simulator->at_start = false;
    simulator->plant->constrain(simulator->state);
    if (simulator->sensors_dead) return false;
    for (int i = 0; i < 2; i++) {
        if (!isfinite(simulator->state[i])) return false;
        counts[i] = quantised(&simulator->device.rig->sensors[i], simulator->state[i]);
    }
    return true;
}

/* Without noise there is nothing to seed. */
static void reset(void *board, uint64_t t_us, uint64_t seed) {
    struct onrig_simulator *simulator = board;
    (void)seed;
    simulator->moved_us = t_us;
    simulator->at_start = true;
    simulator->state[0] = simulator->state[1] = 0.0;
}

static void send(void *board, const uint8_t *wire, size_t n) {
    struct onrig_simulator *simulator = board;
    simulator->send(simulator->line, wire, n);
}

bool onrig_simulator_start(
    struct onrig_simulator *simulator, const char *rig, float time_scale, uint32_t boot_id, void *line,
    void (*send_to)(void *line, const uint8_t *wire, size_t n)) {
    static const struct {
        const struct onrig_rig *rig;
        const struct onrig_plant *plant;
        bool releases;
    } known[] = {
        {&onrig_pendulum, &onrig_pendulum_plant, false},
        {&onrig_pendulum_hw, &onrig_pendulum_hw_plant, false},
        {&onrig_magman, &onrig_magman_plant, true},
    };
    memset(simulator, 0, sizeof *simulator);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].rig->name, rig) != 0) continue;
        simulator->plant = known[i].plant;
        simulator->line = line;
        simulator->send = send_to;
        struct onrig_port port = {simulator, time_scale, send, sense, actuate, reset, known[i].releases, ONRIG_BUILT_IN_POLICY};
        simulator->port = port;
        onrig_device_start(&simulator->device, known[i].rig, &simulator->port, boot_id);
        return true;
    }
    return false;
}

uint64_t onrig_simulator_now_us(const struct onrig_simulator *simulator, uint64_t now_us) {
    return simulator->port.time_scale > 0.0f ? now_us : simulator->device.sampled_us;
}

void onrig_simulator_bytes(struct onrig_simulator *simulator, const uint8_t *bytes, size_t n, uint64_t now_us) {
    struct onrig_device *device = &simulator->device;
    bool lockstep = !(simulator->port.time_scale > 0.0f);
    for (size_t i = 0; i < n; i++) {
        size_t body = onrig_reader_take(&simulator->reader, bytes[i]);
        if (body == 0) continue;
        onrig_device_handle(device, simulator->reader.chunk + 1, body, onrig_simulator_now_us(simulator, now_us));
        if (lockstep) onrig_device_evaluate(device, device->sampled_us);
        if (lockstep && onrig_device_awaits_sample(device))
            onrig_device_tick(device, device->sampled_us + device->period_us);
    }
}
