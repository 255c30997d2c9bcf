#include "device.h"

#include <string.h>

void onrig_device_send(const struct onrig_device *device, const uint8_t *body, size_t n) {
    uint8_t wire[ONRIG_MAX_WIRE];
    device->port->send(device->port->board, wire, onrig_encode(body, n, wire));
}

static void say_hello(const struct onrig_device *device) {
    const struct onrig_port *port = device->port;
    uint8_t body[ONRIG_MAX_BODY];
    uint32_t capabilities = (port->reset ? ONRIG_CAN_RESET : 0u) | (port->releases ? ONRIG_RELEASES : 0u) |
                            (device->policy ? ONRIG_EVALUATES : 0u);
    onrig_device_send(
        device, body, onrig_put_hello(body, device->rig, capabilities, device->boot_id, port->time_scale));
}

void onrig_device_start(
    struct onrig_device *device, const struct onrig_rig *rig, const struct onrig_port *port, uint32_t boot_id) {
    memset(device, 0, sizeof *device);
    device->rig = rig;
    device->port = port;
    device->boot_id = boot_id;
    device->policy = port->policy && onrig_policy_fits(port->policy, rig) ? port->policy : NULL;
    onrig_output_unlimit(&device->output, rig);
    onrig_output_restart(&device->output, rig);
    port->actuate(port->board, 0, device->output.end.counts);
    say_hello(device); /* informs a host of the restart at once */
}

uint32_t onrig_device_next_frame(const struct onrig_device *device) {
    /* 0 means "no frame", so the count wraps to 1. */
    return device->frame == UINT32_MAX ? 1 : device->frame + 1;
}

uint32_t onrig_device_tau_us(const struct onrig_device *device, uint64_t now_us) {
    /* A board that samples late has ticked by now, so the offset lies within the period. */
    return now_us > device->sampled_us ? (uint32_t)(now_us - device->sampled_us) : 0;
}

static void put_out(const struct onrig_device *device, uint64_t now_us) {
    device->port->actuate(device->port->board, now_us, device->output.end.counts);
}

void onrig_device_disarm(struct onrig_device *device, uint64_t now_us) {
    device->armed = false;
    onrig_output_fall_safe(&device->output, device->rig, onrig_device_tau_us(device, now_us));
    onrig_lease_renew(&device->lease);
    put_out(device, now_us);
}

static void latch(struct onrig_device *device, enum onrig_fault fault) {
    device->armed = false;
    if (device->fault < (uint8_t)fault) device->fault = (uint8_t)fault;
}

/* A fault in mid-period: the output becomes safe at that moment. */
static void trip(struct onrig_device *device, enum onrig_fault fault, uint64_t now_us) {
    onrig_device_tick(device, now_us);
    latch(device, fault);
    onrig_output_fall_safe(&device->output, device->rig, onrig_device_tau_us(device, now_us));
    put_out(device, now_us);
}

void onrig_device_estop(struct onrig_device *device, bool pressed, uint64_t now_us) {
    device->estop_pressed = pressed;
    if (pressed && device->fault < ONRIG_FAULT_ESTOP) trip(device, ONRIG_FAULT_ESTOP, now_us);
}

void onrig_device_link_lost(struct onrig_device *device, uint64_t now_us) {
    if (device->armed) trip(device, ONRIG_FAULT_LEASE, now_us);
}

void onrig_device_fail(struct onrig_device *device, uint64_t now_us) {
    trip(device, ONRIG_FAULT_INTERNAL, now_us);
}

bool onrig_device_awaits_sample(const struct onrig_device *device) {
    return device->period_us != 0 && (device->answered || device->first);
}

static bool sense(const struct onrig_device *device, int32_t *counts) {
    const struct onrig_rig *rig = device->rig;
    bool sound = device->port->sense(device->port->board, device->sampled_us, counts);
    for (uint8_t i = 0; i < rig->n_sensors; i++)
        sound = sound && counts[i] >= rig->sensors[i].low && counts[i] <= rig->sensors[i].high;
    if (!sound) memset(counts, 0, ONRIG_MAX_SENSORS * sizeof *counts);
    return sound;
}

/* Whether the host answered in this period, and the policy acted if it is to. */
static bool renewed(const struct onrig_device *device) {
    return device->answered && (device->acted || !device->evaluates);
}

/* Latch the faults found at the end of a period. */
static void judge_period(struct onrig_device *device, bool sound) {
    bool safe = device->output.end.safe;
    if (!sound)
        latch(device, ONRIG_FAULT_SENSOR);
    else if (device->armed && onrig_lease_end_period(&device->lease, renewed(device)))
        latch(device, ONRIG_FAULT_LEASE);
    else
        return;
    onrig_output_restart(&device->output, device->rig);
    if (!safe) put_out(device, device->sampled_us);
}

static uint16_t status_from_now_on(const struct onrig_device *device, bool first) {
    unsigned status = 0;
    if (device->armed) status |= ONRIG_ARMED;
    if (device->fault) status |= ONRIG_FAULT;
    if (device->output.start.safe) status |= ONRIG_SAFE;
    if (device->output.start.clamped) status |= ONRIG_CLAMPED;
    if (first) status |= ONRIG_FIRST;
    return (uint16_t)status;
}

