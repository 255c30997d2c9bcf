/* The messages of the wire protocol, laid out byte by byte, little-endian (hw/PROTOCOL.md, section 2).
 *
 * Encoders return the length of the body, type byte included.
 */
#ifndef ONRIG_MESSAGES_H
#define ONRIG_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "framing.h"
#include "rig.h"

#define ONRIG_PROTOCOL 1u
#define ONRIG_RESPONSE_HEAD 5u
#define ONRIG_CHANNEL_BYTES 50u
#define ONRIG_RESPONSE_BYTES (ONRIG_RESPONSE_HEAD + ONRIG_CHANNEL_BYTES) /* the longest response */

enum onrig_type {
    ONRIG_HELLO_REQUEST = 0x01,
    ONRIG_HELLO = 0x02,
    ONRIG_COMMAND = 0x10,
    ONRIG_STATE = 0x11,
    ONRIG_RENEW = 0x12,
    ONRIG_REQUEST = 0x20,
    ONRIG_RESPONSE = 0x21
};

enum onrig_op {
    ONRIG_DESCRIBE = 1,
    ONRIG_CONFIGURE = 2,
    ONRIG_LIMITS = 3,
    ONRIG_ARM = 4,
    ONRIG_DISARM = 5,
    ONRIG_CLEAR_FAULT = 6,
    ONRIG_RESET = 7
};

enum onrig_result {
    ONRIG_OK = 0,
    ONRIG_UNKNOWN_OP = 1,
    ONRIG_BAD_LENGTH = 2,
    ONRIG_OUT_OF_RANGE = 3,
    ONRIG_NOT_NOW = 4
};

enum onrig_status { ONRIG_ARMED = 1, ONRIG_FAULT = 2, ONRIG_SAFE = 4, ONRIG_CLAMPED = 8, ONRIG_FIRST = 16 };

/* In order of severity. */
enum onrig_fault {
    ONRIG_FAULT_NONE = 0,
    ONRIG_FAULT_LEASE = 1,
    ONRIG_FAULT_SENSOR = 2,
    ONRIG_FAULT_ESTOP = 3,
    ONRIG_FAULT_INTERNAL = 4
};

enum onrig_capability { ONRIG_CAN_RESET = 1, ONRIG_RELEASES = 2, ONRIG_EVALUATES = 4 };

struct onrig_state {
    uint32_t frame;
    uint64_t t_us;
    uint16_t status;
    uint8_t fault;
    uint8_t lease_left;
    uint32_t answers;
    uint32_t tau_us;
    const int32_t *sensors;
    const int32_t *u_start;
    const int32_t *u_end;
};

uint16_t onrig_get_u16(const uint8_t *at);
uint32_t onrig_get_u32(const uint8_t *at);
uint64_t onrig_get_u64(const uint8_t *at);
int32_t onrig_get_i32(const uint8_t *at);
/* Write four bytes and return the position after them. */
uint8_t *onrig_put_u32(uint8_t *at, uint32_t value);

size_t onrig_put_hello(
    uint8_t *body, const struct onrig_rig *rig, uint32_t capabilities, uint32_t boot_id, float time_scale);
size_t onrig_put_state(uint8_t *body, const struct onrig_rig *rig, const struct onrig_state *state);
/* Payload of the answer to DESCRIBE. */
size_t onrig_put_channel(uint8_t *payload, const struct onrig_channel *channel, bool is_actuator);

#endif
