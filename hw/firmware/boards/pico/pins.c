#include "pins.h"

#include "rp2040.h"

#define FIRST_ANALOG 26u

static void use(uint32_t pin, uint32_t pad, uint32_t function) {
    PADS_GPIO(pin) = pad;
    GPIO_CTRL(pin) = function;
}

void onrig_pin_output(uint32_t pin) {
    SIO_GPIO_OUT_CLR = BIT(pin);
    SIO_GPIO_OE_SET = BIT(pin);
    use(pin, PAD_4_MA | PAD_PULL_DOWN, FUNCTION_SIO);
}

void onrig_pin_put(uint32_t pin, bool high) {
    if (high)
        SIO_GPIO_OUT_SET = BIT(pin);
    else
        SIO_GPIO_OUT_CLR = BIT(pin);
}

void onrig_pin_input(uint32_t pin, enum onrig_pull pull) {
    use(pin, PAD_INPUT | PAD_SCHMITT | (pull == ONRIG_PULL_UP ? PAD_PULL_UP : 0), FUNCTION_SIO);
}

bool onrig_pin_high(uint32_t pin) {
    return SIO_GPIO_IN & BIT(pin);
}

void onrig_pin_pwm(uint32_t pin, uint32_t levels) {
    uint32_t slice = pin / 2 % 8;
    PWM_TOP(slice) = levels - 1;
    onrig_pin_level(pin, 0);
    PWM_CSR(slice) = 1;
    use(pin, PAD_4_MA | PAD_PULL_DOWN, FUNCTION_PWM);
}

void onrig_pin_level(uint32_t pin, uint32_t level) {
    uint32_t slice = pin / 2 % 8, shift = pin % 2 * 16;
    PWM_CC(slice) = (PWM_CC(slice) & ~(0xFFFFu << shift)) | level << shift;
}

void onrig_pin_analog(uint32_t pin, enum onrig_pull pull) {
    PADS_GPIO(pin) = PAD_NO_OUTPUT | (pull == ONRIG_PULL_UP ? PAD_PULL_UP : 0);
    ADC_CS = ADC_EN;
}

uint32_t onrig_pin_adc_sum(uint32_t pin) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < ONRIG_ADC_READINGS; i++) {
        uint32_t patience = 1000;
        ADC_CS = ADC_EN | ADC_START_ONCE | ADC_CHANNEL(pin - FIRST_ANALOG);
        while (!(ADC_CS & ADC_READY))
            if (--patience == 0) return ONRIG_ADC_FULL_SCALE;
        sum += ADC_RESULT;
    }
    return sum;
}
