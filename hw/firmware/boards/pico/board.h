/* Clocks, time, watchdog and identity of a Raspberry Pi Pico. */
#ifndef ONRIG_PICO_BOARD_H
#define ONRIG_PICO_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#define ONRIG_SERIAL_CHARS 16u

/* The timer's alarms, with an interrupt each. */
enum onrig_alarm { ONRIG_ALARM_SAMPLE = 0, ONRIG_ALARM_POLL = 1 };

/* Crystal, PLLs, resets; no pin is an output afterwards. */
void onrig_board_start(void);

/* Microseconds since the start. */
uint64_t onrig_board_now_us(void);
/* Have an alarm's interrupt come at that time, or at once where it has passed; 0 for never. */
void onrig_board_wake_at(enum onrig_alarm alarm, uint64_t due_us);
/* To be called first in an alarm's interrupt. */
void onrig_board_alarm_taken(enum onrig_alarm alarm);

/* From the first feeding on the board restarts when it is not fed for ONRIG_WATCHDOG_US; while a rig is armed also where a
 * debugger has halted it. */
#define ONRIG_WATCHDOG_US 20000u
void onrig_board_feed_watchdog(bool armed);
/* Whether it was the watchdog that restarted the board. */
bool onrig_board_was_hung(void);

/* Another number at each start: noise of the ring oscillator, and a count that outlives the watchdog. */
uint32_t onrig_board_boot_id(void);
/* The flash's unique number in hexadecimal, terminated. To be called before anybody needs the time. */
void onrig_board_serial(char serial[ONRIG_SERIAL_CHARS + 1]);

void onrig_on_sample(void); /* main.c */
void onrig_on_poll(void);

#endif
