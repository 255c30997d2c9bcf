#include "board.h"

#include "../../core/framing.h"
#include "rp2040.h"

#define XOSC_ENABLE (0xFABu << 12 | 0xAA0u) /* 1 to 15 MHz */
#define XOSC_STARTUP_CYCLES_256 47u         /* 1 ms */
#define PLL_POWER_DOWN BIT(0)
#define PLL_POST_DIVIDER_DOWN BIT(3)
#define PLL_VCO_DOWN BIT(5)
#define PSM_ALL_BUT_OSCILLATORS 0x1FFFCu

#define WATCHDOG_PAUSE (BIT(24) | BIT(25) | BIT(26)) /* paused by JTAG and by a debugger on either core */
#define FED 0x4645u /* distinguishes our watchdog from the boot ROM's restart after flashing */
#define USED (RESET_ADC | RESET_IO_BANK0 | RESET_PADS_BANK0 | RESET_PIO0 | RESET_PWM | RESET_TIMER | RESET_USBCTRL)

static bool was_hung;

static void take_out_of_reset(uint32_t blocks) {
    SET_BITS(RESETS_RESET) = blocks;
    CLEAR_BITS(RESETS_RESET) = blocks;
    while (~RESETS_DONE & blocks) {
    }
}

/* Multiply the crystal's 12 MHz by feedback and divide by both post dividers. */
static void start_pll(uint32_t pll, uint32_t reset, uint32_t feedback, uint32_t divider_1, uint32_t divider_2) {
    take_out_of_reset(reset);
    PLL_CS(pll) = 1; /* reference undivided */
    PLL_FBDIV_INT(pll) = feedback;
    CLEAR_BITS(PLL_PWR(pll)) = PLL_POWER_DOWN | PLL_VCO_DOWN;
    while (!(PLL_CS(pll) & BIT(31))) {
    }
    PLL_PRIM(pll) = divider_1 << 16 | divider_2 << 12;
    CLEAR_BITS(PLL_PWR(pll)) = PLL_POST_DIVIDER_DOWN;
}

static void start_clocks(void) {
    XOSC_STARTUP = XOSC_STARTUP_CYCLES_256;
    XOSC_CTRL = XOSC_ENABLE;
    while (!(XOSC_STATUS & BIT(31))) {
    }
    CLK_REF_CTRL = 2; /* crystal */
    while (!(CLK_REF_SELECTED & BIT(2))) {
    }
    CLK_SYS_CTRL = 0; /* reference clock while the PLL starts */
    while (!(CLK_SYS_SELECTED & BIT(0))) {
    }
    start_pll(PLL_SYS, RESET_PLL_SYS, 125, 6, 2); /* 1500 MHz / 12 = 125 MHz */
    start_pll(PLL_USB, RESET_PLL_USB, 100, 5, 5); /* 1200 MHz / 25 = 48 MHz */
    CLK_SYS_CTRL = 1;                             /* auxiliary source: the system PLL */
    while (!(CLK_SYS_SELECTED & BIT(1))) {
    }
    CLK_USB_CTRL = CLK_ENABLE;
    CLK_ADC_CTRL = CLK_ENABLE;
    WATCHDOG_TICK = BIT(9) | CRYSTAL_HZ / 1000000u; /* 1 MHz for the watchdog and the timer */
}

void onrig_board_start(void) {
    CLEAR_BITS(WATCHDOG_CTRL) = BIT(30);
    was_hung = WATCHDOG_REASON != 0 && WATCHDOG_SCRATCH1 == FED;
    WATCHDOG_SCRATCH1 = 0;
    start_clocks();
    take_out_of_reset(USED);
    WATCHDOG_SCRATCH0++;
    PSM_WDSEL = PSM_ALL_BUT_OSCILLATORS; /* the watchdog also resets pins and USB */
    TIMER_INTE = BIT(ONRIG_ALARM_SAMPLE) | BIT(ONRIG_ALARM_POLL);
    NVIC_PRIORITY(0) = 0x00000000u; /* both alarms: neither interrupts the other */
    NVIC_PRIORITY(1) = 0x80u << 8;  /* USB has lower priority */
    NVIC_UNPEND = BIT(IRQ_TIMER_0) | BIT(IRQ_TIMER_1);
    NVIC_ENABLE = BIT(IRQ_TIMER_0) | BIT(IRQ_TIMER_1);
}

