/* Registers of the RP2040 used by this board, named as in its datasheet (RP-008371-DS). */
#ifndef ONRIG_PICO_RP2040_H
#define ONRIG_PICO_RP2040_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define BIT(n) (1u << (n))
/* Every peripheral's registers have two aliases, for setting and clearing bits atomically. */
#define SET_BITS(reg) (*(volatile uint32_t *)((uintptr_t)&(reg) + 0x2000u))
#define CLEAR_BITS(reg) (*(volatile uint32_t *)((uintptr_t)&(reg) + 0x3000u))

#define CRYSTAL_HZ 12000000u
#define SYS_HZ 125000000u

/* 4.10 SSI, used as SPI port of the flash; 2.19 chip select of the flash */
#define SSI_CTRLR0 REGISTER(0x18000000u)
#define SSI_SSIENR REGISTER(0x18000008u)
#define SSI_SER REGISTER(0x18000010u)
#define SSI_BAUDR REGISTER(0x18000014u)
#define SSI_SR REGISTER(0x18000028u)
#define SSI_SR_RFNE BIT(3)
#define SSI_DR0 REGISTER(0x18000060u)
#define QSPI_SS_CTRL REGISTER(0x4001800Cu)
#define QSPI_SS_LOW (2u << 8)

/* 2.15 clocks, 2.16 crystal, 2.17 ring oscillator, 2.18 PLL */
#define CLK_REF_CTRL REGISTER(0x40008030u)
#define CLK_REF_SELECTED REGISTER(0x40008038u)
#define CLK_SYS_CTRL REGISTER(0x4000803Cu)
#define CLK_SYS_SELECTED REGISTER(0x40008044u)
#define CLK_USB_CTRL REGISTER(0x40008054u)
#define CLK_ADC_CTRL REGISTER(0x40008060u)
#define CLK_ENABLE BIT(11)
#define XOSC_CTRL REGISTER(0x40024000u)
#define XOSC_STATUS REGISTER(0x40024004u)
#define XOSC_STARTUP REGISTER(0x4002400Cu)
#define ROSC_RANDOMBIT REGISTER(0x4006001Cu)
#define PLL_SYS 0x40028000u
#define PLL_USB 0x4002C000u
#define PLL_CS(pll) REGISTER((pll) + 0x0u)
#define PLL_PWR(pll) REGISTER((pll) + 0x4u)
#define PLL_FBDIV_INT(pll) REGISTER((pll) + 0x8u)
#define PLL_PRIM(pll) REGISTER((pll) + 0xCu)

/* 2.13 power-on state machine, 2.14 resets */
#define PSM_WDSEL REGISTER(0x40010008u)
#define RESETS_RESET REGISTER(0x4000C000u)
#define RESETS_DONE REGISTER(0x4000C008u)
#define RESET_ADC BIT(0)
#define RESET_IO_BANK0 BIT(5)
#define RESET_PADS_BANK0 BIT(8)
#define RESET_PIO0 BIT(10)
#define RESET_PLL_SYS BIT(12)
#define RESET_PLL_USB BIT(13)
#define RESET_PWM BIT(14)
#define RESET_TIMER BIT(21)
#define RESET_USBCTRL BIT(24)

/* 2.19 pins */
#define GPIO_CTRL(pin) REGISTER(0x40014004u + 8u * (pin))
#define PADS_GPIO(pin) REGISTER(0x4001C004u + 4u * (pin))
#define PAD_SCHMITT BIT(1)
#define PAD_PULL_DOWN BIT(2)
#define PAD_PULL_UP BIT(3)
#define PAD_4_MA BIT(4)
#define PAD_INPUT BIT(6)
#define PAD_NO_OUTPUT BIT(7)
#define FUNCTION_PWM 4u
#define FUNCTION_SIO 5u
#define FUNCTION_PIO0 6u
#define SIO_GPIO_IN REGISTER(0xD0000004u)
#define SIO_GPIO_OUT_SET REGISTER(0xD0000014u)
#define SIO_GPIO_OUT_CLR REGISTER(0xD0000018u)
#define SIO_GPIO_OE_SET REGISTER(0xD0000024u)

