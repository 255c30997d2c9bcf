/* The acknowledged channel (hw/PROTOCOL.md, section 2.5). */
#include <string.h>

#include "device.h"

#define HEAD 4u /* type, id, op */

/* Payload length of an operation; -1 for one that this device does not support. */
static int payload_bytes(const struct onrig_device *device, uint8_t op) {
    switch (op) {
    case ONRIG_DESCRIBE: return 1;
    case ONRIG_CONFIGURE: return 5;
    case ONRIG_LIMITS: return 9;
    case ONRIG_ARM: return 0;
    case ONRIG_DISARM: return 0;
    case ONRIG_CLEAR_FAULT: return 0;
    case ONRIG_RESET: return device->port->reset ? 8 : -1;
    default: return -1;
    }
}

static enum onrig_result describe(struct onrig_device *device, uint8_t index) {
    const struct onrig_rig *rig = device->rig;
    uint8_t *payload = device->response + device->response_n;
    if (index < rig->n_sensors) {
        device->response_n += onrig_put_channel(payload, &rig->sensors[index], false);
    } else if (index - rig->n_sensors < rig->n_actuators) {
        device->response_n += onrig_put_channel(payload, &rig->actuators[index - rig->n_sensors], true);
    } else {
        return ONRIG_OUT_OF_RANGE;
    }
    return ONRIG_OK;
}

static enum onrig_result configure(
    struct onrig_device *device, uint32_t period_us, uint8_t lease_periods, uint64_t now_us) {
    const struct onrig_rig *rig = device->rig;
    if (period_us < rig->period_min_us || period_us > rig->period_max_us) return ONRIG_OUT_OF_RANGE;
    if (lease_periods < 1 || lease_periods > rig->lease_max) return ONRIG_OUT_OF_RANGE;
    onrig_device_disarm(device, now_us);
    onrig_output_unlimit(&device->output, rig);
    onrig_output_restart(&device->output, rig);
    device->lease.periods = lease_periods;
    device->answered = false;
    device->period_us = period_us;
    device->sampled_us = now_us;
    return ONRIG_OK;
}

static enum onrig_result arm(struct onrig_device *device) {
    if (device->fault != 0 || device->period_us == 0) return ONRIG_NOT_NOW;
    if (!device->armed) device->evaluates = false; /* until the host renews it */
    device->armed = true;
    onrig_lease_renew(&device->lease);
    return ONRIG_OK;
}

static enum onrig_result clear_fault(struct onrig_device *device, uint64_t now_us) {
    if (device->estop_pressed || device->fault == ONRIG_FAULT_INTERNAL) return ONRIG_NOT_NOW;
    device->fault = ONRIG_FAULT_NONE;
    onrig_device_disarm(device, now_us);
    return ONRIG_OK;
}

static enum onrig_result reset(struct onrig_device *device, uint64_t seed, uint64_t now_us) {
    const struct onrig_port *port = device->port;
    if (device->period_us == 0) return ONRIG_NOT_NOW;
    onrig_output_restart(&device->output, device->rig);
    port->actuate(port->board, now_us, device->output.end.counts);
    port->reset(port->board, now_us, seed);
    onrig_lease_renew(&device->lease);
    device->answered = device->evaluates = false;
    device->first = true;
    onrig_put_u32(device->response + device->response_n, onrig_device_next_frame(device));
    device->response_n += 4;
    return ONRIG_OK;
}

static enum onrig_result carry_out(
    struct onrig_device *device, uint8_t op, const uint8_t *payload, size_t n, uint64_t now_us) {
    int expected = payload_bytes(device, op);
    if (expected < 0) return ONRIG_UNKNOWN_OP;
    if (n != (size_t)expected) return ONRIG_BAD_LENGTH;
    switch (op) {
    case ONRIG_DESCRIBE: return describe(device, payload[0]);
    case ONRIG_CONFIGURE: return configure(device, onrig_get_u32(payload), payload[4], now_us);
    case ONRIG_LIMITS: {
        int32_t low = onrig_get_i32(payload + 1), high = onrig_get_i32(payload + 5);
        bool taken = onrig_output_limit(&device->output, device->rig, payload[0], low, high);
        return taken ? ONRIG_OK : ONRIG_OUT_OF_RANGE;
    }
    case ONRIG_ARM: return arm(device);
    case ONRIG_CLEAR_FAULT: return clear_fault(device, now_us);
    case ONRIG_RESET: return reset(device, onrig_get_u64(payload), now_us);
    default: onrig_device_disarm(device, now_us); return ONRIG_OK; /* only DISARM remains */
    }
}

void onrig_device_request(struct onrig_device *device, const uint8_t *body, size_t n, uint64_t now_us) {
    if (n < HEAD || n > ONRIG_MAX_BODY) return;
    bool repeated = n == device->request_n && memcmp(body, device->request, n) == 0;
    if (!repeated) {
        memcpy(device->request, body, n);
        device->request_n = n;
        device->response[0] = ONRIG_RESPONSE;
        memcpy(device->response + 1, body + 1, 3); /* id and op */
        device->response_n = ONRIG_RESPONSE_HEAD;
        device->response[4] = (uint8_t)carry_out(device, body[3], body + HEAD, n - HEAD, now_us);
    }
    onrig_device_send(device, device->response, device->response_n);
}
