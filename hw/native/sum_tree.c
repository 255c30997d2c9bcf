/* Sums of values by slot; onrig/learner/samplers/sum_tree.py is the reference and owns the arrays.
 *
 * Additions follow the reference's order, so that every sum is identical bit for bit. */
#include "native.h"
#include <string.h>

enum { FAN = 32, MOST_LEVELS = 8 };
enum { OK = 0, OUTSIDE = -1, NOTHING = -2 };

typedef struct {
    int64_t capacity, levels, nodes; /* nodes: number of nodes in the root */
    double *root, *running_root;     /* (nodes) */
    double *values[MOST_LEVELS];     /* from the slots up, (nodes of the level above, FAN) */
    double *running[MOST_LEVELS];    /* sums within each node */
    double *uniform, *target;        /* of a minibatch */
    int64_t *slot;
} sum_tree;

/* The largest double below ``x`` > 0. */
static double below(double x)
{
    uint64_t bits;
    if (!(x > 0.0)) return x;
    memcpy(&bits, &x, sizeof bits);
    bits--;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double smaller(double a, double b) { return a < b ? a : b; }

static void add_up(const double *values, double *running, int64_t from, int64_t n)
{
    double sum = from ? running[from - 1] : 0.0;
    for (int64_t i = from; i < n; i++) {
        sum = i ? sum + values[i] : values[i];
        running[i] = sum;
    }
}

/* Set the values of ``slots`` (n); for duplicate slots the last value counts.  Non-finite values are skipped.
 * ``largest`` is raised to the largest value set. */
EXPORT int64_t onrig_sums_put(sum_tree *t, const int64_t *slots, const double *values, int64_t n, double *largest)
{
    for (int64_t k = 0; k < n; k++)
        if (slots[k] < 0 || slots[k] >= t->capacity) return OUTSIDE;
    int64_t first = t->nodes;
    for (int64_t k = 0; k < n; k++) {
        int64_t node = slots[k];
        double value = values[k];
        if (!(value - value == 0.0)) continue;
        if (value > *largest) *largest = value;
        for (int64_t level = 0; level < t->levels; level++) {
            int64_t child = node % FAN;
            node /= FAN;
            double *of_node = t->values[level] + node * FAN, *running = t->running[level] + node * FAN;
            of_node[child] = value;
            add_up(of_node, running, child, FAN);
            value = running[FAN - 1];
        }
        t->root[node] = value;
        if (node < first) first = node;
    }
    add_up(t->root, t->running_root, first, t->nodes);
    return OK;
}

/* Return the slot whose interval of the running sum contains ``target``, in [0, total), or -1 for NaN. */
static int64_t find(const sum_tree *t, double target)
{
    const double *root = t->running_root;
    if (!(target >= 0.0)) return OUTSIDE;
    target = smaller(target, below(root[t->nodes - 1]));
    int64_t node = 0, n = t->nodes;
    while (n > 0) { /* binary search for the first sum above the target */
        int64_t half = n / 2;
        if (root[node + half] <= target) {
            node += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    if (node) target -= root[node - 1];
    for (int64_t level = t->levels - 1; level >= 0; level--) {
        const double *running = t->running[level] + node * FAN;
        target = smaller(target, below(running[FAN - 1]));
        int64_t child = 0;
        while (child < FAN - 1 && !(running[child] > target)) child++;
        node = node * FAN + child;
        if (level && child) target -= running[child - 1];
    }
    return node;
}

EXPORT int64_t onrig_sums_find(const sum_tree *t, const double *targets, int64_t n, int64_t *slots)
{
    if (!(t->running_root[t->nodes - 1] > 0.0)) return NOTHING;
    for (int64_t k = 0; k < n; k++) {
        slots[k] = find(t, targets[k]);
        if (slots[k] < 0 || slots[k] >= t->capacity) return OUTSIDE;
    }
    return OK;
}

/* For each update, draw one slot from each of ``batch`` equal parts of the total, using ``uniform`` (updates, batch);
 * ``target`` is overwritten with the values of these slots. */
EXPORT int64_t onrig_sums_draw(const sum_tree *t, int64_t updates, int64_t batch)
{
    double total = t->running_root[t->nodes - 1];
    if (!(total > 0.0)) return NOTHING;
    for (int64_t k = 0; k < updates; k++)
        for (int64_t b = 0; b < batch; b++)
            t->target[k * batch + b] = (t->uniform[k * batch + b] + (double)b) / (double)batch * total;
    int64_t code = onrig_sums_find(t, t->target, updates * batch, t->slot);
    for (int64_t i = 0; !code && i < updates * batch; i++) t->target[i] = t->values[0][t->slot[i]];
    return code;
}
