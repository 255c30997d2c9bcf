/* Connection to the host: a USB serial port. */
#ifndef ONRIG_PICO_USB_H
#define ONRIG_PICO_USB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Attach to the bus; both strings remain owned by the caller. */
void onrig_usb_start(const char *product, const char *serial);
/* Queue a frame for the host, either complete or not at all; discard it while the port is not open. */
void onrig_usb_send(void *line, const uint8_t *wire, size_t n);
/* Take one byte from the host; false if there is none. */
bool onrig_usb_byte(uint8_t *byte);
/* Whether the port was closed since the last call: closed (DTR), bus reset or suspended, cable unplugged. The queues
 * are cleared. */
bool onrig_usb_line_lost(void);

void onrig_on_usb(void);

#endif
