/* Control pipe of the serial port, independent of the hardware (USB 2.0, chapter 9; CDC PSTN 1.2, chapter 6). */
#ifndef ONRIG_PICO_USB_CONTROL_H
#define ONRIG_PICO_USB_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ONRIG_USB_LINE_CODING_BYTES 7u

struct onrig_usb {
    const char *product;
    const char *serial;
    uint8_t address;
    uint8_t configuration; /* 0 or 1 */
    uint8_t halted;        /* bits of the data endpoints: 1 in, 2 out */
    bool dtr;              /* a host has the port open */
    bool suspended;
    uint8_t line_coding[ONRIG_USB_LINE_CODING_BYTES]; /* baud rate and so on: stored and reported, without effect */
    uint8_t reply[2];
};

enum onrig_usb_stage {
    ONRIG_USB_STALL,  /* the request is refused */
    ONRIG_USB_SEND,   /* data from the device follow, then the host's status */
    ONRIG_USB_TAKE,   /* data from the host follow, then the device's status */
    ONRIG_USB_STATUS, /* device's status only; the new address applies after it */
};

struct onrig_usb_answer {
    enum onrig_usb_stage stage;
    const uint8_t *data; /* to send; valid until the next request */
    size_t n;            /* to send or take */
    uint8_t restart;     /* data endpoints that restart with DATA0: bits as in halted */
};

/* Reset of the bus: address 0, not configured, port closed. */
void onrig_usb_reset(struct onrig_usb *usb);
/* Answer a SETUP packet of eight bytes. */
struct onrig_usb_answer onrig_usb_setup(struct onrig_usb *usb, const uint8_t *setup);
/* Process the data of a request that was answered with ONRIG_USB_TAKE. */
void onrig_usb_taken(struct onrig_usb *usb, const uint8_t *data, size_t n);
/* Whether a host has the port open and the bus is awake. */
bool onrig_usb_line_open(const struct onrig_usb *usb);

#endif
