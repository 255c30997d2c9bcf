/* Executor of lists of operations on small matrices: learner updates for K records of S trials, one trial after the
 * other.
 *
 * Operations, operands and codes are defined in onrig.learner.tape.operations, whose numpy executor is the reference;
 * lists have passed its checks, so nothing is checked here.  This file is compiled twice, for float and for double
 * (REAL, with an INTEGER of the same width).
 *
 * A result depends only on its operands, because their shapes alone determine the order of summation. */
#include "native.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef REAL real;
typedef INTEGER integer;

#if defined(__AVX512F__)
#define BYTES 64
#define MR 8
#elif defined(__AVX__)
#define BYTES 32
#define MR 6
#elif defined(__aarch64__)
#define BYTES 16
#define MR 8
#else
#define BYTES 16
#define MR 4
#endif
#define VL ((int)(BYTES / sizeof(real)))
#define NV 2

typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
#define LOAD(p) (*(const vec *)(p))
#define STORE(p) (*(vec *)(p))
#define INLINE static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 16")

enum { MAX_OPERANDS = 4 };
typedef struct {
    int32_t code, section, rows, cols, inner, space[MAX_OPERANDS], at[MAX_OPERANDS], by_row[MAX_OPERANDS],
        by_col[MAX_OPERANDS], post;
    double x, y, more[2];
} Op;
enum {
    PRODUCT, PRODUCT_NT, PRODUCT_TN,
    COPY, FILL, ADD, SUBTRACT, MULTIPLY, DIVIDE, MINIMUM, AFFINE, CLAMP, EXP, LOG, SQRT, TANH, SIGMOID, SOFTPLUS, SOFTSIGN,
    INSIDE, WHERE_POSITIVE, WHERE_LESS, WHERE_MORE, TANH_SLOPE, SIGMOID_SLOPE, SOFTSIGN_SLOPE, EQUAL,
    SUM, SUM_OF_SQUARES, ROW_SUM, ROW_MAX, ROW_ARGMAX, COLUMN_SUM,
    PROJECT, STANDARDISE, STANDARDISE_SLOPE, DROP, FOLD, TILE, PATCHES, PATCHES_SLOPE, ADD_SCALED, FOLLOW, ADAM,
};
enum { LINEAR, RELU, MASK };

/* Elementary functions.  For float, they are branch-free polynomials, which vectorise; their errors in units in the
 * last place are measured by tests/learner/tape/test_operations.py.  For double, they are those of the C library. */

#define SELECT(c, a, b) ((c) ? (a) : (b))

INLINE float bits_float(int32_t b) { float f; memcpy(&f, &b, 4); return f; }
INLINE int32_t float_bits(float f) { int32_t b; memcpy(&b, &f, 4); return b; }

/* e^r - 1 for |r| <= ln 2 / 2 as r + r^2 p(r) (Cephes, expf). */
INLINE float exp_tail(float r) {
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r;
}

INLINE float exp_float(float x) {
    const float within = SELECT(x > 88.72283f, 88.72283f, SELECT(x < -87.33654f, -87.33654f, x)); /* propagates NaN */
    const float k = within * 1.44269504088896341f + 12582912.0f; /* rounds to an integer in the low bits */
    const float n = k - 12582912.0f;
    const float r = within - n * 0.693359375f - n * -2.12194440e-4f;
    const int32_t shift = (int32_t)((uint32_t)float_bits(k) << 23);
    const float tail = exp_tail(r);
    /* Adding n to the exponent multiplies by 2^n without forming 2^128, which would overflow although e^x does not. */
    const float scaled = bits_float((int32_t)((uint32_t)float_bits(1.0f + tail) + (uint32_t)shift));
    float y = scaled;
    y = SELECT(x > 88.72283f, INFINITY, y);
    y = SELECT(x < -87.33654f, 0.0f, y);
    return SELECT(x != x, x, y);
}

