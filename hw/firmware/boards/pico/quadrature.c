#include "quadrature.h"

#include "rp2040.h"

#define WRAP_FROM (ONRIG_QUADRATURE_WORDS - 1)
#define FIFO_WORDS 4u

void onrig_quadrature_start(uint32_t pin_a) {
    PIO_CTRL = 0;
    for (uint32_t i = 0; i < ONRIG_QUADRATURE_WORDS; i++) PIO_INSTR_MEM(i) = onrig_quadrature_program[i];
    PIO_SM0_CLKDIV = 1u << 16;
    PIO_SM0_EXECCTRL = WRAP_FROM << 12 | ONRIG_QUADRATURE_SAME << 7;
    PIO_SM0_SHIFTCTRL = 0; /* ISR shifts left, no autopush */
    PIO_SM0_PINCTRL = pin_a << 15;
    PIO_SM0_INSTR = 0xE040; /* set y, 0 */
    PIO_SM0_INSTR = 0xA0C3; /* mov isr, null */
    PIO_SM0_INSTR = ONRIG_QUADRATURE_SAME;
    PIO_CTRL = BIT(4) | BIT(0); /* restart, then run */
}

/* The FIFO's content is as old as the last reading, because the program drops counts when the FIFO is full. */
bool onrig_quadrature_read(int32_t *count) {
    for (uint32_t i = 0; i < FIFO_WORDS; i++)
        if (!(PIO_FSTAT & PIO_RX_EMPTY)) (void)PIO_RXF0;
    for (uint32_t patience = 1000; patience; patience--) {
        if (PIO_FSTAT & PIO_RX_EMPTY) continue;
        *count = (int32_t)PIO_RXF0;
        return true;
    }
    return false;
}
