/* Vector table and start-up before main: FPU, data, zeros. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "board.h"

#define PAINT 0xA5A5A5A5u
#define STACK_WORDS 2048
#define CPACR (*(volatile uint32_t *)0xE000ED88u)

extern uint32_t stack_top, data_from, data_start, data_end, bss_start, bss_end;

void onrig_reset(void);
int main(void);

/* Fatal error, no recovery possible: the lease of the host's session and, on hardware, the watchdog make it safe. */
static void stop(void) {
    for (;;) {
    }
}

static uint32_t *stack_end(void) {
    return &stack_top - STACK_WORDS;
}

static void paint_stack(void) {
    uint32_t *here;
    __asm volatile("mov %0, sp" : "=r"(here));
    for (uint32_t *word = stack_end(); word < here; word++) *word = PAINT;
}

/* Searched from the far end, because a frame may leave some of its words unwritten. */
uint32_t onrig_stack_used(void) {
    const uint32_t *word = stack_end();
    while (word < &stack_top && *word == PAINT) word++;
    return (uint32_t)((uintptr_t)&stack_top - (uintptr_t)word);
}

void onrig_reset(void) {
    CPACR |= 0xFu << 20; /* before the first float */
    __asm volatile("dsb\n isb");
    memcpy(&data_start, &data_from, (size_t)((uintptr_t)&data_end - (uintptr_t)&data_start));
    memset(&bss_start, 0, (size_t)((uintptr_t)&bss_end - (uintptr_t)&bss_start));
    paint_stack();
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