INLINE float log_float(float x) {
    /* x = 2^e m with m in [sqrt(1/2), sqrt(2)) (Cephes, logf). */
    const float scaled = SELECT(x < 1.17549435e-38f, x * 8388608.0f, x); /* subnormal */
    const float less = SELECT(x < 1.17549435e-38f, 23.0f, 0.0f);
    const int32_t b = float_bits(scaled);
    const int32_t e = (int32_t)((uint32_t)b - 0x3f3504f3u) >> 23;
    const float m = bits_float((int32_t)((uint32_t)b - ((uint32_t)e << 23)));
    const float k = (float)e - less, r = m - 1.0f, z = r * r;
    float p = 7.0376836292e-2f;
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    float y = p * r * z;
    y = y + k * -2.12194440e-4f;
    y = y - 0.5f * z;
    y = (r + y) + k * 0.693359375f;
    y = SELECT(x == 0.0f, -INFINITY, y);
    y = SELECT(x < 0.0f, NAN, y);
    y = SELECT(x == INFINITY, INFINITY, y);
    return SELECT(x != x, x, y);
}

/* tanh|x| = t / (t + 2) with t = e^(2|x|) - 1; beyond |x| = 10 it rounds to 1.  NaN is propagated. */
INLINE float tanh_float(float x) {
    const float a = fabsf(x), y = SELECT(a > 10.0f, 20.0f, 2.0f * a);
    const float k = y * 1.44269504088896341f + 12582912.0f;
    const float n = k - 12582912.0f;
    const float r = y - n * 0.693359375f - n * -2.12194440e-4f;
    const float scale = bits_float((int32_t)(((uint32_t)float_bits(k) << 23) + 0x3f800000u)); /* 2^n */
    const float t = scale * exp_tail(r) + (scale - 1.0f);
    return copysignf(t / (t + 2.0f), x);
}

INLINE float sigmoid_float(float x) { return 1.0f / (1.0f + exp_float(-x)); }
/* ln(1 + e) for e = e^-|x|, as log1p through log with compensation for the rounding of 1 + e. */
INLINE float softplus_float(float x) {
    const float e = exp_float(-fabsf(x)), u = 1.0f + e, d = u - 1.0f;
    const float tail = SELECT(d == 0.0f, e, log_float(u) * (e / SELECT(d == 0.0f, 1.0f, d)));
    return SELECT(x != x, x, SELECT(x > 0.0f, x, 0.0f) + tail);
}

INLINE double exp_double(double x) { return exp(x); }
INLINE double log_double(double x) { return log(x); }
INLINE double tanh_double(double x) { return tanh(x); }
INLINE double sigmoid_double(double x) { return 1.0 / (1.0 + exp(-x)); }
INLINE double softplus_double(double x) { return SELECT(x > 0.0, x, 0.0) + log1p(exp(-fabs(x))); }

INLINE float abs_float(float x) { return fabsf(x); }
INLINE double abs_double(double x) { return fabs(x); }
INLINE float sqrt_float(float x) { return sqrtf(x); }
INLINE double sqrt_double(double x) { return sqrt(x); }

/* Products: C (rows, n) = A B (+ bias), register-tiled; A is read by its strides, B row by row. */

typedef integer ivec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
INLINE vec relu_of(vec x) { return (vec)((ivec)x & ~(x < 0)); } /* propagates NaN */
INLINE vec masked(vec x, vec m) { return (vec)((ivec)x & (m > 0)); }

INLINE void tile(const int mr, const int nv, int inner, const real *A, long ra, long ca, const real *B, long ldb,
                 const real *bias, real *C, long ldc, int post, const real *mask, long ldm) {
    vec acc[MR][NV];
    UNROLL for (int i = 0; i < mr; i++) UNROLL for (int j = 0; j < nv; j++) acc[i][j] = bias ? LOAD(bias + j * VL) : (vec){0};
    for (int k = 0; k < inner; k++) {
        vec b[NV];
        UNROLL for (int j = 0; j < nv; j++) b[j] = LOAD(B + k * ldb + j * VL);
        UNROLL for (int i = 0; i < mr; i++) {
            const real a = A[i * ra + k * ca];
            UNROLL for (int j = 0; j < nv; j++) acc[i][j] += a * b[j];
        }
    }
    UNROLL for (int i = 0; i < mr; i++) UNROLL for (int j = 0; j < nv; j++) {
        vec x = acc[i][j];
        if (post == RELU) x = relu_of(x);
        if (post == MASK) x = masked(x, LOAD(mask + i * ldm + j * VL));
        STORE(C + i * ldc + j * VL) = x;
    }
}

typedef struct {
    int rows, cols, inner, post;
    const real *A, *B, *bias, *mask;
    real *C;
    long ra, ca, ldb, ldc, ldm;
} Product;

