/* Minibatches: draws of distinct uniform slots (reference: onrig/learner/samplers/uniform.py), and the gathering of
 * their rows into records (reference: onrig/runtime/memory/records.py). */
#include "native.h"
#include <string.h>

enum { OK = 0, OUTSIDE = -1 };

typedef struct {
    int64_t table;                  /* size of ``seen``: a power of two, at least twice a minibatch */
    int64_t *seen;                  /* (table) */
    const double *uniform;          /* (updates, batch), over [0, 1) */
    int64_t *slot;                  /* (updates, batch) */
    double (*next_double)(void *);  /* numpy's generator, for redraws */
    void *state;
} distinct;

/* Return whether ``number`` was seen before, and mark it as seen.  Entries of ``seen`` are numbers plus 1. */
static int seen_before(const distinct *d, int64_t number)
{
    uint64_t mask = (uint64_t)d->table - 1, at = (uint64_t)number * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (d->seen[at] && d->seen[at] != number + 1) at = (at + 1) & mask;
    int before = d->seen[at] != 0;
    d->seen[at] = number + 1;
    return before;
}

/* Draw minibatches of distinct slots below ``bound``, which is at least 2 * ``batch``; duplicates are redrawn. */
EXPORT int64_t onrig_draw_distinct(const distinct *d, int64_t updates, int64_t batch, int64_t bound)
{
    if (batch < 1 || 2 * batch > d->table || 2 * batch > bound) return OUTSIDE;
    for (int64_t k = 0; k < updates; k++) {
        memset(d->seen, 0, (size_t)d->table * sizeof *d->seen);
        for (int64_t b = 0; b < batch; b++) {
            double u = d->uniform[k * batch + b];
            if (!(u >= 0.0 && u < 1.0)) return OUTSIDE;
            int64_t slot = (int64_t)(u * (double)bound);
            while (seen_before(d, slot)) slot = (int64_t)(d->next_double(d->state) * (double)bound);
            d->slot[k * batch + b] = slot;
        }
    }
    return OK;
}

typedef struct {
    /* offset: within the record; mask: 0 copies the words, otherwise a word becomes 1.0f if it has a bit of the mask */
    int64_t column, columns, offset, mask;
} field;

typedef struct {
    int64_t trials, capacity, width, record, fields; /* width: words per row; record: words per record */
    const uint32_t *rows;                            /* (trials, capacity, width) */
    const field *field;                              /* (fields) */
} records;

enum { AHEAD = 8 };
static const uint32_t ONE = 0x3F800000u; /* 1.0f */

/* Copy the rows at ``slots`` (updates, trials, batch) into the records ``into`` (trials, updates, record).  Within a
 * record, each field is a matrix of (batch, columns). */
EXPORT int64_t onrig_gather(const records *r, const int64_t *slots, int64_t updates, int64_t batch, uint32_t *into)
{
    for (int64_t f = 0; f < r->fields; f++) {
        const field *g = &r->field[f];
        if (g->column < 0 || g->columns < 1 || g->columns > r->width - g->column || g->offset < 0 ||
            batch > (r->record - g->offset) / g->columns)
            return OUTSIDE;
    }
    for (int64_t i = 0; i < updates * r->trials * batch; i++)
        if (slots[i] < 0 || slots[i] >= r->capacity) return OUTSIDE;
    for (int64_t s = 0; s < r->trials; s++) {
        const uint32_t *rows = r->rows + s * r->capacity * r->width;
        for (int64_t k = 0; k < updates; k++) {
            const int64_t *at = slots + (k * r->trials + s) * batch;
            uint32_t *record = into + (s * updates + k) * r->record;
            for (int64_t b = 0; b < batch; b++) {
                if (b + AHEAD < batch) __builtin_prefetch(rows + at[b + AHEAD] * r->width);
                const uint32_t *row = rows + at[b] * r->width;
                for (int64_t f = 0; f < r->fields; f++) {
                    const field *g = &r->field[f];
                    const uint32_t *from = row + g->column;
                    uint32_t *to = record + g->offset + b * g->columns;
                    if (g->mask)
                        for (int64_t c = 0; c < g->columns; c++) to[c] = from[c] & (uint32_t)g->mask ? ONE : 0;
                    else
                        for (int64_t c = 0; c < g->columns; c++) to[c] = from[c];
                }
            }
        }
    }
    return OK;
}
