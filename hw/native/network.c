/* A policy's network: a list of operations on one array of floats, compiled from its graph by
 * runtime/policy/network.py. */
#include "native.h"
#include <math.h>
#include <string.h>

/* The same codes as in network.py. */
enum { DENSE, ADD, SUB, MUL, DIV, MIN, MAX, COPY, RELU, TANH, SIGMOID, EXP, SOFTSIGN, NEG, ABS, SQRT, OPERATIONS };

/* Offsets into the array, and widths: DENSE maps `n` values at `a` to `m` values at `out`, with weights (n, m)
 * followed by the bias (m,) at `b`; the other operations map `n` values at `a` (and at `b`, if binary) to as many at
 * `out`. */
struct Step {
    int32_t operation, a, b, out, n, m;
};

static int takes_two(int operation) { return operation >= ADD && operation <= MAX; }

/* Whether the `width` values that start at `at` lie within an array of `size` and outside [out, out + taken). */
static int fits(int64_t at, int64_t width, int64_t size, int64_t out, int64_t taken) {
    return at >= 0 && at + width <= size && (at + width <= out || out + taken <= at);
}

/* Return the index of the first step that would leave the array or read its own output, or -1 if none does. */
int onrig_network_check(const Step *steps, int count, int size) {
    for (int k = 0; k < count; k++) {
        const Step s = steps[k];
        if (s.operation < 0 || s.operation >= OPERATIONS || s.n < 1 || s.m < 1) return k;
        const int64_t width = s.operation == DENSE ? s.m : s.n;
        if (!fits(s.out, width, size, size, 0) || !fits(s.a, s.n, size, s.out, width)) return k;
        const int64_t more = s.operation == DENSE ? ((int64_t)s.n + 1) * s.m : takes_two(s.operation) ? s.n : 0;
        if (more && !fits(s.b, more, size, s.out, width)) return k;
    }
    return -1;
}

/* exp(x) - 1, accurate to 1e-14, in double: x = k ln 2 + r with |r| <= ln 2 / 2, and the power series of exp(r) - 1.
   libm is not used, because its results depend on its version.  NaN is propagated; x saturates at +-700. */
static inline double exponential_less_one(double x) {
    const double to_integer = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer in the low bits */
    x = x > 700.0 ? 700.0 : x < -700.0 ? -700.0 : x;
    const double shifted = x * 1.4426950408889634 + to_integer;
    const double k = shifted - to_integer;
    const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power * p + (power - 1.0);
}

static inline float tanh_of(float x) {
    const double e = exponential_less_one(2.0 * x);
    return (float)(e / (e + 2.0));
}

static inline float sigmoid_of(float x) { return (float)(1.0 / (2.0 + exponential_less_one(-(double)x))); }

/* Compute `width` outputs at once in registers; each sums over the inputs in order, whatever the block size. */
static inline __attribute__((always_inline)) void dense_block(const int width, const float *restrict x, int n, int m,
                                                              const float *restrict weights,
                                                              const float *restrict bias, float *restrict out) {
    float sums[32];
    for (int j = 0; j < width; j++) sums[j] = bias[j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j++) sums[j] += x[i] * weights[(size_t)i * (size_t)m + (size_t)j];
    for (int j = 0; j < width; j++) out[j] = sums[j];
}

static void dense(const float *x, int n, int m, const float *weights, float *out) {
    const float *const bias = weights + (size_t)n * (size_t)m;
    int j = 0;
    for (; j + 32 <= m; j += 32) dense_block(32, x, n, m, weights + j, bias + j, out + j);
    for (; j + 8 <= m; j += 8) dense_block(8, x, n, m, weights + j, bias + j, out + j);
    for (; j < m; j++) dense_block(1, x, n, m, weights + j, bias + j, out + j);
}

#define EACH(expression)                                                                                             \
    for (int i = 0; i < s.n; i++) out[i] = (expression);                                                             \
    break

/* Run steps that onrig_network_check has accepted.  Comparisons are written to propagate NaN. */
void onrig_network_run(const Step *steps, int count, float *values) {
    for (int k = 0; k < count; k++) {
        const Step s = steps[k];
        const float *restrict a = values + s.a, *restrict b = values + s.b;
        float *restrict out = values + s.out;
        switch (s.operation) {
        case DENSE: dense(a, s.n, s.m, b, out); break;
        case ADD: EACH(a[i] + b[i]);
        case SUB: EACH(a[i] - b[i]);
        case MUL: EACH(a[i] * b[i]);
        case DIV: EACH(a[i] / b[i]);
        case MIN: EACH(a[i] > b[i] || b[i] != b[i] ? b[i] : a[i]);
        case MAX: EACH(a[i] < b[i] || b[i] != b[i] ? b[i] : a[i]);
        case COPY: EACH(a[i]);
        case RELU: EACH(a[i] < 0.0f ? 0.0f : a[i]);
        case TANH: EACH(tanh_of(a[i]));
        case SIGMOID: EACH(sigmoid_of(a[i]));
        case EXP: EACH((float)(1.0 + exponential_less_one(a[i])));
        case SOFTSIGN: EACH(a[i] / (1.0f + fabsf(a[i])));
        case NEG: EACH(-a[i]);
        case ABS: EACH(fabsf(a[i]));
        case SQRT: EACH(sqrtf(a[i]));
        }
    }
}
