/* The decoder's program, assembled by hand (datasheet 3.4). Y counts; ISR holds the previous pin levels. */
#include "quadrature.h"

#define PLUS 16
#define SAME ((int)ONRIG_QUADRATURE_SAME)
#define MINUS 25
#define JMP(to) (uint16_t)(to)
#define JMP_Y_DEC(to) (uint16_t)(0x0080 | (to))
#define IN_PINS_2 0x4002
#define IN_OSR_2 0x40E2
#define PUSH_NOBLOCK 0x8000
#define MOV_PC_ISR 0xA0A6
#define MOV_ISR_Y 0xA0C2
#define MOV_OSR_ISR 0xA0E6
#define MOV_Y_NOT_Y 0xA04A

const uint16_t onrig_quadrature_program[ONRIG_QUADRATURE_WORDS] = {
    /* Indexed by the previous pin levels (B, A), then the current ones. If both have changed, an edge was missed. */
    JMP(SAME), JMP(PLUS), JMP(MINUS), JMP(SAME), /* 00 */
    JMP(MINUS), JMP(SAME), JMP(SAME), JMP(PLUS), /* 01 */
    JMP(PLUS), JMP(SAME), JMP(SAME), JMP(MINUS), /* 10 */
    JMP(SAME), JMP(MINUS), JMP(PLUS), JMP(SAME), /* 11 */
    /* PLUS: there is no increment instruction, but -(-y - 1) is one. */
    MOV_Y_NOT_Y, JMP_Y_DEC(PLUS + 2), MOV_Y_NOT_Y,
    /* SAME: push the count, which clears ISR; save the pin levels, sample again, and jump by both. */
    MOV_OSR_ISR, MOV_ISR_Y, PUSH_NOBLOCK, IN_OSR_2, IN_PINS_2, MOV_PC_ISR,
    /* MINUS: jumps to SAME, or reaches it by wrapping. */
    JMP_Y_DEC(SAME),
};

int32_t onrig_quadrature_wrapped(int32_t count, int32_t counts_per_turn) {
    int64_t turn = counts_per_turn, half = turn / 2;
    return (int32_t)(((count + half) % turn + turn) % turn - half);
}