INLINE void strip(const int mr, const Product *p, int i) {
    const real *A = p->A + i * p->ra;
    real *C = p->C + i * p->ldc;
    const real *M = p->mask ? p->mask + i * p->ldm : 0;
    int j = 0;
#define AT(nv) tile(mr, nv, p->inner, A, p->ra, p->ca, p->B + j, p->ldb, p->bias ? p->bias + j : 0, C + j, p->ldc, p->post, \
                    M ? M + j : 0, p->ldm)
    for (; j + NV * VL <= p->cols; j += NV * VL) AT(NV);
    for (; j + VL <= p->cols; j += VL) AT(1);
    if (j < p->cols) { /* overlaps the previous columns and repeats their sums */
        j = p->cols - VL;
        AT(1);
    }
#undef AT
}

/* Requires cols >= VL. */
static void wide(const Product *p) {
    int i = 0;
    for (; i + MR <= p->rows; i += MR) strip(MR, p, i);
    for (; i + 4 <= p->rows; i += 4) strip(4, p, i);
    for (; i < p->rows; i++) strip(1, p, i);
}

/* For few columns and B transposed: multiply rows of A by rows of T (cols, inner), both contiguous along inner. */
static void narrow(const Product *p, const real *T, long ldt) {
    for (int i = 0; i < p->rows; i++)
        for (int j = 0; j < p->cols; j++) {
            const real *a = p->A + i * p->ra, *b = T + j * ldt;
            vec s = {0};
            int k = 0;
            for (; k + VL <= p->inner; k += VL) s += LOAD(a + k) * LOAD(b + k);
            real sum = p->bias ? p->bias[j] : 0;
            for (; k < p->inner; k++) sum += a[k] * b[k];
            UNROLL for (int l = 0; l < VL; l++) sum += s[l];
            if (p->post == RELU) sum = SELECT(sum < 0, (real)0, sum);
            if (p->post == MASK) sum = SELECT(p->mask[i * p->ldm + j] > 0, sum, (real)0);
            p->C[i * p->ldc + j] = sum;
        }
}

static void turned(int rows, int cols, const real *from, long ld, real *to, long ldt) {
    int i = 0;
    for (; i + 8 <= rows; i += 8) {
        int j = 0;
        for (; j + 8 <= cols; j += 8)
            UNROLL for (int a = 0; a < 8; a++) UNROLL for (int b = 0; b < 8; b++)
                to[(j + b) * ldt + i + a] = from[(i + a) * ld + j + b];
        for (; j < cols; j++) for (int a = 0; a < 8; a++) to[j * ldt + i + a] = from[(i + a) * ld + j];
    }
    for (; i < rows; i++) for (int j = 0; j < cols; j++) to[j * ldt + i] = from[i * ld + j];
}

/* `spare` holds a transposed matrix. */
static void product(const Op *o, real *const p[], real *spare) {
    const int32_t *row = o->by_row, *col = o->by_col;
    const int masks = o->post == MASK;
    Product q = {o->rows, o->cols, o->inner, o->post, p[1], p[2], o->code == PRODUCT ? p[3] : 0, masks ? p[3] : 0, p[0],
                 row[1], col[1], row[2], row[0], masks ? row[3] : 0};
    switch (o->code) {
    case PRODUCT:
        if (q.cols >= VL) {
            wide(&q);
        } else if (col[1] == 1 || q.inner == 1) {
            turned(q.inner, q.cols, q.B, q.ldb, spare, q.inner);
            narrow(&q, spare, q.inner);
        } else {
            for (int i = 0; i < q.rows; i++) for (int j = 0; j < q.cols; j++) {
                real s = q.bias[j];
                for (int k = 0; k < q.inner; k++) s += q.A[i * q.ra + k * q.ca] * q.B[k * q.ldb + j];
                q.C[i * q.ldc + j] = q.post == RELU ? SELECT(s < 0, (real)0, s) : s;
            }
        }
        break;
    case PRODUCT_NT: /* B (cols, inner) */
        if (q.cols >= VL) {
            turned(q.cols, q.inner, q.B, q.ldb, spare, q.cols);
            q.B = spare;
            q.ldb = q.cols;
            wide(&q);
        } else {
            narrow(&q, q.B, q.ldb);
        }
        break;
    default: /* A (inner, rows) */
        q.ra = col[1];
        q.ca = row[1];
        if (q.cols >= VL) {
            wide(&q);
        } else if (q.rows >= VL) { /* compute the transpose: (cols, rows) = B' A */
            Product t = {q.cols, q.rows, q.inner, LINEAR, q.B, q.A, 0, 0, spare, 1, q.ldb, q.ca, q.rows, 0};
            wide(&t);
            turned(q.cols, q.rows, spare, q.rows, q.C, q.ldc);
        } else {
            for (int i = 0; i < q.rows; i++) for (int j = 0; j < q.cols; j++) {
                real s = 0;
                for (int k = 0; k < q.inner; k++) s += q.A[i * q.ra + k * q.ca] * q.B[k * q.ldb + j];
                q.C[i * q.ldc + j] = s;
            }
        }
    }
}

