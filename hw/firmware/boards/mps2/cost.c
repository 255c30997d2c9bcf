/* What a policy costs on a Cortex-M4F, and whether it computes there what onnxruntime does: make policy POLICY=FILE.
 *
 * QEMU counts one nanosecond per instruction (-icount shift=0), so a thousand evaluations take as many microseconds as
 * one has instructions.
 */
#include "../../core/policy.h"
#include "board.h"

#define RUNS 1000

float onrig_policy_check(void);

void onrig_on_timer(void) {
}

/* Semihosting: QEMU prints a text, or ends. */
static void ask_host(uint32_t operation, const void *argument) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

static void print(const char *text) {
    ask_host(0x04, text);
}

static void print_number(uint32_t number) {
    char digits[11], *at = digits + sizeof digits - 1;
    *at = '\0';
    do *--at = (char)('0' + number % 10u);
    while (number /= 10u);
    print(at);
}

int main(void) {
    float observation[ONRIG_MAX_SENSORS] = {0.0f}, action[ONRIG_MAX_ACTUATORS];
    onrig_board_start();
    uint64_t start_us = onrig_board_now_us();
    for (int i = 0; i < RUNS; i++) onrig_policy.act(observation, action);
    uint32_t instructions = (uint32_t)(onrig_board_now_us() - start_us);
    float off = onrig_policy_check();
    print_number(instructions);
    print(" instructions per evaluation, stack of ");
    print_number(onrig_stack_used());
    print(" bytes; largest difference from onnxruntime ");
    if (off < 4.0f) {
        print_number((uint32_t)(off * 1e9f));
        print("e-9\n");
    } else {
        print("above 4, or not a number\n");
    }
    ask_host(0x18, (const void *)0x20026u);
    for (;;) {
    }
}
