/* UART, clock and sampling timer of the MPS2. */
#ifndef ONRIG_MPS2_BOARD_H
#define ONRIG_MPS2_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ONRIG_IRQ_RX 0
#define ONRIG_IRQ_TX 1
#define ONRIG_IRQ_TIMER 8

void onrig_board_start(void);
/* Microseconds since the start; must be called at least every two minutes. */
uint64_t onrig_board_now_us(void);
/* Schedule the timer's interrupt for that time; 0 for never. */
void onrig_board_wake_at(uint64_t due_us);
/* Queue a frame for sending, either complete or not at all. */
void onrig_board_send(void *line, const uint8_t *wire, size_t n);
/* Take one received byte; false if there is none. */
bool onrig_board_byte(uint8_t *byte);

/* Maximum stack usage so far in bytes, interrupts included. */
uint32_t onrig_stack_used(void);

void onrig_on_rx(void);
void onrig_on_tx(void);
void onrig_on_timer(void); /* main.c */

#endif
