/* Structure-aware fuzzer of the core: hostile bytes (mostly with valid CRCs), time, sensors, e-stop, a lost connection.
 *
 *     fuzz [INPUTS [SEED]]
 *
 * An input is one message, one piece of garbage or one event. After each, the output at the pins is compared with a
 * simple model of the safety rules; any violation ends the program. Sanitizers check the rest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../rigs/rigs.h"

struct bench {
    struct onrig_device device;
    struct onrig_reader reader;
    struct onrig_port port;
    uint64_t now_us;
    int32_t out[ONRIG_MAX_ACTUATORS];
    int32_t sensors[ONRIG_MAX_SENSORS];
    bool dead;
    bool estop;
    uint8_t last[ONRIG_MAX_BODY]; /* request, to be repeated */
    size_t last_n;
    struct onrig_turn turn; /* of the policy, when it is slow */
    bool thinks;
    bool renews;
    struct { /* state as observed on the wire */
        uint32_t frame;
        uint64_t t_us;
        uint16_t status;
        uint32_t period_us;
        uint32_t held_periods; /* consecutive periods without an accepted command, armed and not safe */
        uint8_t lease;
        uint32_t unanswered_periods; /* consecutive periods without a command or a renewal, armed and not safe */
        bool driven; /* a command or a renewal was sent since the device was last disarmed by a request */
        uint32_t age; /* of the newest frame for which a command or a renewal was sent in this period */
        bool fresh; /* a request renewed the lease: the current period does not count */
        uint64_t frames, responses, commands, turns, faults[5];
    } seen;
};

static uint64_t random_state;
static uint64_t inputs_done;

static uint64_t draw(void) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Du;
}

static uint32_t below(uint32_t n) {
    return (uint32_t)((draw() >> 32) % n);
}

static bool chance(uint32_t one_in) {
    return below(one_in) == 0;
}

static void demand(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "after %" PRIu64 " inputs: %s\n", inputs_done, what);
    abort();
}

/* -- a policy that returns anything -------------------------------------------------------------------------------- */

static void act_wildly(const float *observation, float *action) {
    static const float wild[] = {0.0f, 1.0f, -2.9f, 3.1f, 1e30f, -1e38f};
    uint32_t which = below(8);
    action[0] = which < 6 ? wild[which] : which == 6 ? observation[1] : 1e38f * 10.0f * (chance(2) ? 0.0f : 1.0f);
}

static const struct onrig_signal signals[] = {{"angle", "rad"}, {"velocity", "rad/s"}, {"voltage", "V"}};
static const struct onrig_signal others[] = {{"angle", "rad"}, {"velocity", "rad/s"}, {"voltage", "mV"}};
static const struct onrig_policy policies[] = {
    {{1, 2, 3, 4, 5, 6, 7, 8}, 2000, 2, 1, signals, act_wildly},
    {{1, 2, 3, 4, 5, 6, 7, 8}, 2000, 2, 1, others, act_wildly},     /* another unit */
    {{1, 2, 3, 4, 5, 6, 7, 8}, 2000, 2, 1, others + 1, act_wildly}, /* another order */
};

static const struct onrig_policy *built_in(void) {
    uint32_t which = below(8);
    return which < 5 ? &policies[0] : which < 7 ? &policies[which - 4] : NULL;
}

static bool is_safe(const struct bench *bench, const int32_t *counts) {
    const struct onrig_rig *rig = bench->device.rig;
    for (uint8_t i = 0; i < rig->n_actuators; i++)
        if (counts[i] != rig->actuators[i].safe) return false;
    return true;
}

