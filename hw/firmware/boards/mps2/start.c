/* Vectors, and what comes before main: FPU, data, zeros. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "board.h"

#define CPACR (*(volatile uint32_t *)0xE000ED88u)

extern uint32_t stack_top, data_from, data_start, data_end, bss_start, bss_end;

void onrig_reset(void);
int main(void);

/* Nothing sensible is left to do: the lease of the host's session and, on hardware, the watchdog make it safe. */
static void stop(void) {
    for (;;) {
    }
}

void onrig_reset(void) {
    CPACR |= 0xFu << 20; /* before the first float */
    __asm volatile("dsb\n isb");
    memcpy(&data_start, &data_from, (size_t)((uintptr_t)&data_end - (uintptr_t)&data_start));
    memset(&bss_start, 0, (size_t)((uintptr_t)&bss_end - (uintptr_t)&bss_start));
    main();
    stop();
}

typedef void (*handler)(void);

__attribute__((section(".vectors"), used)) static const struct {
    const uint32_t *stack;
    handler exceptions[15];
    handler interrupts[16];
} vectors = {
    &stack_top,
    {onrig_reset, stop, stop, stop, stop, stop},
    {[ONRIG_IRQ_RX] = onrig_on_rx, [ONRIG_IRQ_TX] = onrig_on_tx, [ONRIG_IRQ_TIMER] = onrig_on_timer},
};
