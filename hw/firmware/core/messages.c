#include "messages.h"

#include <string.h>

/* The protocol uses IEEE 754 floats; a compiler with smaller ones must store their bytes instead. */
typedef char onrig_double_has_eight_bytes[sizeof(double) == 8 ? 1 : -1];
typedef char onrig_float_has_four_bytes[sizeof(float) == 4 ? 1 : -1];

static uint8_t *put_u8(uint8_t *at, uint8_t value) {
    *at = value;
    return at + 1;
}

static uint8_t *put_u16(uint8_t *at, uint16_t value) {
    return put_u8(put_u8(at, (uint8_t)value), (uint8_t)(value >> 8));
}

uint8_t *onrig_put_u32(uint8_t *at, uint32_t value) {
    return put_u16(put_u16(at, (uint16_t)value), (uint16_t)(value >> 16));
}

static uint8_t *put_u64(uint8_t *at, uint64_t value) {
    return onrig_put_u32(onrig_put_u32(at, (uint32_t)value), (uint32_t)(value >> 32));
}

static uint8_t *put_counts(uint8_t *at, const int32_t *counts, size_t n) {
    for (size_t i = 0; i < n; i++) at = onrig_put_u32(at, (uint32_t)counts[i]);
    return at;
}

static uint8_t *put_text(uint8_t *at, const char *text, size_t n) {
    size_t used = 0;
    while (used < n && text[used] != '\0') used++;
    memset(at, 0, n);
    memcpy(at, text, used);
    return at + n;
}

static uint8_t *put_f32(uint8_t *at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return onrig_put_u32(at, bits);
}

static uint8_t *put_f64(uint8_t *at, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return put_u64(at, bits);
}

uint16_t onrig_get_u16(const uint8_t *at) {
    return (uint16_t)(at[0] | (unsigned)at[1] << 8);
}

uint32_t onrig_get_u32(const uint8_t *at) {
    return onrig_get_u16(at) | (uint32_t)onrig_get_u16(at + 2) << 16;
}

uint64_t onrig_get_u64(const uint8_t *at) {
    return onrig_get_u32(at) | (uint64_t)onrig_get_u32(at + 4) << 32;
}

int32_t onrig_get_i32(const uint8_t *at) {
    /* The conversion of an out-of-range value is implementation-defined; this one is not. */
    uint32_t value = onrig_get_u32(at);
    return value <= INT32_MAX ? (int32_t)value : -1 - (int32_t)(UINT32_MAX - value);
}

size_t onrig_put_hello(
    uint8_t *body, const struct onrig_rig *rig, uint32_t capabilities, uint32_t boot_id, float time_scale) {
    uint8_t *at = put_u8(body, ONRIG_HELLO);
    at = put_u16(at, ONRIG_PROTOCOL);
    at = put_u8(at, rig->n_sensors);
    at = put_u8(at, rig->n_actuators);
    at = put_text(at, rig->name, ONRIG_NAME_BYTES);
    at = onrig_put_u32(at, capabilities);
    at = onrig_put_u32(at, boot_id);
    at = onrig_put_u32(at, rig->period_min_us);
    at = onrig_put_u32(at, rig->period_max_us);
    at = put_u8(at, rig->lease_max);
    at = put_f32(at, time_scale);
    return (size_t)(at - body);
}

size_t onrig_put_state(uint8_t *body, const struct onrig_rig *rig, const struct onrig_state *state) {
    uint8_t *at = put_u8(body, ONRIG_STATE);
    at = onrig_put_u32(at, state->frame);
    at = put_u64(at, state->t_us);
    at = put_u16(at, state->status);
    at = put_u8(at, state->fault);
    at = put_u8(at, state->lease_left);
    at = onrig_put_u32(at, state->answers);
    at = onrig_put_u32(at, state->tau_us);
    at = put_counts(at, state->sensors, rig->n_sensors);
    at = put_counts(at, state->u_start, rig->n_actuators);
    at = put_counts(at, state->u_end, rig->n_actuators);
    return (size_t)(at - body);
}

size_t onrig_put_channel(uint8_t *payload, const struct onrig_channel *channel, bool is_actuator) {
    uint8_t *at = put_u8(payload, is_actuator ? 1 : 0);
    at = put_u8(at, channel->wrap ? 1 : 0);
    at = put_text(at, channel->name, ONRIG_NAME_BYTES);
    at = put_text(at, channel->unit, ONRIG_UNIT_BYTES);
    at = put_f64(at, channel->resolution);
    at = onrig_put_u32(at, (uint32_t)channel->low);
    at = onrig_put_u32(at, (uint32_t)channel->high);
    at = onrig_put_u32(at, (uint32_t)channel->safe);
    return (size_t)(at - payload);
}
