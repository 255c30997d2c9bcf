/* Runs packed lists from stdin with every array of its exact size, so that the sanitizers see what leaves it.
 *
 * A list runs over two updates of two trials, the first of NaN and infinities, and once more for the second trial alone
 * with another scratch: exit code 3 and the number of the list where bits differ. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN(name, real) void name(const void *, int64_t, int64_t, int64_t, real *, int64_t, real *, int64_t, real *, real *, \
                                  const uint32_t *)
RUN(onrig_tape_run_float, float);
RUN(onrig_tape_run_double, double);

enum { OP_BYTES = 120, K = 2 };
typedef struct { int32_t lists, operations, is_double; uint32_t seed; } Batch;
typedef struct { int32_t sizes[3], spare; } List;

static uint32_t state_of_stream;
static uint32_t next(void) {
    state_of_stream ^= state_of_stream << 13;
    state_of_stream ^= state_of_stream >> 17;
    return state_of_stream ^= state_of_stream << 5;
}
static double special(void) {
    static const double values[] = {NAN, INFINITY, -INFINITY, NAN, 1e38, -1e38, 1e-42, -0.0};
    return values[next() >> 29];
}
static double ordinary(void) { return (int32_t)next() * (2.0 / 2147483648.0); }

static void fail(const char *what, int code) {
    fprintf(stderr, "%s\n", what);
    exit(code);
}
static void *bytes(size_t n) {
    void *made = malloc(n);
    if (!made) fail("no memory", 2);
    return made;
}
static void get(void *into, size_t n) {
    if (fread(into, 1, n, stdin) != n) fail("truncated input", 2);
}

static void set(void *into, int is_double, int64_t i, double value) {
    if (is_double) ((double *)into)[i] = value;
    else ((float *)into)[i] = (float)value;
}

static void run(int is_double, const void *ops, int n, int S, void *state, int64_t state_size, void *records,
                int64_t record_size, void *scratch, void *spare, const uint32_t *masks) {
    if (is_double) onrig_tape_run_double(ops, n, S, K, state, state_size, records, record_size, scratch, spare, masks);
    else onrig_tape_run_float(ops, n, S, K, state, state_size, records, record_size, scratch, spare, masks);
}

static void one(const Batch *batch, int number) {
    List list;
    get(&list, sizeof list);
    const size_t width = batch->is_double ? 8 : 4, ops_bytes = (size_t)batch->operations * OP_BYTES;
    const int64_t P = list.sizes[0], R = list.sizes[1], scratch_size = list.sizes[2];
    uint32_t *masks = bytes(K * sizeof *masks);
    char *ops = bytes(ops_bytes), *state = bytes(2 * P * width), *records = bytes(2 * K * R * width);
    char *scratch = bytes(scratch_size * width), *spare = bytes(list.spare * width);
    get(ops, ops_bytes);
    const uint32_t rarely = next() & 3 ? 0 : 7;
    for (int64_t i = 0; i < 2 * P; i++)
        set(state, batch->is_double, i, i < P || (rarely && !(next() & rarely)) ? special() : ordinary());
    for (int64_t i = 0; i < 2 * K * R; i++)
        set(records, batch->is_double, i, i < K * R || (rarely && !(next() & rarely)) ? special() : ordinary());
    for (int k = 0; k < K; k++) masks[k] = next();
    const uint32_t *of_updates = next() & 1 ? masks : NULL;

    char *alone_state = bytes(P * width), *alone_records = bytes(K * R * width), *other = bytes(scratch_size * width);
    memcpy(alone_state, state + P * width, P * width);
    memcpy(alone_records, records + K * R * width, K * R * width);
    memset(scratch, 0xff, scratch_size * width);
    memset(other, 0x3f, scratch_size * width);
    run(batch->is_double, ops, batch->operations, 2, state, P, records, R, scratch, spare, of_updates);
    run(batch->is_double, ops, batch->operations, 1, alone_state, P, alone_records, R, other, spare, of_updates);
    if (memcmp(alone_state, state + P * width, P * width) || memcmp(alone_records, records + K * R * width, K * R * width)) {
        fprintf(stderr, "list %d: the second trial differs from what it gives alone\n", number);
        exit(3);
    }
    char *const all[] = {(char *)masks, ops, state, records, scratch, spare, alone_state, alone_records, other};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

int main(void) {
    Batch batch;
    long done = 0;
    while (fread(&batch, sizeof batch, 1, stdin) == 1) {
        state_of_stream = batch.seed | 1u;
        for (int i = 0; i < batch.lists; i++) one(&batch, i);
        done += batch.lists;
    }
    printf("%ld\n", done);
    return 0;
}
