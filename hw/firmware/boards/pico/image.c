#include "image.h"

#include <string.h>

#define FAMILY_RP2040 0xE48BFF56u
#define FLAG_FAMILY 0x2000u

static void put_u32(uint8_t *at, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

uint32_t onrig_boot2_crc(const uint8_t *boot2) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < ONRIG_BOOT2_BYTES - 4; i++) {
        crc ^= (uint32_t)boot2[i] << 24;
        for (int bit = 0; bit < 8; bit++) crc = (crc << 1) ^ (0x04C11DB7u & (0u - (crc >> 31)));
    }
    return crc;
}

void onrig_boot2_seal(uint8_t *boot2) {
    put_u32(boot2 + ONRIG_BOOT2_BYTES - 4, onrig_boot2_crc(boot2));
}

uint32_t onrig_uf2_blocks(size_t image_n) {
    return (uint32_t)((image_n + ONRIG_UF2_PAYLOAD_BYTES - 1) / ONRIG_UF2_PAYLOAD_BYTES);
}

void onrig_uf2_block(uint8_t *block, const uint8_t *image, size_t image_n, uint32_t number, uint32_t address) {
    const uint32_t head[] = {
        0x0A324655u, 0x9E5D5157u, FLAG_FAMILY, address + number * ONRIG_UF2_PAYLOAD_BYTES,
        ONRIG_UF2_PAYLOAD_BYTES, number, onrig_uf2_blocks(image_n), FAMILY_RP2040,
    };
    size_t from = (size_t)number * ONRIG_UF2_PAYLOAD_BYTES, left = image_n - from;
    memset(block, 0, ONRIG_UF2_BYTES);
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) put_u32(block + 4 * i, head[i]);
    memcpy(block + 32, image + from, left < ONRIG_UF2_PAYLOAD_BYTES ? left : ONRIG_UF2_PAYLOAD_BYTES);
    put_u32(block + ONRIG_UF2_BYTES - 4, 0x0AB16F30u);
}