/* Elementwise operations: an operand with stride 0 is repeated. */

#define ROWS(...) for (int i = 0; i < o->rows; i++) { \
        real *O = p[0] + (long)i * o->by_row[0]; __VA_ARGS__ } break
#define COLS(...) for (int j = 0; j < n; j++) { __VA_ARGS__ }
#define OPERAND(k, name) const real *name##s = p[k] + (long)i * o->by_row[k]

#define UNARY(expression) ROWS( \
        OPERAND(1, A); \
        if (o->by_col[1]) COLS(const real a = As[j]; O[j] = expression;) \
        else { const real a = As[0]; const real value = expression; COLS(O[j] = value;) })
#define BINARY(expression) ROWS( \
        OPERAND(1, A); OPERAND(2, B); \
        if (o->by_col[1] && o->by_col[2]) COLS(const real a = As[j], b = Bs[j]; O[j] = expression;) \
        else if (o->by_col[1]) { const real b = Bs[0]; COLS(const real a = As[j]; O[j] = expression;) } \
        else if (o->by_col[2]) { const real a = As[0]; COLS(const real b = Bs[j]; O[j] = expression;) } \
        else { const real a = As[0], b = Bs[0]; const real value = expression; COLS(O[j] = value;) })
#define TERNARY(expression) ROWS( \
        OPERAND(1, A); OPERAND(2, B); OPERAND(3, C); \
        const int ca = o->by_col[1], cb = o->by_col[2], cc = o->by_col[3]; \
        if (ca && cb && cc) COLS(const real a = As[j], b = Bs[j], c = Cs[j]; O[j] = expression;) \
        else COLS(const real a = As[j * ca], b = Bs[j * cb], c = Cs[j * cc]; O[j] = expression;))

static real sum_of(const real *x, int n) {
    vec s = {0};
    int j = 0;
    for (; j + VL <= n; j += VL) s += LOAD(x + j);
    real sum = 0;
    for (; j < n; j++) sum += x[j];
    UNROLL for (int l = 0; l < VL; l++) sum += s[l];
    return sum;
}

static real squares_of(const real *x, int n) {
    vec s = {0};
    int j = 0;
    for (; j + VL <= n; j += VL) s += LOAD(x + j) * LOAD(x + j);
    real sum = 0;
    for (; j < n; j++) sum += x[j] * x[j];
    UNROLL for (int l = 0; l < VL; l++) sum += s[l];
    return sum;
}

static void reduce(const Op *o, real *const p[]) {
    const int n = o->cols;
    const long ld = o->by_row[1];
    real *O = p[0];
    const real *A = p[1];
    real sum = 0;
    switch (o->code) {
    case SUM:
        if (n == 1 && ld == 1) { *O = sum_of(A, o->rows); return; }
        for (int i = 0; i < o->rows; i++) sum += sum_of(A + i * ld, n);
        *O = sum;
        return;
    case SUM_OF_SQUARES:
        if (n == 1 && ld == 1) { *O = squares_of(A, o->rows); return; }
        for (int i = 0; i < o->rows; i++) sum += squares_of(A + i * ld, n);
        *O = sum;
        return;
    case ROW_SUM:
        for (int i = 0; i < o->rows; i++) O[i * o->by_row[0]] = sum_of(A + i * ld, n);
        return;
    case ROW_MAX:
    case ROW_ARGMAX:
        for (int i = 0; i < o->rows; i++) {
            const real *x = A + i * ld;
            int best = 0;
            for (int j = 1; j < n; j++) best = (x[j] > x[best] || (x[j] != x[j] && x[best] == x[best])) ? j : best;
            O[i * o->by_row[0]] = o->code == ROW_MAX ? x[best] : (real)best;
        }
        return;
    default: { /* COLUMN_SUM */
        int j = 0;
        for (; j + VL <= n; j += VL) {
            vec s = {0};
            for (int i = 0; i < o->rows; i++) s += LOAD(A + i * ld + j);
            STORE(O + j) = s;
        }
        for (; j < n; j++) {
            real s = 0;
            for (int i = 0; i < o->rows; i++) s += A[i * ld + j];
            O[j] = s;
        }
    }
    }
}

