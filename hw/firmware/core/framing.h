/* Frames on the wire: 0x00 | COBS(body | CRC-32 of body) | 0x00 (hw/PROTOCOL.md, section 1). */
#ifndef ONRIG_FRAMING_H
#define ONRIG_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ONRIG_MAX_BODY 249u  /* type byte included */
#define ONRIG_MAX_CHUNK 254u /* between two zeros: block code, body, CRC */
#define ONRIG_MAX_WIRE 256u  /* with the zeros on either side */

/* Collects bytes up to a zero; holds at most one frame. All zeros is its initial state. */
struct onrig_reader {
    uint8_t chunk[ONRIG_MAX_CHUNK];
    size_t n;
    bool discarding; /* too many bytes without a zero: discarded up to the next zero */
    uint32_t bad_frames;
};

uint32_t onrig_crc32(const uint8_t *p, size_t n);
size_t onrig_encode(const uint8_t *body, size_t n, uint8_t *wire);
size_t onrig_decode(uint8_t *chunk, size_t n);

/* Length of the body completed by this byte, 0 otherwise. It starts at chunk + 1 and is valid until the next byte. */
size_t onrig_reader_take(struct onrig_reader *reader, uint8_t byte);

#endif
