/* Flash images: the checksum required by the boot ROM for the second stage, and UF2 files. */
#ifndef ONRIG_PICO_IMAGE_H
#define ONRIG_PICO_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define ONRIG_BOOT2_BYTES 256u
#define ONRIG_UF2_BYTES 512u         /* block of the file */
#define ONRIG_UF2_PAYLOAD_BYTES 256u /* payload of a block */

/* CRC-32/MPEG-2 of the first 252 bytes (RP2040 datasheet 2.8.1.3.1): not reflected, 0x04C11DB7, initial value all
 * ones. */
uint32_t onrig_boot2_crc(const uint8_t *boot2);
/* Append it to them, low byte first. */
void onrig_boot2_seal(uint8_t *boot2);

/* Block number `block` of `blocks` in a UF2 file of family RP2040, with the image's bytes from its offset on. */
void onrig_uf2_block(uint8_t *block, const uint8_t *image, size_t image_n, uint32_t number, uint32_t address);
uint32_t onrig_uf2_blocks(size_t image_n);

#endif
