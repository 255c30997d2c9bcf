/* The library's shortest functions as built-in functions of the Python interpreter.  Through ctypes each call would
   take 0.4 us longer, and the first one in a tick, with cold caches, 8 us longer.

   The declarations follow CPython's stable ABI, so that its headers are not needed.  They are weak, so that the library
   can also be loaded without an interpreter. */
#include "native.h"
#include <string.h>

typedef struct Object Object; /* PyObject */
typedef struct {              /* PyMethodDef */
    const char *name;
    Object *(*call)(Object *self, Object *argument);
    int flags;
    const char *doc;
} Method;
enum { NO_ARGUMENTS = 4, ONE_ARGUMENT = 8 }; /* METH_NOARGS, METH_O */

#define WEAK __attribute__((weak))
extern WEAK Object *PyBytes_FromStringAndSize(const char *bytes, ptrdiff_t size);
extern WEAK int PyBytes_AsStringAndSize(Object *object, char **bytes, ptrdiff_t *size);
extern WEAK Object *PyLong_FromLong(long value);
extern WEAK Object *PyCFunction_NewEx(Method *method, Object *self, Object *module);

EXPORT void *onrig_builtin(int number, void *self);

/* Call a function of framing.c and return its output as a new bytes object, empty for NOT_A_FRAME. */
static Object *framed(int (*convert)(const uint8_t *, int, uint8_t *), Object *from) {
    char *bytes;
    ptrdiff_t size;
    uint8_t to[MAX_FRAME];
    if (PyBytes_AsStringAndSize(from, &bytes, &size) != 0) return NULL;
    const int length = size > MAX_FRAME ? NOT_A_FRAME : convert((const uint8_t *)bytes, (int)size, to);
    return PyBytes_FromStringAndSize((const char *)to, length < 0 ? 0 : length);
}

static Object *frame_encode(Object *self, Object *body) { return (void)self, framed(onrig_frame_encode, body); }

static Object *frame_decode(Object *self, Object *chunk) { return (void)self, framed(onrig_frame_decode, chunk); }

/* Run the network in `self`, the bytes of a BoundNetwork that onrig_network_check has accepted, and return 0. */
static Object *network_run(Object *self, Object *none) {
    (void)none;
    char *bytes;
    ptrdiff_t size;
    BoundNetwork bound;
    if (PyBytes_AsStringAndSize(self, &bytes, &size) != 0) return NULL;
    if (size != sizeof bound) return PyLong_FromLong(-1);
    memcpy(&bound, bytes, sizeof bound);
    onrig_network_run(bound.steps, bound.count, bound.values);
    return PyLong_FromLong(0);
}

/* In the same order as in library.py. */
static Method methods[] = {
    {"frame_encode", frame_encode, ONE_ARGUMENT, NULL},
    {"frame_decode", frame_decode, ONE_ARGUMENT, NULL},
    {"network_run", network_run, NO_ARGUMENTS, NULL},
};

/* Return the built-in function with this number, bound to `self`; the caller must hold the GIL (ctypes.PyDLL). */
void *onrig_builtin(int number, void *self) { return PyCFunction_NewEx(&methods[number], self, NULL); }
