/* Build step that runs on the build machine.
 *
 *     pack seal IN OUT    second stage of 256 bytes, with its checksum
 *     pack uf2 IN OUT     UF2 file of an image at the start of the flash
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "image.h"

#define FLASH 0x10000000u

static uint8_t image[2u << 20];

static size_t loaded(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    size_t n = fread(image, 1, sizeof image, file);
    fclose(file);
    return n;
}

static bool write_uf2(FILE *file, size_t n) {
    uint8_t block[ONRIG_UF2_BYTES];
    for (uint32_t number = 0; number < onrig_uf2_blocks(n); number++) {
        onrig_uf2_block(block, image, n, number, FLASH);
        if (fwrite(block, 1, sizeof block, file) != sizeof block) return false;
    }
    return true;
}

int main(int n, char **arguments) {
    bool seal = n == 4 && strcmp(arguments[1], "seal") == 0;
    if (!seal && !(n == 4 && strcmp(arguments[1], "uf2") == 0)) {
        fprintf(stderr, "usage: pack seal|uf2 IN OUT\n");
        return 2;
    }
    size_t bytes = loaded(arguments[2]);
    if (bytes == 0 || (seal && bytes != ONRIG_BOOT2_BYTES)) {
        fprintf(stderr, "%s: %zu bytes; a second stage has %u\n", arguments[2], bytes, ONRIG_BOOT2_BYTES);
        return 2;
    }
    FILE *file = fopen(arguments[3], "wb");
    if (file == NULL) {
        perror(arguments[3]);
        return 2;
    }
    if (seal) onrig_boot2_seal(image);
    bool written = seal ? fwrite(image, 1, bytes, file) == bytes : write_uf2(file, bytes);
    if (fclose(file) != 0 || !written) {
        perror(arguments[3]);
        return 2;
    }
    return 0;
}
