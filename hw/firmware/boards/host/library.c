/* The simulated device as a library: the caller, such as a test, provides the time and drives it in virtual time. */
#include <stdlib.h>
#include <string.h>

#include "../sim/simulator.h"

#define OUT_BYTES 65536u

struct onrig_loop {
    struct onrig_simulator simulator;
    uint8_t out[OUT_BYTES]; /* sent by the device since the last call */
    size_t out_n;
};

struct onrig_loop *onrig_loop_new(const char *rig, float time_scale, uint32_t boot_id);
void onrig_loop_free(struct onrig_loop *loop);
size_t onrig_loop_bytes(struct onrig_loop *loop, const uint8_t *bytes, size_t n, uint64_t now_us, uint8_t *out);
size_t onrig_loop_tick(struct onrig_loop *loop, uint64_t now_us, uint8_t *out);
uint64_t onrig_loop_due_us(const struct onrig_loop *loop);
void onrig_loop_estop(struct onrig_loop *loop, bool pressed, uint64_t now_us);
void onrig_loop_sensors_dead(struct onrig_loop *loop, bool dead);
void onrig_loop_link_lost(struct onrig_loop *loop, uint64_t now_us);
void onrig_loop_fail(struct onrig_loop *loop, uint64_t now_us);
void onrig_loop_output(const struct onrig_loop *loop, double *action);
void onrig_advance(const char *rig, double *state, const double *action, double dt, unsigned substeps);

static void keep(void *line, const uint8_t *wire, size_t n) {
    struct onrig_loop *loop = line;
    if (n > OUT_BYTES - loop->out_n) return;
    memcpy(loop->out + loop->out_n, wire, n);
    loop->out_n += n;
}

/* Create a device of that rig; null if there is no such rig. */
struct onrig_loop *onrig_loop_new(const char *rig, float time_scale, uint32_t boot_id) {
    struct onrig_loop *loop = calloc(1, sizeof *loop);
    if (loop != NULL && !onrig_simulator_start(&loop->simulator, rig, time_scale, boot_id, loop, keep)) {
        free(loop);
        loop = NULL;
    }
    return loop;
}

void onrig_loop_free(struct onrig_loop *loop) {
    free(loop);
}

static size_t taken(struct onrig_loop *loop, uint8_t *out) {
    size_t n = loop->out_n;
    memcpy(out, loop->out, n);
    loop->out_n = 0;
    return n;
}

/* Pass received bytes; returns the number of bytes sent in answer, written to out (64 KiB). */
size_t onrig_loop_bytes(struct onrig_loop *loop, const uint8_t *bytes, size_t n, uint64_t now_us, uint8_t *out) {
    onrig_simulator_bytes(&loop->simulator, bytes, n, now_us);
    onrig_device_evaluate(&loop->simulator.device, onrig_simulator_now_us(&loop->simulator, now_us));
    return taken(loop, out);
}

size_t onrig_loop_tick(struct onrig_loop *loop, uint64_t now_us, uint8_t *out) {
    onrig_device_tick(&loop->simulator.device, now_us);
    onrig_device_evaluate(&loop->simulator.device, onrig_simulator_now_us(&loop->simulator, now_us));
    return taken(loop, out);
}

/* Time of the next sample; 0 if there is none. */
uint64_t onrig_loop_due_us(const struct onrig_loop *loop) {
    const struct onrig_device *device = &loop->simulator.device;
    return device->period_us == 0 ? 0 : device->sampled_us + device->period_us;
}

void onrig_loop_estop(struct onrig_loop *loop, bool pressed, uint64_t now_us) {
    onrig_device_estop(&loop->simulator.device, pressed, onrig_simulator_now_us(&loop->simulator, now_us));
}

void onrig_loop_sensors_dead(struct onrig_loop *loop, bool dead) {
    loop->simulator.sensors_dead = dead;
}

void onrig_loop_link_lost(struct onrig_loop *loop, uint64_t now_us) {
    onrig_device_link_lost(&loop->simulator.device, onrig_simulator_now_us(&loop->simulator, now_us));
}

void onrig_loop_fail(struct onrig_loop *loop, uint64_t now_us) {
    onrig_device_fail(&loop->simulator.device, onrig_simulator_now_us(&loop->simulator, now_us));
}

/* Setpoints that act on the plant (SI units). */
void onrig_loop_output(const struct onrig_loop *loop, double *action) {
    memcpy(action, loop->simulator.action, loop->simulator.device.rig->n_actuators * sizeof *action);
}

/* Simulate one period of a rig's plant, up to a sample. */
void onrig_advance(const char *rig, double *state, const double *action, double dt, unsigned substeps) {
    struct onrig_loop *loop = onrig_loop_new(rig, 1.0f, 0);
    if (loop == NULL) return;
    onrig_plant_advance(loop->simulator.plant, state, action, dt, substeps);
    loop->simulator.plant->constrain(state);
    onrig_loop_free(loop);
}
