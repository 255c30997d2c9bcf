/* Second stage of the boot: the ROM copies these 256 bytes to the end of the RAM and runs them if their CRC is right.
 *
 * Reads the flash by its slowest command, 03h, which every part supports, copies the image into the RAM and starts it
 * there. The image never reads the flash again, so a faster command would gain nothing. No stack, no absolute jumps.
 */
    .syntax unified
    .cpu cortex-m0plus
    .thumb
    .section .boot2, "ax"
    .global onrig_boot2
    .type onrig_boot2, %function
    .thumb_func
onrig_boot2:
    ldr r3, =0x18000000     /* SSI */
    movs r1, #0
    str r1, [r3, #0x08]     /* SSIENR: off while it is set up */
    movs r1, #2
    str r1, [r3, #0x14]     /* BAUDR: half the system clock, which is still the ring oscillator's (at most 12 MHz) */
    ldr r1, =0x001F0300     /* one data line, frames of 32 bits, address out and data in (datasheet 4.10.13) */
    str r1, [r3, #0x00]     /* CTRLR0 */
    movs r1, #0
    str r1, [r3, #0x04]     /* CTRLR1: one frame per read */
    ldr r1, =0x03000218     /* command 03h of 8 bits, address of 24 bits, no wait cycles */
    movs r2, #0xF4
    str r1, [r3, r2]        /* SPI_CTRLR0 */
    movs r1, #1
    str r1, [r3, #0x08]

    ldr r0, =ram_from
    ldr r1, =ram_start
    ldr r2, =ram_end
copy:
    ldmia r0!, {r3}
    stmia r1!, {r3}
    cmp r1, r2
    blo copy

    ldr r0, =ram_start      /* begins with the vectors */
    ldr r1, =0xE000ED08     /* VTOR */
    str r0, [r1]
    ldmia r0, {r0, r1}
    msr msp, r0
    bx r1
    .pool
