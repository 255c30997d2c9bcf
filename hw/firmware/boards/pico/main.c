/* A rig with real pins on a Raspberry Pi Pico: one alarm samples, another takes readings between the samples, the main
 * loop serves the host and feeds the watchdog. The core runs with interrupts masked, or in the alarms, which do not
 * interrupt each other. */
#include "../../core/device.h"
#include "board.h"
#include "drive.h"
#include "pins.h"
#include "usb.h"

#define PIN_LED 25u
#define LATE_US 2000u /* a sampling alarm later than this counts as stopped */

static struct onrig_device device;
static struct onrig_reader reader;
static bool armed_once;
static bool put_awake; /* current state of the drivers */
static volatile bool ticked;
static uint64_t next_poll_us;
static uint64_t sampled_us; /* last sampling alarm; samples taken by the poll do not count */

/* -- port of the core ----------------------------------------------------------------------------------------------- */

static bool sense(void *board, uint64_t t_us, int32_t *counts) {
    (void)board;
    (void)t_us;
    return onrig_drive_sense(counts);
}

/* Whether the drivers must be awake. After a board failure, such as a short circuit, they are never enabled again. */
static bool awake(void) {
    armed_once = armed_once || device.armed;
    return device.armed || (onrig_drive_holds && armed_once && device.fault != ONRIG_FAULT_INTERNAL);
}

static void actuate(void *board, uint64_t t_us, const int32_t *counts) {
    (void)board;
    (void)t_us;
    put_awake = awake();
    onrig_drive_put(counts, put_awake);
}

static struct onrig_port port = {NULL, 1.0f, onrig_usb_send, sense, actuate, NULL, true, ONRIG_BUILT_IN_POLICY};

/* -- time ----------------------------------------------------------------------------------------------------------- */

/* Neither arming nor a fault during the safe output changes the output: only the drivers' sleep is updated here. */
static void follow(void) {
    if (put_awake != awake()) actuate(NULL, 0, device.output.end.counts);
}

static void tick(uint64_t now_us) {
    onrig_device_estop(&device, onrig_drive_estop(), now_us);
    onrig_device_tick(&device, now_us);
    follow();
}

static void wake_for_next_sample(void) {
    onrig_board_wake_at(ONRIG_ALARM_SAMPLE, device.period_us ? device.sampled_us + device.period_us : 0);
}

void onrig_on_sample(void) {
    onrig_board_alarm_taken(ONRIG_ALARM_SAMPLE);
    sampled_us = onrig_board_now_us();
    tick(sampled_us);
    wake_for_next_sample();
}

/* Steady while armed, fast while a fault is latched, short flashes otherwise. */
static void show(uint64_t now_us) {
    uint64_t ms = now_us / 1000;
    onrig_pin_put(PIN_LED, device.armed || (device.fault ? ms % 200 < 100 : ms % 1000 < 60));
}

void onrig_on_poll(void) {
    onrig_board_alarm_taken(ONRIG_ALARM_POLL);
    bool sound = onrig_drive_poll();
    uint64_t now_us = onrig_board_now_us();
    if (!sound && device.fault != ONRIG_FAULT_INTERNAL) onrig_device_fail(&device, now_us);
    tick(now_us);
    show(now_us);
    ticked = device.period_us == 0 || now_us < sampled_us + device.period_us + LATE_US;
    do next_poll_us += ONRIG_POLL_US;
    while (next_poll_us <= now_us);
    onrig_board_wake_at(ONRIG_ALARM_POLL, next_poll_us);
}

/* -- host ----------------------------------------------------------------------------------------------------------- */

/* Sampling restarted, or became due while interrupts were masked: the pending alarm is cancelled. */
static void settle(uint64_t now_us, uint64_t last_us) {
    if (device.sampled_us != last_us) sampled_us = now_us;
    follow();
    wake_for_next_sample();
}

static void hear(uint8_t byte) {
    size_t body = onrig_reader_take(&reader, byte);
    if (body == 0) return;
    uint64_t now_us = onrig_board_now_us(), last_us = device.sampled_us;
    tick(now_us);
    onrig_device_handle(&device, reader.chunk + 1, body, now_us);
    settle(now_us, last_us);
}

/* The policy's turn, with the alarms running while the network does; false if it has none. */
static bool evaluate(void) {
    static struct onrig_turn turn;
    if (!onrig_device_turn(&device, &turn)) return false;
    __asm volatile("cpsie i" ::: "memory");
    device.policy->act(turn.observation, turn.action);
    __asm volatile("cpsid i" ::: "memory");
    uint64_t now_us = onrig_board_now_us(), last_us = device.sampled_us;
    tick(now_us);
    onrig_device_act(&device, &turn, now_us);
    settle(now_us, last_us);
    return true;
}

int main(void) {
    static char serial[ONRIG_SERIAL_CHARS + 1];
    onrig_board_start();
    onrig_drive_start();
    onrig_pin_output(PIN_LED);
    onrig_board_serial(serial);
    port.releases = !onrig_drive_holds;
    onrig_device_start(&device, onrig_drive_rig, &port, onrig_board_boot_id());
    /* Hung in mid-swing: the encoder's zero is lost, so only a power cycle at rest restores the rig. */
    if (onrig_board_was_hung()) onrig_device_fail(&device, onrig_board_now_us());
    onrig_usb_start(onrig_drive_rig->name, serial);
    next_poll_us = onrig_board_now_us() + ONRIG_POLL_US;
    onrig_board_wake_at(ONRIG_ALARM_POLL, next_poll_us);
    onrig_board_feed_watchdog(false);
    for (;;) {
        uint8_t byte;
        __asm volatile("cpsid i" ::: "memory"); /* the core is not reentrant, and a byte before wfi must wake it */
        if (onrig_usb_line_lost()) {
            onrig_device_link_lost(&device, onrig_board_now_us());
            follow();
        }
        if (ticked) onrig_board_feed_watchdog(device.armed); /* only if both this loop and the alarms run */
        ticked = false;
        if (onrig_usb_byte(&byte))
            hear(byte);
        else if (!evaluate())
            __asm volatile("wfi" ::: "memory");
        __asm volatile("cpsie i" ::: "memory");
    }
}
