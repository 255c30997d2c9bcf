/* USB descriptors of the board: a serial port (CDC-ACM, PSTN 1.2) with three endpoints. */
#ifndef ONRIG_PICO_USB_DESCRIPTORS_H
#define ONRIG_PICO_USB_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

#define ONRIG_USB_PACKET 64u
#define ONRIG_USB_NOTIFY 1u /* endpoint number of the notifications, which are never sent */
#define ONRIG_USB_NOTIFY_BYTES 8u
#define ONRIG_USB_DATA 2u   /* endpoint number of the port's data, both directions */

/* Descriptor of that type and index; null if there is none. A string (product, serial number: ASCII, at most
 * ONRIG_USB_STRING_CHARS each) is valid until the next call. */
#define ONRIG_USB_STRING_CHARS 30u /* less than a packet */
const uint8_t *onrig_usb_descriptor(uint8_t type, uint8_t index, const char *product, const char *serial, size_t *n);

#endif