/* End the period: read the sensors, update the lease, output the safe values if it has expired, send the frame. */
static void sample(struct onrig_device *device) {
    uint8_t body[ONRIG_MAX_BODY];
    device->sampled_us += device->period_us;
    bool sound = sense(device, device->sensors);
    const struct onrig_setpoint start = device->output.start, end = device->output.end;
    uint32_t tau_us = device->output.switched ? device->output.tau_us : device->period_us;
    bool first = device->first;
    onrig_output_next_period(&device->output);
    judge_period(device, sound);
    device->acted_last = device->acted;
    device->answered = device->first = device->asked = device->acted = false;
    device->frame = onrig_device_next_frame(device);
    struct onrig_state state = {
        .frame = device->frame,
        .t_us = device->sampled_us,
        .status = status_from_now_on(device, first),
        .fault = device->fault,
        .lease_left = onrig_lease_left(&device->lease),
        .answers = end.answers,
        .tau_us = tau_us,
        .sensors = device->sensors,
        .u_start = start.counts,
        .u_end = end.counts,
    };
    onrig_device_send(device, body, onrig_put_state(body, device->rig, &state));
}

void onrig_device_tick(struct onrig_device *device, uint64_t now_us) {
    while (device->period_us != 0 && now_us >= device->sampled_us + device->period_us) sample(device);
}

/* One answer per period; one that answers a frame other than the latest is late, or was meant for another boot. */
static bool accepts(const struct onrig_device *device, uint32_t answers) {
    return device->armed && !device->answered && !device->first && device->frame != 0 && answers == device->frame;
}

static void command(struct onrig_device *device, const uint8_t *body, size_t n, uint64_t now_us) {
    int32_t asked[ONRIG_MAX_ACTUATORS];
    uint8_t n_actuators = device->rig->n_actuators;
    if (n != 5u + 4u * n_actuators) return;
    uint32_t answers = onrig_get_u32(body + 1);
    if (!accepts(device, answers) || device->evaluates) return;
    for (uint8_t i = 0; i < n_actuators; i++) asked[i] = onrig_get_i32(body + 5 + 4u * i);
    device->answered = true;
    onrig_output_command(&device->output, device->rig, asked, answers, onrig_device_tau_us(device, now_us));
    put_out(device, now_us);
}

/* The lease of the device's own policy; the host names it, so that no other acts. It runs from the frame that the host
 * has seen, however late the renewal is. */
static void renew(struct onrig_device *device, const uint8_t *body, size_t n) {
    const struct onrig_policy *policy = device->policy;
    if (policy == NULL || n != 5u + ONRIG_POLICY_BYTES || device->period_us != policy->period_us) return;
    if (memcmp(body + 5, policy->digest, ONRIG_POLICY_BYTES) != 0) return;
    uint32_t answers = onrig_get_u32(body + 1), age = device->frame - answers;
    if (!device->armed || device->first || answers == 0 || age >= device->lease.periods) return;
    if (age == 0)
        device->answered = true;
    else if (device->acted || device->acted_last) /* the host cannot excuse a policy that stalls */
        onrig_lease_extend(&device->lease, age);
    device->evaluates = true;
}

static bool is_its_turn(const struct onrig_device *device) {
    return device->armed && device->evaluates && !device->asked && !device->first;
}

bool onrig_device_turn(struct onrig_device *device, struct onrig_turn *turn) {
    if (!is_its_turn(device)) return false;
    device->asked = true;
    turn->frame = device->frame;
    onrig_policy_observe(device->rig, device->sensors, turn->observation);
    return true;
}

void onrig_device_act(struct onrig_device *device, const struct onrig_turn *turn, uint64_t now_us) {
    int32_t asked[ONRIG_MAX_ACTUATORS];
    onrig_device_tick(device, now_us);
    if (!device->armed || !device->evaluates || !device->asked || device->acted || turn->frame != device->frame) return;
    if (!onrig_policy_counts(device->rig, turn->action, asked)) return;
    device->acted = true;
    onrig_output_command(&device->output, device->rig, asked, turn->frame, onrig_device_tau_us(device, now_us));
    put_out(device, now_us);
}

void onrig_device_evaluate(struct onrig_device *device, uint64_t now_us) {
    struct onrig_turn turn;
    if (!onrig_device_turn(device, &turn)) return;
    device->policy->act(turn.observation, turn.action);
    onrig_device_act(device, &turn, now_us);
}

void onrig_device_handle(struct onrig_device *device, const uint8_t *body, size_t n, uint64_t now_us) {
    onrig_device_tick(device, now_us);
    switch (n > 0 ? body[0] : 0) {
    case ONRIG_COMMAND: command(device, body, n, now_us); break;
    case ONRIG_RENEW: renew(device, body, n); break;
    case ONRIG_REQUEST: onrig_device_request(device, body, n, now_us); break;
    case ONRIG_HELLO_REQUEST:
        if (n != 1) break;
        /* A new session may start its request ids at the last one of the previous session. */
        device->request_n = 0;
        say_hello(device);
        break;
    default: break;
    }
}
