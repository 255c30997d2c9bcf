/* The simulated rig on an MPS2 under QEMU: the timer interrupt samples, the main loop processes the host's messages. */
#include "../sim/simulator.h"
#include "board.h"

#ifndef ONRIG_RIG
#define ONRIG_RIG "pendulum-hw"
#endif
#ifndef ONRIG_TIME_SCALE
#define ONRIG_TIME_SCALE 1.0f /* 0: lockstep */
#endif

static struct onrig_simulator simulator;

/* QEMU has neither entropy nor pins: its caller writes them here. The count survives a restart of the board. */
static volatile struct {
    uint32_t seed;
    uint32_t starts;
    uint32_t estop;        /* pressed */
    uint32_t sensors_dead;
    uint32_t stack_used; /* bytes; read by tests */
} kept __attribute__((section(".kept")));

static void look_at_pins(uint64_t now_us) {
    simulator.sensors_dead = kept.sensors_dead != 0;
    onrig_device_estop(&simulator.device, kept.estop != 0, onrig_simulator_now_us(&simulator, now_us));
}

static void wake_for_next_sample(void) {
    const struct onrig_device *device = &simulator.device;
    onrig_board_wake_at(device->period_us ? device->sampled_us + device->period_us : 0);
}

void onrig_on_timer(void) {
    uint64_t now_us = onrig_board_now_us();
    look_at_pins(now_us);
    onrig_device_tick(&simulator.device, now_us);
    wake_for_next_sample();
}

/* The policy's turn, with the interrupts on while the network runs; false if it has none. In lockstep the simulator
 * evaluates it. */
static bool evaluate(void) {
    static struct onrig_turn turn;
    if (!onrig_device_turn(&simulator.device, &turn)) return false;
    __asm volatile("cpsie i" ::: "memory");
    simulator.device.policy->act(turn.observation, turn.action);
    __asm volatile("cpsid i" ::: "memory");
    uint64_t now_us = onrig_board_now_us();
    look_at_pins(now_us);
    onrig_device_act(&simulator.device, &turn, onrig_simulator_now_us(&simulator, now_us));
    kept.stack_used = onrig_stack_used();
    return true;
}

int main(void) {
    const bool lockstep = !(ONRIG_TIME_SCALE > 0.0f);
    onrig_board_start();
    kept.starts++;
    onrig_simulator_start(
        &simulator, ONRIG_RIG, ONRIG_TIME_SCALE, kept.seed + 0x9E3779B9u * kept.starts, NULL, onrig_board_send);
    for (;;) {
        uint8_t byte;
        __asm volatile("cpsid i" ::: "memory"); /* the core is not reentrant, and a byte before wfi must wake it */
        if (!onrig_board_byte(&byte)) {
            if (!evaluate()) __asm volatile("wfi" ::: "memory");
            __asm volatile("cpsie i" ::: "memory");
            continue;
        }
        uint64_t now_us = onrig_board_now_us();
        look_at_pins(now_us);
        onrig_simulator_bytes(&simulator, &byte, 1, now_us);
        if (byte == 0) {
            if (!lockstep) wake_for_next_sample();
            kept.stack_used = onrig_stack_used();
        }
        __asm volatile("cpsie i" ::: "memory");
    }
}
