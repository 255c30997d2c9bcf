/* The line to the host: a USB serial port. */
#ifndef ONRIG_PICO_USB_H
#define ONRIG_PICO_USB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Appear on the bus; both texts stay the caller's. */
void onrig_usb_start(const char *product, const char *serial);
/* Queue a frame for the host, whole or not at all; nothing while nobody has the port open. */
void onrig_usb_send(void *line, const uint8_t *wire, size_t n);
/* One byte from the host; false where there is none. */
bool onrig_usb_byte(uint8_t *byte);
/* Whether the line was closed since this was last asked: port closed (DTR), bus reset or suspended, cable pulled. What
 * stood in the queues is gone. */
bool onrig_usb_line_lost(void);

void onrig_on_usb(void);

#endif