uint64_t onrig_board_now_us(void) {
    uint32_t high = TIMER_RAWH;
    for (;;) {
        uint32_t low = TIMER_RAWL, again = TIMER_RAWH;
        if (again == high) return (uint64_t)high << 32 | low;
        high = again;
    }
}

void onrig_board_alarm_taken(enum onrig_alarm alarm) {
    TIMER_INTR = BIT(alarm);
}

void onrig_board_wake_at(enum onrig_alarm alarm, uint64_t due_us) {
    TIMER_ARMED = BIT(alarm);
    onrig_board_alarm_taken(alarm);
    NVIC_UNPEND = BIT(alarm);
    if (due_us == 0) return;
    TIMER_ALARM(alarm) = (uint32_t)due_us;
    /* An alarm compares for equality: if set too late, it would fire 71 minutes later. */
    if (onrig_board_now_us() >= due_us) NVIC_PEND = BIT(alarm);
}

void onrig_board_feed_watchdog(bool armed) {
    WATCHDOG_SCRATCH1 = FED;
    /* By default a debugger that halts a core also stops the watchdog, which must run while outputs may be in force. */
    if (armed)
        CLEAR_BITS(WATCHDOG_CTRL) = WATCHDOG_PAUSE;
    else
        SET_BITS(WATCHDOG_CTRL) = WATCHDOG_PAUSE;
    WATCHDOG_LOAD = 2u * ONRIG_WATCHDOG_US; /* it counts down by two per microsecond (erratum RP2040-E1) */
    SET_BITS(WATCHDOG_CTRL) = BIT(30);
}

bool onrig_board_was_hung(void) {
    return was_hung;
}

uint32_t onrig_board_boot_id(void) {
    uint32_t noise[64] = {0};
    for (uint32_t bit = 0; bit < 32u * 63u; bit++) {
        uint64_t until_us = onrig_board_now_us() + 1;
        while (onrig_board_now_us() < until_us) {
        }
        noise[bit / 32u] = noise[bit / 32u] << 1 | (ROSC_RANDOMBIT & 1u);
    }
    noise[63] = WATCHDOG_SCRATCH0;
    return onrig_crc32((const uint8_t *)noise, sizeof noise);
}

/* One byte out, one byte in; 0 if the port does not answer. */
static uint8_t exchange(uint8_t out) {
    SSI_DR0 = out;
    for (uint32_t patience = 10000; patience; patience--)
        if (SSI_SR & SSI_SR_RFNE) return (uint8_t)SSI_DR0;
    return 0;
}

void onrig_board_serial(char serial[ONRIG_SERIAL_CHARS + 1]) {
    static const char digits[] = "0123456789ABCDEF";
    SSI_SSIENR = 0;
    SSI_CTRLR0 = 7u << 16; /* frames of 8 bits, full duplex */
    SSI_BAUDR = 32;
    SSI_SER = 1;
    SSI_SSIENR = 1;
    QSPI_SS_CTRL = QSPI_SS_LOW;
    exchange(0x4B); /* read unique ID: four idle bytes, then eight */
    for (int i = 0; i < 4; i++) exchange(0);
    for (uint32_t i = 0; i < ONRIG_SERIAL_CHARS; i += 2) {
        uint8_t byte = exchange(0);
        serial[i] = digits[byte >> 4];
        serial[i + 1] = digits[byte & 15];
    }
    serial[ONRIG_SERIAL_CHARS] = '\0';
    QSPI_SS_CTRL = 0;
    SSI_SSIENR = 0; /* the flash is not read again */
}