/* Decode a state frame as a host does. */
static void look_at_state(struct bench *bench, const uint8_t *body, size_t n) {
    const struct onrig_rig *rig = bench->device.rig;
    demand(n == 25u + 4u * rig->n_sensors + 8u * rig->n_actuators, "length of STATE");
    uint32_t frame = onrig_get_u32(body + 1);
    uint64_t t_us = onrig_get_u64(body + 5);
    uint16_t status = onrig_get_u16(body + 13);
    uint8_t fault = body[15], left = body[16];
    uint32_t answers = onrig_get_u32(body + 17), tau_us = onrig_get_u32(body + 21);
    bool safe = status & ONRIG_SAFE;
    demand(frame == (bench->seen.frame == UINT32_MAX ? 1 : bench->seen.frame + 1), "numbers increase by one");
    demand(t_us > bench->seen.t_us, "time increases");
    demand((status & ~31u) == 0, "unused bits");
    demand(((status & ONRIG_FAULT) != 0) == (fault != 0), "FAULT and its code");
    demand(!(status & ONRIG_ARMED) || !(status & ONRIG_FAULT), "armed and faulted");
    demand((status & ONRIG_ARMED) || safe, "disarmed and not safe");
    demand(fault <= ONRIG_FAULT_INTERNAL, "an unknown fault");
    demand(tau_us <= bench->seen.period_us, "tau beyond the period");
    demand(!(status & ONRIG_ARMED) || left <= bench->seen.lease, "lease_left beyond the lease");
    demand(answers != frame, "answers a frame that is not yet out");
    demand(!safe || is_safe(bench, bench->out), "SAFE, but another output");
    bool accepted = answers != 0 && answers == bench->seen.frame && tau_us < bench->seen.period_us;
    bench->seen.held_periods = safe || accepted || bench->seen.fresh ? 0 : bench->seen.held_periods + 1;
    uint32_t unanswered = bench->seen.unanswered_periods + 1;
    if (unanswered > bench->seen.age) unanswered = bench->seen.age;
    bench->seen.unanswered_periods = safe || bench->seen.fresh ? 0 : unanswered;
    bench->seen.age = UINT32_MAX;
    bench->seen.fresh = false;
    demand(safe || bench->seen.driven, "acts without a command or a renewal since it was armed");
    demand(bench->seen.unanswered_periods <= bench->seen.lease, "acts without the host for longer than the lease");
    demand(bench->seen.held_periods <= bench->seen.lease, "held for longer than the lease");
    bench->seen.frame = frame;
    bench->seen.t_us = t_us;
    bench->seen.status = status;
    bench->seen.frames++;
    bench->seen.commands += accepted;
    bench->seen.turns += accepted && bench->device.evaluates;
    bench->seen.faults[fault]++;
}

static void look_at_response(struct bench *bench, const uint8_t *body, size_t n) {
    demand(n >= ONRIG_RESPONSE_HEAD && n <= ONRIG_RESPONSE_BYTES, "length of RESPONSE");
    demand(n == ONRIG_RESPONSE_HEAD || body[4] == ONRIG_OK, "a payload without OK");
    bench->seen.responses++;
    if (!bench->device.armed) bench->seen.driven = false;
    bench->seen.fresh = bench->seen.fresh || (body[4] == ONRIG_OK && bench->device.lease.fresh);
    if (body[3] != ONRIG_CONFIGURE || body[4] != ONRIG_OK) return;
    bench->seen.period_us = bench->device.period_us;
    bench->seen.lease = bench->device.lease.periods;
}

static void take(void *board, const uint8_t *wire, size_t n) {
    struct bench *bench = board;
    uint8_t chunk[ONRIG_MAX_WIRE];
    demand(n >= 8 && n <= ONRIG_MAX_WIRE && wire[0] == 0 && wire[n - 1] == 0, "a frame between zeros");
    demand(memchr(wire + 1, 0, n - 2) == NULL, "a zero within a frame");
    memcpy(chunk, wire + 1, n - 2);
    size_t body = onrig_decode(chunk, n - 2);
    demand(body > 0, "a frame that decodes");
    if (chunk[1] == ONRIG_STATE) look_at_state(bench, chunk + 1, body);
    if (chunk[1] == ONRIG_RESPONSE) look_at_response(bench, chunk + 1, body);
    demand(chunk[1] == ONRIG_STATE || chunk[1] == ONRIG_RESPONSE || chunk[1] == ONRIG_HELLO, "type of a frame");
}

