#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))

#define HZ 25000000u
#define TICKS_PER_US (HZ / 1000000u)

#define UART_DATA REGISTER(0x40004000u)
#define UART_STATE REGISTER(0x40004004u)
#define UART_CTRL REGISTER(0x40004008u)
#define UART_INTERRUPT REGISTER(0x4000400Cu)
#define UART_BAUDDIV REGISTER(0x40004010u)
#define TX_FULL 1u
#define RX_FULL 2u
#define TX_INTERRUPT 1u
#define RX_INTERRUPT 2u
#define BAUD 1000000u

#define TIMER_CTRL REGISTER(0x40000000u) /* TIMER0: samples */
#define TIMER_VALUE REGISTER(0x40000004u)
#define TIMER_RELOAD REGISTER(0x40000008u)
#define TIMER_INTERRUPT REGISTER(0x4000000Cu)
#define CLOCK_CTRL REGISTER(0x40001000u) /* TIMER1: free-running, counts down */
#define CLOCK_VALUE REGISTER(0x40001004u)
#define CLOCK_RELOAD REGISTER(0x40001008u)

#define NVIC_ENABLE REGISTER(0xE000E100u)
#define NVIC_UNPEND REGISTER(0xE000E280u)
#define NVIC_PRIORITY(irq) (*(volatile uint8_t *)(0xE000E400u + (irq)))

#define RING 2048u /* a power of two */

struct ring {
    uint8_t bytes[RING];
    volatile uint32_t written;
    volatile uint32_t read;
};

static struct ring rx, tx;
static uint64_t ticks;
static uint32_t last_value;

static uint32_t masked(void) {
    uint32_t before;
    __asm volatile("mrs %0, primask\n cpsid i" : "=r"(before)::"memory");
    return before;
}

static void restore(uint32_t before) {
    __asm volatile("msr primask, %0" ::"r"(before) : "memory");
}

void onrig_board_start(void) {
    CLOCK_VALUE = last_value = UINT32_MAX;
    CLOCK_RELOAD = UINT32_MAX;
    CLOCK_CTRL = 1;
    UART_BAUDDIV = HZ / BAUD;
    UART_CTRL = 0xFu; /* both directions, both interrupts */
    (void)UART_DATA;  /* QEMU re-checks a closed connection only when the register is read */
    NVIC_PRIORITY(ONRIG_IRQ_TIMER) = 0x00;
    NVIC_PRIORITY(ONRIG_IRQ_RX) = 0x80;
    NVIC_PRIORITY(ONRIG_IRQ_TX) = 0x80;
    NVIC_ENABLE = 1u << ONRIG_IRQ_RX | 1u << ONRIG_IRQ_TX | 1u << ONRIG_IRQ_TIMER;
}

uint64_t onrig_board_now_us(void) {
    uint32_t before = masked();
    uint32_t value = CLOCK_VALUE;
    ticks += (uint32_t)(last_value - value);
    last_value = value;
    uint64_t now_us = ticks / TICKS_PER_US;
    restore(before);
    return now_us;
}

void onrig_board_wake_at(uint64_t due_us) {
    TIMER_CTRL = 0;
    TIMER_INTERRUPT = 1;
    NVIC_UNPEND = 1u << ONRIG_IRQ_TIMER;
    if (due_us == 0) return;
    uint64_t now_us = onrig_board_now_us();
    uint64_t left = due_us > now_us ? (due_us - now_us) * TICKS_PER_US : 1;
    TIMER_RELOAD = TIMER_VALUE = left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
    TIMER_CTRL = 1u | 1u << 3;
}

static void push_next(void) {
    if (tx.read == tx.written || UART_STATE & TX_FULL) return;
    UART_DATA = tx.bytes[tx.read++ % RING];
}

void onrig_board_send(void *line, const uint8_t *wire, size_t n) {
    (void)line;
    uint32_t before = masked();
    if (n <= RING - (tx.written - tx.read)) {
        for (size_t i = 0; i < n; i++) tx.bytes[(tx.written + i) % RING] = wire[i];
        tx.written += (uint32_t)n;
        push_next();
    }
    restore(before);
}

bool onrig_board_byte(uint8_t *byte) {
    if (rx.read == rx.written) return false;
    *byte = rx.bytes[rx.read % RING];
    rx.read++;
    return true;
}

void onrig_on_rx(void) {
    UART_INTERRUPT = RX_INTERRUPT;
    while (UART_STATE & RX_FULL) {
        uint8_t byte = (uint8_t)UART_DATA;
        if (rx.written - rx.read == RING) continue; /* lost, as on any port */
        rx.bytes[rx.written % RING] = byte;
        rx.written++;
    }
}

void onrig_on_tx(void) {
    UART_INTERRUPT = TX_INTERRUPT;
    uint32_t before = masked();
    push_next();
    restore(before);
}
