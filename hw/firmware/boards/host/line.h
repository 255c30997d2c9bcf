/* Device end of a pseudo-terminal. */
#ifndef ONRIG_HOST_LINE_H
#define ONRIG_HOST_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct onrig_line {
    int fd;
    bool hung_up; /* the other end is not open */
    char path[64]; /* of the other end */
};

/* Returns false, with a message on stderr, if no pseudo-terminal is available. */
bool onrig_line_open(struct onrig_line *line);
/* Returns available bytes, waiting up to the timeout for the first; sets hung_up. A signal ends the wait. */
size_t onrig_line_read(struct onrig_line *line, uint8_t *bytes, size_t n, int64_t timeout_ns);
/* Sends what fits into the buffer; the rest is lost, as on a real port without flow control. */
void onrig_line_write(void *line, const uint8_t *wire, size_t n);

#endif
