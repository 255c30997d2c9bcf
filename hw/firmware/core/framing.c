/* The first three functions are identical to those on the protocol's page, as a test checks. */
#include "framing.h"

uint32_t onrig_crc32(const uint8_t *p, size_t n) {
    uint32_t crc = 0xFFFFFFFFu;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return crc ^ 0xFFFFFFFFu;
}

/* body of 1..249 bytes to wire of at most 256; returns the wire's length */
size_t onrig_encode(const uint8_t *body, size_t n, uint8_t *wire) {
    uint32_t crc = onrig_crc32(body, n);
    size_t code_at = 1, at = 2;
    wire[0] = 0;
    for (size_t i = 0; i < n + 4; i++) {
        uint8_t byte = i < n ? body[i] : (uint8_t)(crc >> (8 * (i - n)));
        if (byte == 0) {
            wire[code_at] = (uint8_t)(at - code_at);
            code_at = at++;
        } else {
            wire[at++] = byte;
        }
    }
    wire[code_at] = (uint8_t)(at - code_at);
    wire[at++] = 0;
    return at;
}

/* the n bytes between two zeros, decoded in place; returns the body's length (it then starts at chunk + 1), 0 if bad */
size_t onrig_decode(uint8_t *chunk, size_t n) {
    size_t at = 0;
    if (n < 6 || n > 254) return 0;
    while (at < n) {
        size_t code = chunk[at];
        if (code == 0) return 0;
        chunk[at] = 0;
        at += code;
    }
    if (at != n) return 0;
    uint32_t crc = onrig_crc32(chunk + 1, n - 5);
    for (size_t i = 0; i < 4; i++)
        if (chunk[n - 4 + i] != (uint8_t)(crc >> (8 * i))) return 0;
    return n - 5;
}

size_t onrig_reader_take(struct onrig_reader *reader, uint8_t byte) {
    if (byte != 0) {
        if (reader->discarding) return 0;
        if (reader->n == ONRIG_MAX_CHUNK) {
            reader->discarding = true;
            reader->bad_frames++;
            return 0;
        }
        reader->chunk[reader->n++] = byte;
        return 0;
    }
    size_t n = reader->discarding ? 0 : reader->n;
    reader->discarding = false;
    reader->n = 0;
    if (n == 0) return 0;
    size_t body = onrig_decode(reader->chunk, n);
    if (body == 0) reader->bad_frames++;
    return body;
}