/* 4.5 PWM, 4.9 ADC */
#define PWM_CSR(slice) REGISTER(0x40050000u + 0x14u * (slice))
#define PWM_CC(slice) REGISTER(0x4005000Cu + 0x14u * (slice))
#define PWM_TOP(slice) REGISTER(0x40050010u + 0x14u * (slice))
#define ADC_CS REGISTER(0x4004C000u)
#define ADC_RESULT REGISTER(0x4004C004u)
#define ADC_EN BIT(0)
#define ADC_START_ONCE BIT(2)
#define ADC_READY BIT(8)
#define ADC_CHANNEL(n) ((uint32_t)(n) << 12)

/* 4.6 timer, 4.7 watchdog */
#define TIMER_ALARM(n) REGISTER(0x40054010u + 4u * (n))
#define TIMER_ARMED REGISTER(0x40054020u)
#define TIMER_RAWH REGISTER(0x40054024u)
#define TIMER_RAWL REGISTER(0x40054028u)
#define TIMER_INTR REGISTER(0x40054034u)
#define TIMER_INTE REGISTER(0x40054038u)
#define WATCHDOG_CTRL REGISTER(0x40058000u)
#define WATCHDOG_LOAD REGISTER(0x40058004u)
#define WATCHDOG_REASON REGISTER(0x40058008u)
#define WATCHDOG_SCRATCH0 REGISTER(0x4005800Cu)
#define WATCHDOG_SCRATCH1 REGISTER(0x40058010u)
#define WATCHDOG_TICK REGISTER(0x4005802Cu)

/* 3 PIO: state machine 0 of the first block */
#define PIO_CTRL REGISTER(0x50200000u)
#define PIO_FSTAT REGISTER(0x50200004u)
#define PIO_RX_EMPTY BIT(8)
#define PIO_RXF0 REGISTER(0x50200020u)
#define PIO_INSTR_MEM(n) REGISTER(0x50200048u + 4u * (n))
#define PIO_SM0_CLKDIV REGISTER(0x502000C8u)
#define PIO_SM0_EXECCTRL REGISTER(0x502000CCu)
#define PIO_SM0_SHIFTCTRL REGISTER(0x502000D0u)
#define PIO_SM0_INSTR REGISTER(0x502000D8u)
#define PIO_SM0_PINCTRL REGISTER(0x502000DCu)

/* 4.1 USB */
#define USB_DPRAM 0x50100000u
#define USB_EP_CONTROL(n, in) REGISTER(USB_DPRAM + 8u * (n) + ((in) ? 0u : 4u))
#define USB_BUFFER_CONTROL(n, in) REGISTER(USB_DPRAM + 0x80u + 8u * (n) + ((in) ? 0u : 4u))
#define USB_ADDR_ENDP REGISTER(0x50110000u)
#define USB_MAIN_CTRL REGISTER(0x50110040u)
#define USB_SIE_CTRL REGISTER(0x5011004Cu)
#define USB_SIE_STATUS REGISTER(0x50110050u)
#define USB_BUFF_STATUS REGISTER(0x50110058u)
#define USB_EP_STALL_ARM REGISTER(0x50110068u)
#define USB_MUXING REGISTER(0x50110074u)
#define USB_PWR REGISTER(0x50110078u)
#define USB_INTE REGISTER(0x50110090u)
#define USB_INTS REGISTER(0x50110098u)

/* Cortex-M0+ */
#define NVIC_ENABLE REGISTER(0xE000E100u)
#define NVIC_PEND REGISTER(0xE000E200u)
#define NVIC_UNPEND REGISTER(0xE000E280u)
#define NVIC_PRIORITY(word) REGISTER(0xE000E400u + 4u * (word))
#define IRQ_TIMER_0 0u
#define IRQ_TIMER_1 1u
#define IRQ_USB 5u

static inline uint32_t onrig_masked(void) {
    uint32_t before;
    __asm volatile("mrs %0, primask\n cpsid i" : "=r"(before)::"memory");
    return before;
}

static inline void onrig_restore(uint32_t before) {
    __asm volatile("msr primask, %0" ::"r"(before) : "memory");
}

#endif