static void project(const Op *o, real *const p[]) {
    const int n = o->cols;
    const real low = o->x, high = o->y, width = (high - low) / (real)(n - 1);
    for (int i = 0; i < o->rows; i++) {
        real *out = p[0] + (long)i * o->by_row[0];
        const real *chance = p[1] + (long)i * o->by_row[1];
        const real reward = p[2][(long)i * o->by_row[2]], discount = p[3][(long)i * o->by_row[3]];
        for (int j = 0; j < n; j++) out[j] = 0;
        for (int j = 0; j < n; j++) {
            const real z = (real)(o->x + (o->y - o->x) * j / (n - 1));
            real at = reward + discount * z;
            at = SELECT(at < low, low, SELECT(at > high, high, at));
            const real place = (at - low) / width;
            /* NaN, and infinity if the width underflows, cannot be converted to int. */
            const int below = place > 0 ? place < (real)(n - 2) ? (int)place : n - 2 : 0;
            const real share = place - (real)below;
            out[below] += chance[j] * (1 - share);
            out[below + 1] += chance[j] * share;
        }
    }
}

/* Return the sum of products of deviations from the means, (x - mx) (y - my). */
static real codeviation(const real *x, real mx, const real *y, real my, int n) {
    vec s = {0};
    int j = 0;
    for (; j + VL <= n; j += VL) s += (LOAD(x + j) - mx) * (LOAD(y + j) - my);
    real sum = 0;
    for (; j < n; j++) sum += (x[j] - mx) * (y[j] - my);
    UNROLL for (int l = 0; l < VL; l++) sum += s[l];
    return sum;
}

static void standardise_rows(const Op *o, real *const p[]) {
    const int n = o->cols;
    const real eps = o->y;
    for (int i = 0; i < o->rows; i++) {
        real *restrict O = p[0] + (long)i * o->by_row[0];
        const real *restrict A = p[1] + (long)i * o->by_row[1];
        const real mean = sum_of(A, n) / n, scale = 1 / NAME(sqrt)(codeviation(A, mean, A, mean, n) / n + eps);
        if (o->code == STANDARDISE) {
            for (int j = 0; j < n; j++) O[j] = (A[j] - mean) * scale;
            continue;
        }
        const real *restrict G = p[2] + (long)i * o->by_row[2];
        const real of_g = sum_of(G, n) / n, slope = codeviation(A, mean, G, 0, n) / n * (scale * scale);
        for (int j = 0; j < n; j++) O[j] = (G[j] - of_g - (A[j] - mean) * slope) * scale;
    }
}

enum { BLOCK = 64 };

static void standardise_columns(const Op *o, real *const p[]) {
    const int rows = o->rows;
    const real eps = o->y;
    for (int start = 0; start < o->cols; start += BLOCK) {
        const int n = o->cols - start < BLOCK ? o->cols - start : BLOCK;
        real mean[BLOCK] = {0}, scale[BLOCK] = {0}, of_g[BLOCK] = {0}, slope[BLOCK] = {0};
        const real *A = p[1] + start, *G = o->code == STANDARDISE ? 0 : p[2] + start;
        const long lda = o->by_row[1], ldg = o->by_row[2];
        for (int i = 0; i < rows; i++) COLS(mean[j] += A[i * lda + j];)
        COLS(mean[j] /= rows;)
        for (int i = 0; i < rows; i++) COLS(const real d = A[i * lda + j] - mean[j]; scale[j] += d * d;)
        COLS(scale[j] = 1 / NAME(sqrt)(scale[j] / rows + eps);)
        if (G) {
            for (int i = 0; i < rows; i++)
                COLS(of_g[j] += G[i * ldg + j]; slope[j] += (A[i * lda + j] - mean[j]) * G[i * ldg + j];)
            COLS(of_g[j] /= rows; slope[j] = slope[j] / rows * (scale[j] * scale[j]);)
        }
        for (int i = 0; i < rows; i++) {
            real *restrict O = p[0] + (long)i * o->by_row[0] + start;
            if (G) COLS(O[j] = (G[i * ldg + j] - of_g[j] - (A[i * lda + j] - mean[j]) * slope[j]) * scale[j];)
            else COLS(O[j] = (A[i * lda + j] - mean[j]) * scale[j];)
        }
    }
}

