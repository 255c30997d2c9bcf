/* Quadrature decoder in the PIO: counts all four edges of an encoder's period without the processor.
 *
 * It samples both pins at least every 10 cycles: 80 ns at 125 MHz, 12.5 million counts per second.
 */
#ifndef ONRIG_PICO_QUADRATURE_H
#define ONRIG_PICO_QUADRATURE_H

#include <stdbool.h>
#include <stdint.h>

#define ONRIG_QUADRATURE_WORDS 26u
#define ONRIG_QUADRATURE_SAME 19u /* start of the program and target of its wrap */
extern const uint16_t onrig_quadrature_program[ONRIG_QUADRATURE_WORDS];

/* Wrap an angle in counts to [-half a turn, half a turn). */
int32_t onrig_quadrature_wrapped(int32_t count, int32_t counts_per_turn);

/* Start on pins A and A + 1, which must already be inputs; the count starts at 0. */
void onrig_quadrature_start(uint32_t pin_a);
/* Counts since the start, positive if A leads B; false if the decoder does not respond. */
bool onrig_quadrature_read(int32_t *count);

#endif