static bool read_sensors(void *board, uint64_t t_us, int32_t *counts) {
    struct bench *bench = board;
    demand(t_us <= bench->now_us, "a sample in the future");
    memcpy(counts, bench->sensors, bench->device.rig->n_sensors * sizeof *counts);
    return !bench->dead;
}

static void put_out(void *board, uint64_t t_us, const int32_t *counts) {
    struct bench *bench = board;
    const struct onrig_rig *rig = bench->device.rig;
    demand(t_us <= bench->now_us, "an output in the future");
    for (uint8_t i = 0; i < rig->n_actuators; i++)
        demand(counts[i] >= rig->actuators[i].low && counts[i] <= rig->actuators[i].high, "output beyond its limits");
    const struct onrig_output *output = &bench->device.output;
    for (uint8_t i = 0; i < rig->n_actuators && !output->end.safe; i++)
        demand(counts[i] >= output->low[i] && counts[i] <= output->high[i], "output beyond tightened limits");
    memcpy(bench->out, counts, rig->n_actuators * sizeof *counts);
}

static void reset(void *board, uint64_t t_us, uint64_t seed) {
    (void)board, (void)t_us, (void)seed;
}

static int32_t count_of_interest(const struct onrig_channel *channel) {
    switch (below(8)) {
    case 0: return INT32_MIN;
    case 1: return INT32_MAX;
    case 2: return channel->low;
    case 3: return channel->high;
    case 4: return channel->low == INT32_MIN ? channel->low : channel->low - 1;
    case 5: return channel->high == INT32_MAX ? channel->high : channel->high + 1;
    case 6: return channel->safe;
    default: return (int32_t)draw();
    }
}

static size_t command_body(const struct bench *bench, uint8_t *body) {
    const struct onrig_rig *rig = bench->device.rig;
    uint32_t frame = bench->seen.frame;
    body[0] = ONRIG_COMMAND;
    uint32_t answers = chance(8) ? (chance(2) ? (uint32_t)draw() : frame - 1 + below(3)) : frame;
    uint8_t *at = onrig_put_u32(body + 1, answers);
    for (uint8_t i = 0; i < rig->n_actuators; i++)
        at = onrig_put_u32(at, (uint32_t)count_of_interest(&rig->actuators[i]));
    return (size_t)(at - body);
}

static size_t renewal_body(const struct bench *bench, uint8_t *body) {
    body[0] = ONRIG_RENEW;
    onrig_put_u32(body + 1, bench->seen.frame + (chance(8) ? below(300) - 200 : chance(3) ? 0u - below(8) : 0u));
    memcpy(body + 5, policies[0].digest, ONRIG_POLICY_BYTES);
    if (chance(8)) body[5 + below(ONRIG_POLICY_BYTES)] ^= 1;
    return 5 + ONRIG_POLICY_BYTES;
}

static uint32_t period_of_interest(const struct onrig_rig *rig) {
    switch (below(8)) {
    case 0: return rig->period_max_us;
    case 1: return rig->period_min_us - 1;
    case 2: return rig->period_max_us + 1;
    case 3: return (uint32_t)draw();
    case 4:
    case 5: return policies[0].period_us;
    default: return rig->period_min_us + below(2000);
    }
}