INLINE uint32_t mixed(uint32_t bits) { /* "lowbias32", C. Wellons 2018 */
    bits = (bits ^ bits >> 16) * 0x7feb352du;
    bits = (bits ^ bits >> 15) * 0x846ca68bu;
    return bits ^ bits >> 16;
}

static void drop(const Op *o, real *const p[]) {
    const int n = o->cols;
    const real seed = *p[2], factor = 1.0 / (1.0 - o->x);
    const uint32_t word = seed >= 0 && seed < 16777216 ? (uint32_t)seed : 0;
    const uint32_t key = mixed(word ^ mixed((uint32_t)o->inner + 0x9e3779b9u)), rate = (uint32_t)(o->x * 4294967296.0);
    for (int i = 0; i < o->rows; i++) {
        real *restrict O = p[0] + (long)i * o->by_row[0];
        const real *restrict A = p[1] + (long)i * o->by_row[1];
        const uint32_t first = (uint32_t)i * (uint32_t)n;
        COLS(const real a = A[j] * factor; O[j] = SELECT(mixed((first + (uint32_t)j) * 0x9e3779b9u + key) >= rate, a, (real)0);)
    }
}

static void fold(const Op *o, real *const p[]) {
    const int width = o->inner;
    for (int i = 0; i < o->rows; i++) {
        real *restrict out = p[0] + (long)i * o->by_row[0];
        const real *restrict a = p[1] + (long)i * o->by_row[1];
        for (int j = 0; j < width; j++) out[j] = a[j];
        for (int start = width; start < o->cols; start += width)
            for (int j = 0; j < width; j++) out[j] += a[start + j];
    }
}

static void tile_columns(const Op *o, real *const p[]) {
    const int width = o->inner;
    for (int i = 0; i < o->rows; i++)
        for (int start = 0; start < o->cols; start += width)
            memcpy(p[0] + (long)i * o->by_row[0] + start, p[1] + (long)i * o->by_row[1], width * sizeof(real));
}

/* Each row of a window is contiguous in the image, whose elements are ordered by row, column and channel. */
static void patches(const Op *o, real *const p[]) {
    const int back = o->code == PATCHES_SLOPE, height = o->more[0], width = o->more[1], side = o->x, stride = o->y;
    const int channels = (back ? o->cols : o->inner) / (height * width), n = side * channels;
    for (int i = 0; i < o->rows; i++) {
        real *image = p[back ? 0 : 1] + (long)i * o->by_row[back ? 0 : 1];
        real *patch = p[back ? 1 : 0] + (long)i * o->by_row[back ? 1 : 0];
        if (back) memset(image, 0, sizeof(real) * o->cols);
        for (int top = 0; top + side <= height; top += stride)
            for (int left = 0; left + side <= width; left += stride)
                for (int row = 0; row < side; row++, patch += n) {
                    real *restrict line = image + ((long)(top + row) * width + left) * channels;
                    if (back)
                        for (int j = 0; j < n; j++) line[j] += patch[j];
                    else
                        memcpy(patch, line, n * sizeof(real));
                }
    }
}

