/* The device's end of a pseudo terminal. */
#ifndef ONRIG_HOST_LINE_H
#define ONRIG_HOST_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct onrig_line {
    int fd;
    bool hung_up; /* nobody has the other end open */
    char path[64]; /* of the other end */
};

/* False, with a line on stderr, where there are no pseudo terminals. */
bool onrig_line_open(struct onrig_line *line);
/* Bytes that are there, waiting so long for the first; sets hung_up. A signal ends the wait. */
size_t onrig_line_read(struct onrig_line *line, uint8_t *bytes, size_t n, int64_t timeout_ns);
/* Send what the line takes at once; the rest is lost, as on a real line without flow control. */
void onrig_line_write(void *line, const uint8_t *wire, size_t n);

#endif
