/* The firmware's core as a host process: a simulated rig on a pseudo-terminal.
 *
 *     onrig-device --rig pendulum-hw [--pace realtime|lockstep|TIMES] [--link FILE] [--boot-id N]
 *
 * The path of its port is written to stdout and to FILE. SIGTERM ends it. Fault injection: SIGUSR1 presses the e-stop,
 * SIGUSR2 releases it; SIGRTMIN disconnects the sensors, SIGRTMIN + 1 reconnects them; SIGRTMIN + 2 power-cycles the
 * device.
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../sim/simulator.h"
#include "line.h"

#define IDLE_NS 20000000

struct options {
    const char *rig;
    const char *link;
    float time_scale;
    uint32_t boot_id;
};

static volatile sig_atomic_t stopped, estop_pressed, sensors_dead, restarted;

static void on_signal(int signum) {
    if (signum == SIGUSR1 || signum == SIGUSR2)
        estop_pressed = signum == SIGUSR1;
    else if (signum == SIGRTMIN || signum == SIGRTMIN + 1)
        sensors_dead = signum == SIGRTMIN;
    else if (signum == SIGRTMIN + 2)
        restarted = 1;
    else
        stopped = 1;
}

static int64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static bool parse(int n, char **arguments, struct options *options) {
    for (int i = 1; i < n; i += 2) {
        const char *name = arguments[i], *value = i + 1 < n ? arguments[i + 1] : NULL;
        char *end = NULL;
        if (value == NULL) return false;
        if (strcmp(name, "--rig") == 0) {
            options->rig = value;
        } else if (strcmp(name, "--link") == 0) {
            options->link = value;
        } else if (strcmp(name, "--boot-id") == 0) {
            options->boot_id = (uint32_t)strtoul(value, &end, 0);
        } else if (strcmp(name, "--pace") == 0) {
            bool lockstep = strcmp(value, "lockstep") == 0, named = lockstep || strcmp(value, "realtime") == 0;
            options->time_scale = named ? (lockstep ? 0.0f : 1.0f) : strtof(value, &end);
            if (!named && !(options->time_scale >= 0.01f && options->time_scale <= 1000.0f)) return false;
        } else {
            return false;
        }
        if (end != NULL && *end != '\0') return false;
    }
    return options->rig != NULL;
}

/* Write to a temporary file first, then rename: whoever waits for the file finds it complete. */
static bool announce(const struct options *options, const char *path) {
    char beside[4096];
    printf("%s\n", path);
    fflush(stdout);
    if (options->link == NULL) return true;
    if (snprintf(beside, sizeof beside, "%s.new", options->link) >= (int)sizeof beside) return false;
    FILE *file = fopen(beside, "w");
    bool written = file != NULL && fprintf(file, "%s\n", path) > 0;
    if (file != NULL && fclose(file) != 0) written = false;
    if (!written || rename(beside, options->link) != 0) {
        perror(options->link);
        return false;
    }
    return true;
}

/* The device's time. If the process did not run for a complete period, time pauses instead of a burst of samples: the
 * simulated hardware would not have been late. In lockstep, time advances only with commands. */
static uint64_t now_us(const struct onrig_device *device, double scale, int64_t *since_ns) {
    if (!(scale > 0.0)) return device->sampled_us;
    uint64_t now = (uint64_t)((double)(wall_ns() - *since_ns) * 1e-3 * scale);
    uint64_t due = device->sampled_us + device->period_us;
    if (device->period_us == 0 || now < due + device->period_us) return now;
    *since_ns += (int64_t)((double)(now - due) * 1e3 / scale);
    return due;
}

/* Time until the next sample, or until the next poll for other events. */
static int64_t wait_ns(const struct onrig_device *device, double scale, uint64_t now) {
    if (!(scale > 0.0) || device->period_us == 0) return IDLE_NS;
    double left_ns = (double)(device->sampled_us + device->period_us - now) * 1e3 / scale;
    return left_ns < IDLE_NS ? (int64_t)left_ns : IDLE_NS;
}

static bool start(struct onrig_simulator *simulator, const struct options *options, struct onrig_line *line) {
    return onrig_simulator_start(
        simulator, options->rig, options->time_scale, options->boot_id, line, onrig_line_write);
}

static void serve(struct onrig_simulator *simulator, struct options *options, struct onrig_line *line) {
    struct onrig_device *device = &simulator->device;
    const double scale = (double)simulator->port.time_scale;
    int64_t since_ns = wall_ns();
    bool connected = false;
    uint8_t bytes[4096];
    while (!stopped) {
        uint64_t now = now_us(device, scale, &since_ns);
        if (scale > 0.0) onrig_device_tick(device, now);
        onrig_device_evaluate(device, now);
        size_t n = onrig_line_read(line, bytes, sizeof bytes, wait_ns(device, scale, now));
        if (restarted) {
            restarted = 0;
            options->boot_id++;
            start(simulator, options, line);
            since_ns = wall_ns();
        }
        now = now_us(device, scale, &since_ns);
        simulator->sensors_dead = sensors_dead;
        onrig_device_estop(device, estop_pressed, now);
        if (line->hung_up && connected) onrig_device_link_lost(device, now);
        connected = !line->hung_up;
        onrig_simulator_bytes(simulator, bytes, n, now);
        onrig_device_evaluate(device, now);
    }
}

int main(int n, char **arguments) {
    struct options options = {.time_scale = 1.0f, .boot_id = (uint32_t)wall_ns() ^ (uint32_t)getpid()};
    struct onrig_simulator simulator;
    struct onrig_line line;
    struct sigaction action = {.sa_handler = on_signal};
    const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGRTMIN, SIGRTMIN + 1, SIGRTMIN + 2};
    if (!parse(n, arguments, &options)) {
        fprintf(stderr, "usage: %s --rig NAME [--pace realtime|lockstep|TIMES] [--link FILE] [--boot-id N]\n",
                arguments[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) sigaction(signals[i], &action, NULL);
    if (!onrig_line_open(&line)) return 4;
    if (!start(&simulator, &options, &line)) {
        fprintf(stderr, "%s: no such rig; choose pendulum, pendulum-hw or magman\n", options.rig);
        return 2;
    }
    if (!announce(&options, line.path)) return 2;
    serve(&simulator, &options, &line);
    if (options.link != NULL) unlink(options.link);
    return 0;
}
