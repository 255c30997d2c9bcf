/* Clocks, time, watchdog and identity of a Raspberry Pi Pico. */
#ifndef ONRIG_PICO_BOARD_H
#define ONRIG_PICO_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#define ONRIG_SERIAL_CHARS 16u

/* The timer's alarms, each with an interrupt. */
enum onrig_alarm { ONRIG_ALARM_SAMPLE = 0, ONRIG_ALARM_POLL = 1 };

/* Start crystal and PLLs, release resets; afterwards no pin is an output. */
void onrig_board_start(void);

/* Microseconds since the start. */
uint64_t onrig_board_now_us(void);
/* Schedule an alarm's interrupt for that time, or at once if it has passed; 0 for never. */
void onrig_board_wake_at(enum onrig_alarm alarm, uint64_t due_us);
/* Must be called first in an alarm's interrupt handler. */
void onrig_board_alarm_taken(enum onrig_alarm alarm);

/* After the first feeding, the board restarts if not fed for ONRIG_WATCHDOG_US; while a rig is armed, also if a
 * debugger has halted it. */
#define ONRIG_WATCHDOG_US 20000u
void onrig_board_feed_watchdog(bool armed);
/* Whether the watchdog caused this restart. */
bool onrig_board_was_hung(void);

/* A different number at each start: ring-oscillator noise plus a count that survives a watchdog reset. */
uint32_t onrig_board_boot_id(void);
/* Unique number of the flash in hexadecimal, null-terminated. Must be called before timekeeping matters. */
void onrig_board_serial(char serial[ONRIG_SERIAL_CHARS + 1]);

void onrig_on_sample(void); /* main.c */
void onrig_on_poll(void);

#endif