static size_t request_body(struct bench *bench, uint8_t *body) {
    static const uint8_t ops[] = {1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 5, 6, 6, 6, 7, 0, 8, 255};
    const struct onrig_rig *rig = bench->device.rig;
    if (bench->last_n > 0 && chance(10)) {
        memcpy(body, bench->last, bench->last_n);
        return bench->last_n;
    }
    body[0] = ONRIG_REQUEST;
    body[1] = (uint8_t)draw();
    body[2] = (uint8_t)draw();
    body[3] = ops[below(sizeof ops)];
    uint8_t *at = body + 4;
    switch (body[3]) {
    case ONRIG_DESCRIBE: *at++ = (uint8_t)below(chance(4) ? 256 : 8); break;
    case ONRIG_CONFIGURE:
        at = onrig_put_u32(at, period_of_interest(rig));
        *at++ = (uint8_t)(chance(4) ? draw() : 1 + below(6));
        break;
    case ONRIG_LIMITS: {
        uint8_t index = (uint8_t)below(chance(4) ? 256 : rig->n_actuators);
        const struct onrig_channel *channel = &rig->actuators[index < rig->n_actuators ? index : 0];
        *at++ = index;
        at = onrig_put_u32(at, (uint32_t)count_of_interest(channel));
        at = onrig_put_u32(at, (uint32_t)count_of_interest(channel));
        break;
    }
    case ONRIG_RESET: at = onrig_put_u32(onrig_put_u32(at, (uint32_t)draw()), (uint32_t)draw()); break;
    default: break;
    }
    size_t n = (size_t)(at - body);
    if (chance(20)) n = 1 + below(ONRIG_MAX_BODY);
    memcpy(bench->last, body, n);
    bench->last_n = n;
    return n;
}

static size_t any_body(uint8_t *body) {
    static const uint8_t types[] = {0x01, 0x02, 0x10, 0x11, 0x12, 0x20, 0x21};
    size_t n = 1 + below(chance(2) ? 12 : ONRIG_MAX_BODY);
    for (size_t i = 0; i < n; i++) body[i] = (uint8_t)(chance(3) ? 0 : draw());
    if (!chance(4)) body[0] = types[below(sizeof types)];
    return n;
}

static void feed(struct bench *bench, const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t body = onrig_reader_take(&bench->reader, bytes[i]);
        demand(bench->reader.n <= ONRIG_MAX_CHUNK, "reader within its buffer");
        if (body > 0) onrig_device_handle(&bench->device, bench->reader.chunk + 1, body, bench->now_us);
    }
}

static void message(struct bench *bench) {
    uint8_t body[ONRIG_MAX_BODY] = {0}, wire[ONRIG_MAX_WIRE];
    uint32_t kind = below(16), renewals = bench->renews ? 6 : 1; /* a session mostly does one or the other */
    size_t n = kind < renewals ? renewal_body(bench, body)
               : kind < 7  ? command_body(bench, body)
               : kind < 14 ? request_body(bench, body)
               : kind < 15 ? (body[0] = ONRIG_HELLO_REQUEST, (size_t)1)
                           : any_body(body);
    n = onrig_encode(body, n, wire);
    if (chance(16)) wire[below((uint32_t)n)] ^= (uint8_t)(1u << below(8));
    if (chance(32)) n = below((uint32_t)n); /* cut off */
    feed(bench, wire, n);
    bool named = kind >= renewals || memcmp(body + 5, policies[0].digest, ONRIG_POLICY_BYTES) == 0;
    if (kind >= 7 || !named) return;
    uint32_t age = bench->seen.frame - onrig_get_u32(body + 1); /* accepted, or damaged on the way */
    if (kind >= renewals && age > 0) return;
    if (age < bench->seen.age) bench->seen.age = age;
    if (age < bench->seen.lease) bench->seen.driven = true;
}

static void garbage(struct bench *bench) {
    uint8_t bytes[600];
    size_t n = below(chance(8) ? sizeof bytes : 20);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)draw();
    feed(bench, bytes, n);
}

/* A body of any length that does not come from the reader. */
static void without_framing(struct bench *bench) {
    uint8_t body[300];
    size_t n = below(sizeof body);
    for (size_t i = 0; i < n; i++) body[i] = (uint8_t)draw();
    if (n > 0) body[0] = chance(2) ? ONRIG_REQUEST : ONRIG_COMMAND;
    onrig_device_handle(&bench->device, body, n, bench->now_us);
}

