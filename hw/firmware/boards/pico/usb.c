#include "usb.h"

#include <string.h>

#include "rp2040.h"
#include "usb_control.h"
#include "usb_descriptors.h"

/* Buffer control (datasheet 4.1.2.5) */
#define LENGTH 0x3FFu
#define AVAILABLE BIT(10)
#define STALL BIT(11)
#define DATA1 BIT(13)
#define FULL BIT(15)
/* Endpoint control */
#define ENABLED (BIT(31) | BIT(29))
#define BULK (2u << 26)
#define INTERRUPT (3u << 26)
/* Interrupts, and their clear bits in SIE_STATUS */
#define ON_BUFFER BIT(4)
#define ON_BUS_RESET BIT(12)
#define ON_SUSPEND BIT(14)
#define ON_RESUME BIT(15)
#define ON_SETUP BIT(16)
#define STATUS_SUSPENDED BIT(4)
#define STATUS_RESUME BIT(11)
#define STATUS_SETUP BIT(17)
#define STATUS_BUS_RESET BIT(19)

#define IN true
#define OUT false
#define CONTROL_BUFFER ((volatile uint8_t *)(USB_DPRAM + 0x100u))
#define NOTIFY_OFFSET 0x180u
#define DATA_OUT_OFFSET 0x1C0u
#define DATA_IN_OFFSET 0x200u
#define HALTED_IN 1u
#define HALTED_OUT 2u
#define BUFFER_DONE(n, in) BIT(2u * (n) + ((in) ? 0u : 1u))

#define RING 2048u /* a power of two */

struct ring {
    uint8_t bytes[RING];
    volatile uint32_t written;
    volatile uint32_t read;
};

static struct ring rx, tx;
static struct onrig_usb usb;
static volatile bool lost;

/* Control transfer in progress. */
static struct onrig_usb_answer control;
static uint32_t control_pid;
/* Data endpoints: toggle of the next packet, and whether the controller owns one. */
static uint32_t in_pid, out_pid;
static bool in_busy, out_busy, in_was_full;

