/* Quadrature decoder in the PIO: counts all four edges of an encoder's period by itself.
 *
 * It looks at both pins every 10 cycles at the most: 80 ns at 125 MHz, 12.5 million counts a second.
 */
#ifndef ONRIG_PICO_QUADRATURE_H
#define ONRIG_PICO_QUADRATURE_H

#include <stdbool.h>
#include <stdint.h>

#define ONRIG_QUADRATURE_WORDS 26u
#define ONRIG_QUADRATURE_SAME 19u /* begins there, and wraps to there from its last word */
extern const uint16_t onrig_quadrature_program[ONRIG_QUADRATURE_WORDS];

/* An angle in counts, from half a turn below 0 to less than half a turn above it. */
int32_t onrig_quadrature_wrapped(int32_t count, int32_t counts_per_turn);

/* Start on pins A and A + 1, which are inputs already; counts from 0. */
void onrig_quadrature_start(uint32_t pin_a);
/* Counts since the start, A before B is up; false where the decoder does not answer. */
bool onrig_quadrature_read(int32_t *count);

#endif