/* Treat subnormal numbers as zero until `restored` is called: on x86 each operation on one costs 150 cycles. */
#if defined(__SSE__)
INLINE unsigned flushed(void) {
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);
    return mode;
}
INLINE void restored(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#else
INLINE unsigned flushed(void) { return 0; }
INLINE void restored(unsigned mode) { (void)mode; }
#endif

/* Subnormal numbers are flushed, because the moments of a unit whose gradient remains zero decay through them. */
static void adam(const Op *o, real *const p[]) {
    const int n = o->cols;
    real *restrict out = p[0], *restrict mean = p[2], *restrict square = p[2] + n;
    const real *restrict g = p[1];
    const real taken = ++p[2][2 * n];
    const double beta1 = o->more[0], beta2 = o->more[1];
    const real keep1 = 1.0 - beta1, b2 = beta2, keep2 = 1.0 - beta2, eps = o->y;
    const real root = 1.0 / sqrt(1.0 - pow(beta2, taken)), step = o->x * (double)p[3][0] / (1.0 - pow(beta1, taken));
    const unsigned mode = flushed();
    for (int i = 0; i < n; i++) {
        mean[i] += keep1 * (g[i] - mean[i]);
        square[i] = b2 * square[i] + keep2 * (g[i] * g[i]);
        out[i] -= step * (mean[i] / (NAME(sqrt)(square[i]) * root + eps));
    }
    restored(mode);
}

static void run(const Op *o, real *const base[3], real *spare) {
    real *p[MAX_OPERANDS];
    for (int k = 0; k < MAX_OPERANDS; k++) p[k] = o->space[k] < 0 ? 0 : base[o->space[k]] + o->at[k];
    const int n = o->cols;
    const real x = o->x, y = o->y;
    switch (o->code) {
    case PRODUCT: case PRODUCT_NT: case PRODUCT_TN: product(o, p, spare); break;
    case COPY: UNARY(a);
    case FILL: ROWS(COLS(O[j] = x;));
    case ADD: BINARY(a + b);
    case SUBTRACT: BINARY(a - b);
    case MULTIPLY: BINARY(a * b);
    case DIVIDE: BINARY(a / b);
    case MINIMUM: BINARY(SELECT(a <= b || a != a, a, b));
    case AFFINE: UNARY(a * x + y);
    case CLAMP: UNARY(SELECT(a < x, x, SELECT(a > y, y, a)));
    case EXP: UNARY(NAME(exp)(a));
    case LOG: UNARY(NAME(log)(a));
    case SQRT: UNARY(NAME(sqrt)(a));
    case TANH: UNARY(NAME(tanh)(a));
    case SIGMOID: UNARY(NAME(sigmoid)(a));
    case SOFTPLUS: UNARY(NAME(softplus)(a));
    case SOFTSIGN: UNARY(a / (1 + NAME(abs)(a)));
    case INSIDE: BINARY(SELECT(a < x || a > y, (real)0, b));
    case WHERE_POSITIVE: BINARY(SELECT(a > 0, b, (real)0));
    case WHERE_LESS: TERNARY(SELECT(a <= b, c, (real)0));
    case WHERE_MORE: TERNARY(SELECT(a > b, c, (real)0));
    case TANH_SLOPE: BINARY(b * (1 - a * a));
    case SIGMOID_SLOPE: BINARY(b * (a * (1 - a)));
    case SOFTSIGN_SLOPE: BINARY(b * ((1 - NAME(abs)(a)) * (1 - NAME(abs)(a))));
    case EQUAL: BINARY((real)(a == b));
    case SUM: case SUM_OF_SQUARES: case ROW_SUM: case ROW_MAX: case ROW_ARGMAX: case COLUMN_SUM: reduce(o, p); break;
    case PROJECT: project(o, p); break;
    case STANDARDISE: case STANDARDISE_SLOPE: (o->post ? standardise_columns : standardise_rows)(o, p); break;
    case DROP: drop(o, p); break;
    case FOLD: fold(o, p); break;
    case TILE: tile_columns(o, p); break;
    case PATCHES: case PATCHES_SLOPE: patches(o, p); break;
    case ADD_SCALED: ROWS(OPERAND(1, A); const int ca = o->by_col[1];
        if (ca) COLS(O[j] += x * As[j];) else COLS(O[j] += x * As[0];));
    case FOLLOW: ROWS(OPERAND(1, A); const int ca = o->by_col[1];
        if (ca) COLS(O[j] += x * (As[j] - O[j]);) else COLS(O[j] += x * (As[0] - O[j]);));
    case ADAM: adam(o, p); break;
    }
}

/* States (S, state_size) are changed in place; records (S, K, record_size) are read and written, in order of K.  An
 * operation runs in an update if the update's entry in `masks` (K) has the bit of the operation's section; bit 0 is
 * always set. */
EXPORT void NAME(onrig_tape_run)(const Op *operations, int64_t count, int64_t S, int64_t K, real *states, int64_t state_size,
                                 real *records, int64_t record_size, real *scratch, real *spare, const uint32_t *masks) {
    for (int64_t s = 0; s < S; s++)
        for (int64_t k = 0; k < K; k++) {
            real *const base[3] = {states + s * state_size, records + (s * K + k) * record_size, scratch};
            const uint32_t mask = masks ? masks[k] | 1u : 1u;
            for (const Op *o = operations; o < operations + count; o++)
                if (mask >> o->section & 1u) run(o, base, spare);
        }
}
