#include "usb_control.h"

#include <string.h>

#include "usb_descriptors.h"

/* bmRequestType and bRequest combined: */
#define REQUEST(kind, code) ((kind) << 8 | (code))
#define GET_STATUS_OF_DEVICE REQUEST(0x80, 0)
#define GET_STATUS_OF_INTERFACE REQUEST(0x81, 0)
#define GET_STATUS_OF_ENDPOINT REQUEST(0x82, 0)
#define CLEAR_FEATURE_OF_ENDPOINT REQUEST(0x02, 1)
#define SET_FEATURE_OF_ENDPOINT REQUEST(0x02, 3)
#define SET_ADDRESS REQUEST(0x00, 5)
#define GET_DESCRIPTOR REQUEST(0x80, 6)
#define GET_CONFIGURATION REQUEST(0x80, 8)
#define SET_CONFIGURATION REQUEST(0x00, 9)
#define GET_INTERFACE REQUEST(0x81, 10)
#define SET_INTERFACE REQUEST(0x01, 11)
#define SET_LINE_CODING REQUEST(0x21, 0x20)
#define GET_LINE_CODING REQUEST(0xA1, 0x21)
#define SET_CONTROL_LINE_STATE REQUEST(0x21, 0x22)
#define SEND_BREAK REQUEST(0x21, 0x23)

#define DTR 1u
#define ENDPOINT_HALT 0u
#define INTERFACES 2u

static const struct onrig_usb_answer stall = {.stage = ONRIG_USB_STALL}, status = {.stage = ONRIG_USB_STATUS};

void onrig_usb_reset(struct onrig_usb *usb) {
    usb->address = usb->configuration = usb->halted = 0;
    usb->dtr = usb->suspended = false;
}

bool onrig_usb_line_open(const struct onrig_usb *usb) {
    return usb->configuration != 0 && usb->dtr && !usb->suspended;
}

static struct onrig_usb_answer send(const uint8_t *data, size_t n, size_t wanted) {
    struct onrig_usb_answer answer = {.stage = ONRIG_USB_SEND, .data = data, .n = n < wanted ? n : wanted};
    return answer;
}

static struct onrig_usb_answer send_byte(struct onrig_usb *usb, uint8_t byte, size_t n, size_t wanted) {
    usb->reply[0] = byte;
    usb->reply[1] = 0;
    return send(usb->reply, n, wanted);
}

/* Bit of a data endpoint's address in `halted`; 0 for any other. */
static uint8_t halt_bit(uint16_t endpoint) {
    return endpoint == (0x80 | ONRIG_USB_DATA) ? 1 : endpoint == ONRIG_USB_DATA ? 2 : 0;
}

static struct onrig_usb_answer halt(struct onrig_usb *usb, uint16_t feature, uint16_t endpoint, bool halted) {
    uint8_t bit = halt_bit(endpoint);
    struct onrig_usb_answer answer = status;
    if (feature != ENDPOINT_HALT || bit == 0 || usb->configuration == 0) return stall;
    usb->halted = (uint8_t)(halted ? usb->halted | bit : usb->halted & ~bit);
    answer.restart = bit;
    return answer;
}

static struct onrig_usb_answer configure(struct onrig_usb *usb, uint16_t configuration) {
    struct onrig_usb_answer answer = status;
    if (configuration > 1) return stall;
    usb->configuration = (uint8_t)configuration;
    usb->halted = 0;
    usb->dtr = false;
    answer.restart = 3;
    return answer;
}

static struct onrig_usb_answer descriptor(struct onrig_usb *usb, uint16_t value, size_t wanted) {
    size_t n = 0;
    const uint8_t *found =
        onrig_usb_descriptor((uint8_t)(value >> 8), (uint8_t)value, usb->product, usb->serial, &n);
    return found != NULL ? send(found, n, wanted) : stall;
}

static struct onrig_usb_answer of_the_line(struct onrig_usb *usb, unsigned request, uint16_t value, size_t wanted) {
    struct onrig_usb_answer answer = {.stage = ONRIG_USB_TAKE, .n = ONRIG_USB_LINE_CODING_BYTES};
    switch (request) {
    case SET_LINE_CODING: return wanted == ONRIG_USB_LINE_CODING_BYTES ? answer : stall;
    case GET_LINE_CODING: return send(usb->line_coding, sizeof usb->line_coding, wanted);
    case SET_CONTROL_LINE_STATE: usb->dtr = value & DTR; return status;
    case SEND_BREAK: return status;
    default: return stall;
    }
}

struct onrig_usb_answer onrig_usb_setup(struct onrig_usb *usb, const uint8_t *setup) {
    unsigned request = REQUEST((unsigned)setup[0], setup[1]);
    uint16_t value = (uint16_t)(setup[2] | setup[3] << 8), index = (uint16_t)(setup[4] | setup[5] << 8);
    size_t wanted = (size_t)(setup[6] | setup[7] << 8);
    switch (request) {
    case GET_STATUS_OF_DEVICE: return send_byte(usb, 0, 2, wanted); /* bus-powered, no remote wake-up */
    case GET_STATUS_OF_INTERFACE: return index < INTERFACES ? send_byte(usb, 0, 2, wanted) : stall;
    case GET_STATUS_OF_ENDPOINT: return send_byte(usb, (usb->halted & halt_bit(index)) != 0, 2, wanted);
    case CLEAR_FEATURE_OF_ENDPOINT: return halt(usb, value, index, false);
    case SET_FEATURE_OF_ENDPOINT: return halt(usb, value, index, true);
    case SET_ADDRESS: usb->address = (uint8_t)(value & 0x7F); return status;
    case GET_DESCRIPTOR: return descriptor(usb, value, wanted);
    case GET_CONFIGURATION: return send_byte(usb, usb->configuration, 1, wanted);
    case SET_CONFIGURATION: return configure(usb, value);
    case GET_INTERFACE: return index < INTERFACES ? send_byte(usb, 0, 1, wanted) : stall;
    case SET_INTERFACE: return index < INTERFACES && value == 0 ? status : stall;
    default: return usb->configuration != 0 && index == 0 ? of_the_line(usb, request, value, wanted) : stall;
    }
}

void onrig_usb_taken(struct onrig_usb *usb, const uint8_t *data, size_t n) {
    if (n == ONRIG_USB_LINE_CODING_BYTES) memcpy(usb->line_coding, data, n);
}
