/* Pins of the RP2040: digital, PWM and analogue. In reset all of them are inputs with a pull-down. */
#ifndef ONRIG_PICO_PINS_H
#define ONRIG_PICO_PINS_H

#include <stdbool.h>
#include <stdint.h>

enum onrig_pull { ONRIG_PULL_NONE, ONRIG_PULL_UP };

/* Make a pin an output, low from the start. */
void onrig_pin_output(uint32_t pin);
void onrig_pin_put(uint32_t pin, bool high);
void onrig_pin_input(uint32_t pin, enum onrig_pull pull);
bool onrig_pin_high(uint32_t pin);

/* Make a pin a PWM output, low until set. Pins of one slice (2n, 2n + 1) share their period. */
void onrig_pin_pwm(uint32_t pin, uint32_t levels);
/* High for `level` out of `levels` cycles, from the next period on; equal values mean always high. */
void onrig_pin_level(uint32_t pin, uint32_t level);

/* Make one of GP26 to GP29 an analogue input. */
void onrig_pin_analog(uint32_t pin, enum onrig_pull pull);
/* Sum of ONRIG_ADC_READINGS conversions of 12 bits, 2 us each; full scale if the converter does not respond. */
#define ONRIG_ADC_READINGS 8u
#define ONRIG_ADC_FULL_SCALE (4096u * ONRIG_ADC_READINGS)
#define ONRIG_ADC_V_PER_SUM (3.3f / (float)ONRIG_ADC_FULL_SCALE)
uint32_t onrig_pin_adc_sum(uint32_t pin);

#endif
