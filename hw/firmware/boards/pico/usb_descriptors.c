#include "usb_descriptors.h"

#define LOW(word) ((word) & 0xFF)
#define HIGH(word) ((word) >> 8)
#define WORD(word) LOW(word), HIGH(word)

/* pid.codes pair for tests; distributors of boards must request their own. */
#define VENDOR 0x1209
#define PRODUCT 0x0001
#define VERSION 0x0001

enum { DEVICE = 1, CONFIGURATION = 2, STRING = 3, INTERFACE = 4, ENDPOINT = 5, CLASS_INTERFACE = 0x24 };
enum { MANUFACTURER = 1, NAME = 2, SERIAL = 3 };

static const uint8_t device[] = {
    18, DEVICE, WORD(0x0200), 2, 0, 0, /* USB 2.0; communications class */
    ONRIG_USB_PACKET, WORD(VENDOR), WORD(PRODUCT), WORD(VERSION), MANUFACTURER, NAME, SERIAL, 1,
};

#define CONFIGURATION_BYTES 67
static const uint8_t configuration[CONFIGURATION_BYTES] = {
    9, CONFIGURATION, WORD(CONFIGURATION_BYTES), 2, 1, 0, 0x80, 50, /* two interfaces, at most 100 mA from the bus */

    9, INTERFACE, 0, 0, 1, 2, 2, 0, 0,     /* communications, abstract control model */
    5, CLASS_INTERFACE, 0x00, WORD(0x0110), /* header: CDC 1.1 */
    5, CLASS_INTERFACE, 0x01, 0, 1,         /* call management: none */
    4, CLASS_INTERFACE, 0x02, 0x02,         /* takes line coding and control line state */
    5, CLASS_INTERFACE, 0x06, 0, 1,         /* union of both interfaces */
    7, ENDPOINT, 0x80 | ONRIG_USB_NOTIFY, 3, WORD(ONRIG_USB_NOTIFY_BYTES), 16,

    9, INTERFACE, 1, 0, 2, 10, 0, 0, 0, /* data */
    7, ENDPOINT, ONRIG_USB_DATA, 2, WORD(ONRIG_USB_PACKET), 0,
    7, ENDPOINT, 0x80 | ONRIG_USB_DATA, 2, WORD(ONRIG_USB_PACKET), 0,
};

/* Languages, manufacturer, product, serial number. */
static const uint8_t *string(uint8_t index, const char *product, const char *serial, size_t *n) {
    static uint8_t unicode[2 + 2 * ONRIG_USB_STRING_CHARS];
    const char *const texts[] = {"\x09\x04", "Onrig", product, serial};
    size_t step = index == 0 ? 1 : 2, at = 2;
    if (index >= sizeof texts / sizeof texts[0]) return NULL;
    for (const char *text = texts[index]; *text != '\0' && at < sizeof unicode; text++, at += step) {
        unicode[at] = (uint8_t)*text;
        if (step == 2) unicode[at + 1] = 0;
    }
    unicode[0] = (uint8_t)at;
    unicode[1] = STRING;
    *n = at;
    return unicode;
}

const uint8_t *onrig_usb_descriptor(uint8_t type, uint8_t index, const char *product, const char *serial, size_t *n) {
    if (type == STRING) return string(index, product, serial, n);
    if (index != 0) return NULL;
    *n = type == DEVICE ? sizeof device : sizeof configuration;
    return type == DEVICE ? device : type == CONFIGURATION ? configuration : NULL;
}
