/* What the sources of the library share.  C11 with the GNU vector extensions (gcc and clang), and libm. */
#ifndef ONRIG_NATIVE_H
#define ONRIG_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* Raised with every change of a function's arguments or meaning; library.py states the same number. */
#define ONRIG_ABI 4

#define EXPORT __attribute__((visibility("default")))

/* A source compiled once per precision (-DREAL=float or -DREAL=double) marks its names: NAME(run) is run_float. */
#ifdef REAL
#define ONRIG_JOIN(name, real) name##_##real
#define ONRIG_EXPAND(name, real) ONRIG_JOIN(name, real)
#define NAME(name) ONRIG_EXPAND(name, REAL)
#endif

#endif
