/* Frames on the wire, as described in hw/framing.py: COBS(body | CRC-32 of body), without the delimiters. */
#include "native.h"
#include <string.h>

enum { MAX_BODY = 249, MIN_CHUNK = 6, MAX_CHUNK = MAX_BODY + 5, CRC_BYTES = 4 };

EXPORT int onrig_abi(void);
_Static_assert(MAX_CHUNK + 2 == MAX_FRAME, "a chunk and two delimiters make a frame");

int onrig_abi(void) { return ONRIG_ABI; }

/* Works on half a byte at a time: the table's 16 words fill a single cache line, which is cold in a loop that sleeps
   between frames. */
static uint32_t crc32(const uint8_t *bytes, int size) {
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = ~UINT32_C(0);
    for (int i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return ~crc;
}

/* Wrap a body of 1 to 249 bytes and return the number of bytes written to wire (at most MAX_CHUNK + 2), delimiters
   included, or NOT_A_FRAME if the body has a different size. */
int onrig_frame_encode(const uint8_t *body, int size, uint8_t *wire) {
    if (size < 1 || size > MAX_BODY) return NOT_A_FRAME;
    uint8_t *const stuffed = wire + 2;
    const uint32_t crc = crc32(body, size);
    memcpy(stuffed, body, (size_t)size);
    for (int i = 0; i < CRC_BYTES; i++) stuffed[size + i] = (uint8_t)(crc >> (8 * i));
    const int end = size + CRC_BYTES;
    wire[0] = 0;
    int code_at = 1;
    for (int i = 2; i < end + 2; i++) {
        if (wire[i] == 0) {
            wire[code_at] = (uint8_t)(i - code_at);
            code_at = i;
        }
    }
    wire[code_at] = (uint8_t)(end + 2 - code_at);
    wire[end + 2] = 0;
    return end + 3;
}

/* Decode the bytes between two delimiters and return the size of the body (at most MAX_BODY bytes are written), or
   NOT_A_FRAME if they are invalid; the caller then determines the reason. */
int onrig_frame_decode(const uint8_t *chunk, int size, uint8_t *body) {
    if (size < MIN_CHUNK || size > MAX_CHUNK) return NOT_A_FRAME;
    uint8_t plain[MAX_CHUNK];
    memcpy(plain, chunk, (size_t)size);
    for (int at = 0; at < size;) {
        const int code = plain[at];
        if (code == 0) return NOT_A_FRAME;
        plain[at] = 0;
        at += code;
        if (at > size) return NOT_A_FRAME;
    }
    const int length = size - 1 - CRC_BYTES;
    const uint8_t *const sum = plain + 1 + length;
    const uint32_t stated = sum[0] | (uint32_t)sum[1] << 8 | (uint32_t)sum[2] << 16 | (uint32_t)sum[3] << 24;
    if (crc32(plain + 1, length) != stated) return NOT_A_FRAME;
    memcpy(body, plain + 1, (size_t)length);
    return length;
}