static void event(struct bench *bench) {
    const struct onrig_rig *rig = bench->device.rig;
    uint8_t which = (uint8_t)below(rig->n_sensors);
    switch (below(12)) {
    case 0: bench->dead = chance(8); break;
    case 1: bench->sensors[which] = chance(16) ? count_of_interest(&rig->sensors[which]) : 0; break;
    case 2: bench->estop = chance(4); break;
    case 3:
        if (chance(16)) onrig_device_link_lost(&bench->device, bench->now_us);
        break;
    case 4:
        if (chance(4000)) onrig_device_fail(&bench->device, bench->now_us);
        break;
    case 5:
        if (chance(2000)) bench->seen.frame = bench->device.frame = UINT32_MAX - below(3);
        break;
    default: bench->sensors[which] = 0; break;
    }
    onrig_device_estop(&bench->device, bench->estop, bench->now_us);
    if (chance(4)) bench->dead = bench->estop = false;
}

static void check(const struct bench *bench) {
    const struct onrig_device *device = &bench->device;
    demand(!device->armed || device->fault == 0, "armed with a fault");
    demand(!device->armed || device->period_us > 0, "armed and not configured");
    demand(device->armed || is_safe(bench, bench->out), "not armed and not safe");
    demand(device->lease.missed <= device->lease.periods, "a lease overdrawn");
    demand(!device->acted || device->policy != NULL, "acts without a policy");
    demand(!onrig_device_awaits_sample(device) || device->period_us > 0, "awaits a sample it cannot take");
}

/* Run the policy; an evaluation may span several fuzz inputs. */
static void evaluate(struct bench *bench) {
    struct onrig_device *device = &bench->device;
    if (bench->thinks && chance(3)) {
        device->policy->act(bench->turn.observation, bench->turn.action);
        onrig_device_act(device, &bench->turn, bench->now_us);
        bench->thinks = false;
    } else if (!bench->thinks && chance(4)) {
        bench->thinks = onrig_device_turn(device, &bench->turn);
    } else {
        onrig_device_evaluate(device, bench->now_us);
    }
}

static void power_on(struct bench *bench) {
    static const struct onrig_rig *const rigs[] = {&onrig_pendulum, &onrig_pendulum_hw, &onrig_magman};
    struct onrig_port port = {bench, 1.0f, take, read_sensors, put_out, chance(2) ? reset : NULL, chance(2), built_in()};
    memset(bench, 0, sizeof *bench);
    bench->port = port;
    bench->renews = chance(2);
    bench->seen.age = UINT32_MAX;
    bench->device.rig = rigs[below(3)];
    onrig_device_start(&bench->device, bench->device.rig, &bench->port, (uint32_t)draw());
    demand(is_safe(bench, bench->out), "safe at power-on");
}

int main(int n, char **arguments) {
    static struct bench bench;
    uint64_t inputs = n > 1 ? strtoull(arguments[1], NULL, 0) : 1000000, seed = n > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    uint64_t frames = 0, responses = 0, commands = 0, turns = 0, faults[5] = {0};
    random_state = seed * 0x9E3779B97F4A7C15u + 1;
    for (inputs_done = 0; inputs_done < inputs; inputs_done++) {
        if (inputs_done % 20000 == 0) {
            frames += bench.seen.frames, responses += bench.seen.responses, commands += bench.seen.commands;
            turns += bench.seen.turns;
            for (int i = 0; i < 5; i++) faults[i] += bench.seen.faults[i];
            power_on(&bench);
        }
        uint32_t period_us = bench.device.period_us;
        bench.now_us += below(8) ? below(period_us / 3 + 200) : below(3 * period_us + 1);
        if (!chance(4)) onrig_device_tick(&bench.device, bench.now_us);
        switch (below(16)) {
        case 0: garbage(&bench); break;
        case 1: without_framing(&bench); break;
        case 2: event(&bench); break;
        default: message(&bench); break;
        }
        evaluate(&bench);
        check(&bench);
    }
    printf("%" PRIu64 " inputs, seed %" PRIu64 ": %" PRIu64 " frames, %" PRIu64 " responses, %" PRIu64
           " commands accepted, %" PRIu64 " of the policy; frames with fault none %" PRIu64 ", lease %" PRIu64 ", sensor %" PRIu64 ", e-stop %" PRIu64
           ", internal %" PRIu64 "; no finding\n",
           inputs, seed, frames, responses, commands, turns, faults[0], faults[1], faults[2], faults[3], faults[4]);
    return 0;
}
