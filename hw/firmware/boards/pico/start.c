/* Vector table and start-up between the boot's second stage and main. */
#include <stddef.h>
#include <string.h>

#include "board.h"
#include "rp2040.h"
#include "usb.h"

extern uint32_t stack_top, bss_start, bss_end;

void onrig_reset(void);
int main(void);

/* Fatal error, no recovery possible: disable the drivers (by a pin of the SIO); the watchdog restarts the board. */
static void stop(void) {
    SIO_GPIO_OUT_CLR = UINT32_MAX;
    for (;;) {
    }
}

void onrig_reset(void) {
    memset(&bss_start, 0, (size_t)((uintptr_t)&bss_end - (uintptr_t)&bss_start));
    main();
    stop();
}

typedef void (*handler)(void);

__attribute__((section(".vectors"), used)) static const struct {
    const uint32_t *stack;
    handler exceptions[15];
    handler interrupts[26];
} vectors = {
    &stack_top,
    {onrig_reset, stop, stop},
    {[IRQ_TIMER_0] = onrig_on_sample, [IRQ_TIMER_1] = onrig_on_poll, [IRQ_USB] = onrig_on_usb},
};
