#define _GNU_SOURCE /* ppoll */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define HUNG_UP_NS 5000000 /* interval of polling for a host */

bool onrig_line_open(struct onrig_line *line) {
    struct termios raw;
    line->hung_up = true;
    line->fd = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (line->fd < 0 || grantpt(line->fd) || unlockpt(line->fd) ||
        ptsname_r(line->fd, line->path, sizeof line->path)) {
        perror("onrig-device: no pseudo-terminal");
        return false;
    }
    int other = open(line->path, O_RDWR | O_NOCTTY);
    if (other < 0 || tcgetattr(other, &raw)) {
        perror(line->path);
        return false;
    }
    cfmakeraw(&raw);
    tcsetattr(other, TCSANOW, &raw);
    close(other); /* an open slave would hide the host's hang-up */
    return true;
}

static void wait_for(struct pollfd *polled, nfds_t n, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    polled->revents = 0;
    ppoll(polled, n, &timeout, NULL);
}

size_t onrig_line_read(struct onrig_line *line, uint8_t *bytes, size_t n, int64_t timeout_ns) {
    struct pollfd polled = {.fd = line->fd, .events = POLLIN};
    if (timeout_ns < 0) timeout_ns = 0;
    if (line->hung_up) {
        /* After a hang-up, poll returns immediately every time: read now, then sleep briefly. */
        wait_for(&polled, 1, 0);
        if (polled.revents & POLLHUP && !(polled.revents & POLLIN)) {
            wait_for(&polled, 0, timeout_ns < HUNG_UP_NS ? timeout_ns : HUNG_UP_NS);
            return 0;
        }
    }
    wait_for(&polled, 1, timeout_ns);
    if (polled.revents == 0) return 0;
    ssize_t got = read(line->fd, bytes, n);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    line->hung_up = got <= 0;
    return got > 0 ? (size_t)got : 0;
}

void onrig_line_write(void *line, const uint8_t *wire, size_t n) {
    const struct onrig_line *to = line;
    if (write(to->fd, wire, n) < 0) return;
}