static void copy_in(uint8_t *to, const volatile uint8_t *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

static void copy_out(volatile uint8_t *to, const uint8_t *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

/* Hand a buffer to the controller, which runs on another clock: the rest of the word must be written before AVAILABLE
 * (datasheet 4.1.2.5.1). */
static void give(uint32_t endpoint, bool in, uint32_t value) {
    USB_BUFFER_CONTROL(endpoint, in) = value;
    for (int i = 0; i < 4; i++) __asm volatile("nop\n nop\n nop");
    USB_BUFFER_CONTROL(endpoint, in) = value | AVAILABLE;
}

/* -- control pipe --------------------------------------------------------------------------------------------------- */

static void send_control_packet(void) {
    uint32_t n = control.n < ONRIG_USB_PACKET ? (uint32_t)control.n : ONRIG_USB_PACKET;
    copy_out(CONTROL_BUFFER, control.data, n);
    control.data += n;
    control.n -= n;
    give(0, IN, n | FULL | control_pid);
    control_pid ^= DATA1;
}

static void restart_data(uint8_t endpoints) {
    if (endpoints & HALTED_IN) {
        USB_BUFFER_CONTROL(ONRIG_USB_DATA, IN) = usb.halted & HALTED_IN ? STALL : 0;
        in_pid = 0;
        in_busy = in_was_full = false;
    }
    if (endpoints & HALTED_OUT) {
        USB_BUFFER_CONTROL(ONRIG_USB_DATA, OUT) = usb.halted & HALTED_OUT ? STALL : 0;
        out_pid = 0;
        out_busy = false;
    }
}

static void close_line(void) {
    lost = true;
    rx.read = rx.written;
    tx.read = tx.written;
    in_was_full = false;
}

static void on_setup(void) {
    uint8_t setup[8];
    bool was_open = onrig_usb_line_open(&usb);
    copy_in(setup, (volatile uint8_t *)USB_DPRAM, sizeof setup);
    USB_BUFFER_CONTROL(0, IN) = USB_BUFFER_CONTROL(0, OUT) = 0; /* left over from an aborted transfer */
    control = onrig_usb_setup(&usb, setup);
    control_pid = DATA1;
    restart_data(control.restart);
    if (was_open && !onrig_usb_line_open(&usb)) close_line();
    switch (control.stage) {
    case ONRIG_USB_SEND: send_control_packet(); break;
    case ONRIG_USB_TAKE: give(0, OUT, (uint32_t)control.n | DATA1); break;
    case ONRIG_USB_STATUS: give(0, IN, FULL | DATA1); break;
    default:
        USB_EP_STALL_ARM = 3;
        USB_BUFFER_CONTROL(0, IN) = USB_BUFFER_CONTROL(0, OUT) = STALL;
    }
}

static void on_control_sent(void) {
    if (control.stage == ONRIG_USB_SEND && control.n > 0)
        send_control_packet();
    else if (control.stage == ONRIG_USB_SEND)
        give(0, OUT, DATA1); /* the host's status */
    else
        USB_ADDR_ENDP = usb.address;
}

static void on_control_taken(void) {
    uint8_t data[ONRIG_USB_PACKET];
    if (control.stage != ONRIG_USB_TAKE) return;
    size_t n = USB_BUFFER_CONTROL(0, OUT) & LENGTH;
    if (n > control.n) n = control.n;
    copy_in(data, CONTROL_BUFFER, n);
    onrig_usb_taken(&usb, data, n);
    control.stage = ONRIG_USB_STATUS;
    give(0, IN, FULL | DATA1);
}

/* -- port data ------------------------------------------------------------------------------------------------------
 * */

/* Send the next packet if there is data: an empty one after a full last packet, since the host would otherwise wait for
 * the rest. */
static void pump_out(void) {
    uint32_t n = tx.written - tx.read;
    if (in_busy || usb.halted & HALTED_IN || !onrig_usb_line_open(&usb) || (n == 0 && !in_was_full)) return;
    if (n > ONRIG_USB_PACKET) n = ONRIG_USB_PACKET;
    volatile uint8_t *packet = (volatile uint8_t *)(USB_DPRAM + DATA_IN_OFFSET);
    for (uint32_t i = 0; i < n; i++) packet[i] = tx.bytes[tx.read++ % RING];
    in_busy = true;
    in_was_full = n == ONRIG_USB_PACKET;
    give(ONRIG_USB_DATA, IN, n | FULL | in_pid);
    in_pid ^= DATA1;
}

/* Receive the next packet if there is room for a full one; until then the host waits. */
static void pump_in(void) {
    if (out_busy || usb.halted & HALTED_OUT || usb.configuration == 0) return;
    if (RING - (rx.written - rx.read) < ONRIG_USB_PACKET) return;
    out_busy = true;
    give(ONRIG_USB_DATA, OUT, ONRIG_USB_PACKET | out_pid);
    out_pid ^= DATA1;
}

static void on_packet_taken(void) {
    uint32_t n = USB_BUFFER_CONTROL(ONRIG_USB_DATA, OUT) & LENGTH;
    const volatile uint8_t *packet = (volatile uint8_t *)(USB_DPRAM + DATA_OUT_OFFSET);
    out_busy = false;
    if (!onrig_usb_line_open(&usb)) return;
    for (uint32_t i = 0; i < n; i++) rx.bytes[rx.written++ % RING] = packet[i];
}

void onrig_usb_send(void *line, const uint8_t *wire, size_t n) {
    (void)line;
    uint32_t before = onrig_masked();
    if (onrig_usb_line_open(&usb) && n <= RING - (tx.written - tx.read)) {
        for (size_t i = 0; i < n; i++) tx.bytes[tx.written++ % RING] = wire[i];
        pump_out();
    }
    onrig_restore(before);
}

bool onrig_usb_byte(uint8_t *byte) {
    uint32_t before = onrig_masked();
    bool there = rx.read != rx.written;
    if (there) *byte = rx.bytes[rx.read++ % RING];
    pump_in();
    onrig_restore(before);
    return there;
}

bool onrig_usb_line_lost(void) {
    uint32_t before = onrig_masked();
    bool was = lost;
    lost = false;
    onrig_restore(before);
    return was;
}

/* -- controller ----------------------------------------------------------------------------------------------------- */

static void on_buffers(void) {
    uint32_t done = USB_BUFF_STATUS;
    CLEAR_BITS(USB_BUFF_STATUS) = done;
    if (done & BUFFER_DONE(0, IN)) on_control_sent();
    if (done & BUFFER_DONE(0, OUT)) on_control_taken();
    if (done & BUFFER_DONE(ONRIG_USB_DATA, OUT)) on_packet_taken();
    if (done & BUFFER_DONE(ONRIG_USB_DATA, IN)) in_busy = false;
}

static void on_bus_reset(void) {
    USB_ADDR_ENDP = 0;
    onrig_usb_reset(&usb);
    restart_data(HALTED_IN | HALTED_OUT);
    close_line();
}

/* The timer interrupts, which send frames, are held off for some ten microseconds. */
void onrig_on_usb(void) {
    uint32_t before = onrig_masked(), on = USB_INTS;
    if (on & ON_BUFFER) on_buffers(); /* completed transfers before new ones */
    if (on & ON_BUS_RESET) {
        CLEAR_BITS(USB_SIE_STATUS) = STATUS_BUS_RESET;
        on_bus_reset();
    }
    if (on & ON_SUSPEND) {
        CLEAR_BITS(USB_SIE_STATUS) = STATUS_SUSPENDED;
        usb.suspended = true;
        close_line();
    }
    if (on & ON_RESUME) {
        CLEAR_BITS(USB_SIE_STATUS) = STATUS_RESUME;
        usb.suspended = false;
    }
    if (on & ON_SETUP) {
        usb.suspended = false;
        CLEAR_BITS(USB_SIE_STATUS) = STATUS_SETUP;
        on_setup();
    }
    pump_out();
    pump_in();
    onrig_restore(before);
}

void onrig_usb_start(const char *product, const char *serial) {
    static const uint8_t coding[ONRIG_USB_LINE_CODING_BYTES] = {0x00, 0xC2, 0x01, 0x00, 0, 0, 8}; /* 115200 8N1 */
    usb.product = product;
    usb.serial = serial;
    memcpy(usb.line_coding, coding, sizeof coding);
    for (uint32_t offset = 0; offset < 4096; offset += 4) REGISTER(USB_DPRAM + offset) = 0;
    USB_EP_CONTROL(ONRIG_USB_NOTIFY, IN) = ENABLED | INTERRUPT | NOTIFY_OFFSET;
    USB_EP_CONTROL(ONRIG_USB_DATA, IN) = ENABLED | BULK | DATA_IN_OFFSET;
    USB_EP_CONTROL(ONRIG_USB_DATA, OUT) = ENABLED | BULK | DATA_OUT_OFFSET;
    USB_MUXING = BIT(0) | BIT(3);  /* the controller on the chip's own PHY */
    USB_PWR = BIT(2) | BIT(3);     /* this board does not measure VBUS; assume it is present */
    USB_MAIN_CTRL = BIT(0);        /* as a device */
    USB_SIE_CTRL = BIT(29);        /* an interrupt for each buffer of endpoint 0 */
    USB_INTE = ON_BUFFER | ON_BUS_RESET | ON_SUSPEND | ON_RESUME | ON_SETUP;
    NVIC_ENABLE = BIT(IRQ_USB);
    SET_BITS(USB_SIE_CTRL) = BIT(16); /* pull-up: announce the device */
}
