/* Declarations shared by the library's sources.  C11 with the GNU vector extensions (gcc and clang), and libm. */
#ifndef ONRIG_NATIVE_H
#define ONRIG_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* Incremented whenever a function's arguments or meaning change; library.py contains the same number. */
#define ONRIG_ABI 7

#define EXPORT __attribute__((visibility("default")))

/* A source compiled once per precision (-DREAL=float or -DREAL=double) suffixes its names: NAME(run) is run_float. */
#ifdef REAL
#define ONRIG_JOIN(name, real) name##_##real
#define ONRIG_EXPAND(name, real) ONRIG_JOIN(name, real)
#define NAME(name) ONRIG_EXPAND(name, REAL)
#endif

/* framing.c: negative results, and the maximum size of a frame on the wire in bytes. */
enum { NOT_A_FRAME = -1, MAX_FRAME = 256 };
EXPORT int onrig_frame_encode(const uint8_t *body, int size, uint8_t *wire);
EXPORT int onrig_frame_decode(const uint8_t *chunk, int size, uint8_t *body);

/* network.c */
typedef struct Step Step;
typedef struct {
    const Step *steps;
    int count;
    float *values;
} BoundNetwork;
EXPORT int onrig_network_check(const Step *steps, int count, int size);
EXPORT void onrig_network_run(const Step *steps, int count, float *values);

#endif
