/* Prioritised orders: the reference and the layout of the structs are in onrig/runtime/memory/order.
 *
 * Every entry point checks its arguments before it changes anything; nothing is allocated. */
#include "native.h"
#include <string.h>

enum { BLOCK = 64 };            /* leaves per partial sum of counts */
#define INFINITE 0x7F800000u    /* bits of +inf, the largest value */
#define NORMAL 0x00100000u      /* keeps keys out of a double's subnormal range, as in the reference */
#define SEQUENCE_END ((int64_t)1 << 32)

enum { OK = 0, OUTSIDE = -1, ABSENT = -2, NOT_A_NUMBER = -3, FULL = -4 };

/* A B-tree of two levels: leaves of ascending keys with their slots, and a directory of the leaves in order.  ``page``
 * is a permutation of all pages: first those in the directory, then the free ones. */
typedef struct {
    int64_t capacity, leaf, least, merged, pages;
    int64_t entries, leaves, sequence;
    uint64_t *key_of; /* (capacity), 0: absent */
    uint64_t *keys;   /* (pages, leaf) */
    uint32_t *slots;  /* (pages, leaf) */
    uint64_t *bound;  /* (pages): smallest key that belongs to the leaf */
    int64_t *count;   /* (pages) */
    int64_t *page;    /* (pages) */
    int64_t *block;   /* (pages / BLOCK + 1): sums of count */
} ranked;

static uint64_t *keys_of(const ranked *o, int64_t p) { return o->keys + o->page[p] * o->leaf; }
static uint32_t *slots_of(const ranked *o, int64_t p) { return o->slots + o->page[p] * o->leaf; }

/* Return the number of entries <= ``key`` in the ascending array ``a`` (n). */
static int64_t at_most(const uint64_t *a, int64_t n, uint64_t key)
{
    const uint64_t *first = a;
    while (n > 0) {
        int64_t half = n >> 1;
        int right = first[half] <= key;
        first += right ? half + 1 : 0;
        n = right ? n - half - 1 : half;
    }
    return first - a;
}

static int64_t leaf_for(const ranked *o, uint64_t key) { return at_most(o->bound, o->leaves, key) - 1; }

static void sum_blocks(ranked *o, int64_t from)
{
    for (int64_t b = from / BLOCK; b * BLOCK < o->leaves; b++) {
        int64_t end = (b + 1) * BLOCK < o->leaves ? (b + 1) * BLOCK : o->leaves, sum = 0;
        for (int64_t p = b * BLOCK; p < end; p++) sum += o->count[p];
        o->block[b] = sum;
    }
}

/* Insert a leaf on a free page at position ``p`` of the directory. */
static void open_leaf(ranked *o, int64_t p, uint64_t bound, int64_t count)
{
    int64_t page = o->page[o->leaves], after = o->leaves - p;
    memmove(o->page + p + 1, o->page + p, (size_t)after * sizeof *o->page);
    memmove(o->bound + p + 1, o->bound + p, (size_t)after * sizeof *o->bound);
    memmove(o->count + p + 1, o->count + p, (size_t)after * sizeof *o->count);
    o->page[p] = page;
    o->bound[p] = bound;
    o->count[p] = count;
    o->leaves++;
}

static void close_leaf(ranked *o, int64_t p)
{
    int64_t page = o->page[p], after = o->leaves - p - 1;
    memmove(o->page + p, o->page + p + 1, (size_t)after * sizeof *o->page);
    memmove(o->bound + p, o->bound + p + 1, (size_t)after * sizeof *o->bound);
    memmove(o->count + p, o->count + p + 1, (size_t)after * sizeof *o->count);
    o->leaves--;
    o->page[o->leaves] = page;
}

/* Split the full leaf ``p`` in two and return the position of the half to which ``key`` belongs. */
static int64_t split(ranked *o, int64_t p, uint64_t key)
{
    int64_t half = o->leaf / 2, moved = o->leaf - half;
    open_leaf(o, p + 1, keys_of(o, p)[half], moved);
    memcpy(keys_of(o, p + 1), keys_of(o, p) + half, (size_t)moved * sizeof *o->keys);
    memcpy(slots_of(o, p + 1), slots_of(o, p) + half, (size_t)moved * sizeof *o->slots);
    o->count[p] = half;
    sum_blocks(o, p);
    return key < o->bound[p + 1] ? p : p + 1;
}

/* Merge the underfull leaf ``p`` with a neighbour, or balance the two. */
static void relieve(ranked *o, int64_t p)
{
    if (o->leaves == 1) return;
    int64_t left = p > 0 && (p + 1 == o->leaves || o->count[p - 1] < o->count[p + 1]) ? p - 1 : p, right = left + 1;
    int64_t nl = o->count[left], nr = o->count[right], total = nl + nr;
    int64_t kept = total <= o->merged ? total : total / 2;
    uint64_t *kl = keys_of(o, left), *kr = keys_of(o, right);
    uint32_t *sl = slots_of(o, left), *sr = slots_of(o, right);
    if (kept >= nl) { /* move the first entries of the right leaf to the left one */
        size_t moved = (size_t)(kept - nl), rest = (size_t)(total - kept);
        memcpy(kl + nl, kr, moved * sizeof *kl);
        memcpy(sl + nl, sr, moved * sizeof *sl);
        memmove(kr, kr + moved, rest * sizeof *kr);
        memmove(sr, sr + moved, rest * sizeof *sr);
    } else { /* move the last entries of the left leaf to the right one */
        size_t moved = (size_t)(nl - kept);
        memmove(kr + moved, kr, (size_t)nr * sizeof *kr);
        memmove(sr + moved, sr, (size_t)nr * sizeof *sr);
        memcpy(kr, kl + kept, moved * sizeof *kr);
        memcpy(sr, sl + kept, moved * sizeof *sr);
    }
    o->count[left] = kept;
    o->count[right] = total - kept;
    if (kept == total)
        close_leaf(o, right);
    else
        o->bound[right] = kr[0];
    sum_blocks(o, left);
}

static void put_in(ranked *o, uint64_t key, uint32_t slot)
{
    int64_t p = leaf_for(o, key);
    if (o->count[p] == o->leaf) p = split(o, p, key);
    uint64_t *keys = keys_of(o, p);
    uint32_t *slots = slots_of(o, p);
    int64_t i = at_most(keys, o->count[p], key);
    size_t after = (size_t)(o->count[p] - i);
    memmove(keys + i + 1, keys + i, after * sizeof *keys);
    memmove(slots + i + 1, slots + i, after * sizeof *slots);
    keys[i] = key;
    slots[i] = slot;
    o->count[p]++;
    o->block[p / BLOCK]++;
    o->key_of[slot] = key;
}

/* Remove entry ``i`` of leaf ``p``. */
static void take_out(ranked *o, int64_t p, int64_t i)
{
    uint64_t *keys = keys_of(o, p);
    uint32_t *slots = slots_of(o, p);
    size_t after = (size_t)(o->count[p] - i - 1);
    o->key_of[slots[i]] = 0;
    memmove(keys + i, keys + i + 1, after * sizeof *keys);
    memmove(slots + i, slots + i + 1, after * sizeof *slots);
    o->count[p]--;
    o->block[p / BLOCK]--;
    if (o->count[p] < o->least) relieve(o, p);
}

static void take_out_slot(ranked *o, int64_t slot)
{
    uint64_t key = o->key_of[slot];
    int64_t p = leaf_for(o, key);
    take_out(o, p, at_most(keys_of(o, p), o->count[p], key) - 1);
}

static void move(ranked *o, int64_t slot, uint32_t bits)
{
    uint64_t old = o->key_of[slot], new = (uint64_t)(bits + NORMAL) << 32 | (old & 0xFFFFFFFFu);
    if (new == old) return;
    int64_t p = leaf_for(o, old);
    uint64_t *keys = keys_of(o, p);
    if (new >= o->bound[p] && (p + 1 == o->leaves || new < o->bound[p + 1])) { /* within one leaf */
        uint32_t *slots = slots_of(o, p);
        int64_t i = at_most(keys, o->count[p], old) - 1, j = at_most(keys, o->count[p], new) - (new > old);
        if (j > i) {
            memmove(keys + i, keys + i + 1, (size_t)(j - i) * sizeof *keys);
            memmove(slots + i, slots + i + 1, (size_t)(j - i) * sizeof *slots);
        } else {
            memmove(keys + j + 1, keys + j, (size_t)(i - j) * sizeof *keys);
            memmove(slots + j + 1, slots + j, (size_t)(i - j) * sizeof *slots);
        }
        keys[j] = new;
        slots[j] = (uint32_t)slot;
        o->key_of[slot] = new;
        return;
    }
    take_out(o, p, at_most(keys, o->count[p], old) - 1);
    put_in(o, new, (uint32_t)slot);
}

static int inside(const ranked *o, int64_t slot) { return slot >= 0 && slot < o->capacity; }

EXPORT int64_t onrig_ranked_insert(ranked *o, int64_t slot, int64_t bits)
{
    if (!inside(o, slot) || o->key_of[slot] || bits < 0 || bits > INFINITE) return OUTSIDE;
    if (o->sequence >= SEQUENCE_END) return FULL;
    put_in(o, (uint64_t)(bits + NORMAL) << 32 | (uint64_t)o->sequence++, (uint32_t)slot);
    o->entries++;
    return OK;
}

/* Cursor for looking up ranks, fastest in ascending order: leaf ``p``, preceded by ``before`` entries. */
typedef struct {
    int64_t p, before;
} place;

static void seek(const ranked *o, place *at, int64_t rank)
{
    if (rank < at->before) *at = (place){0, 0};
    for (;;) {
        int64_t held;
        if (at->p % BLOCK == 0 && rank - at->before >= (held = o->block[at->p / BLOCK]))
            at->p += BLOCK;
        else if (rank - at->before >= (held = o->count[at->p]))
            at->p++;
        else
            return;
        at->before += held;
    }
}

EXPORT int64_t onrig_ranked_pop(ranked *o, int64_t rank)
{
    if (rank < 0 || rank >= o->entries) return OUTSIDE;
    place at = {0, 0};
    seek(o, &at, rank);
    int64_t slot = slots_of(o, at.p)[rank - at.before];
    take_out(o, at.p, rank - at.before);
    o->entries--;
    return slot;
}

EXPORT int64_t onrig_ranked_remove(ranked *o, int64_t slot)
{
    if (!inside(o, slot)) return OUTSIDE;
    if (!o->key_of[slot]) return ABSENT;
    take_out_slot(o, slot);
    o->entries--;
    return OK;
}

/* Insert ``slots`` (n) as the newest entries, in order; a slot that is already present is removed first. */
EXPORT int64_t onrig_ranked_renew(ranked *o, const int64_t *slots, int64_t n, int64_t bits)
{
    if (bits < 0 || bits > INFINITE) return OUTSIDE;
    if (n > SEQUENCE_END - o->sequence) return FULL;
    for (int64_t k = 0; k < n; k++)
        if (!inside(o, slots[k])) return OUTSIDE;
    for (int64_t k = 0; k < n; k++) {
        if (o->key_of[slots[k]])
            take_out_slot(o, slots[k]);
        else
            o->entries++;
        put_in(o, (uint64_t)(bits + NORMAL) << 32 | (uint64_t)o->sequence++, (uint32_t)slots[k]);
    }
    return OK;
}

/* Replace all entries with ``keys`` and ``slots`` (n); the keys must ascend. */
EXPORT int64_t onrig_ranked_fill(ranked *o, const uint64_t *keys, const int64_t *slots, int64_t n)
{
    if (n < 0 || n > o->capacity) return OUTSIDE;
    for (int64_t k = 0; k < n; k++)
        if (!inside(o, slots[k]) || (k ? keys[k] <= keys[k - 1] : !keys[k])) return OUTSIDE;
    int64_t filled = (o->least + o->leaf) / 2, code = OK;
    memset(o->key_of, 0, (size_t)o->capacity * sizeof *o->key_of);
    o->leaves = o->entries = 0;
    open_leaf(o, 0, 0, 0);
    for (int64_t k = 0; k < n; k++) {
        if (o->key_of[slots[k]]) { /* duplicate: keep the entries before it */
            code = OUTSIDE;
            break;
        }
        int64_t p = k / filled, i = k % filled;
        if (i == 0 && p) open_leaf(o, p, keys[k], 0);
        keys_of(o, p)[i] = keys[k];
        slots_of(o, p)[i] = (uint32_t)slots[k];
        o->key_of[slots[k]] = keys[k];
        o->count[p] = i + 1;
        o->entries++;
    }
    sum_blocks(o, 0);
    if (o->count[o->leaves - 1] < o->least) relieve(o, o->leaves - 1);
    o->sequence = o->entries;
    return code;
}

/* Write the slots at ``ranks`` (n) to ``slots``. */
EXPORT int64_t onrig_ranked_at(const ranked *o, const int64_t *ranks, int64_t n, int64_t *slots)
{
    place at = {0, 0};
    for (int64_t k = 0; k < n; k++) {
        if (ranks[k] < 0 || ranks[k] >= o->entries) return OUTSIDE;
        seek(o, &at, ranks[k]);
        slots[k] = slots_of(o, at.p)[ranks[k] - at.before];
    }
    return OK;
}

EXPORT void onrig_ranked_in_order(const ranked *o, int64_t *slots)
{
    for (int64_t p = 0; p < o->leaves; p++) {
        const uint32_t *of_leaf = slots_of(o, p);
        for (int64_t i = 0; i < o->count[p]; i++) *slots++ = of_leaf[i];
    }
}

/* Several orders, and the input and output arrays of their minibatches. */
typedef struct {
    int64_t orders, batch;
    ranked **order;        /* (orders) */
    const double *uniform; /* (orders, updates, batch), over [0, 1) */
    const int64_t *start;  /* (orders, batch): first rank of each segment */
    const int64_t *length; /* (orders, batch): number of ranks in the segment */
    int64_t *slot;         /* (updates, orders, batch) */
    const uint32_t *value; /* (updates, orders, batch): bits of float32 */
} minibatches;

enum { LARGEST_FIRST = 1, NAN_STAYS = 2 };

/* Draw a slot from each segment of ranks. */
EXPORT int64_t onrig_ranked_draw(const minibatches *m, int64_t updates)
{
    const double *u = m->uniform;
    for (int64_t s = 0; s < m->orders; s++) {
        const ranked *o = m->order[s];
        for (int64_t k = 0; k < updates; k++) {
            int64_t *slots = m->slot + (k * m->orders + s) * m->batch;
            place at = {0, 0};
            for (int64_t b = 0; b < m->batch; b++) {
                int64_t c = s * m->batch + b;
                double within = *u++ * (double)m->length[c];
                if (!(within >= 0.0 && within < (double)o->capacity)) return OUTSIDE;
                int64_t rank = m->start[c] + (int64_t)within;
                if (rank < 0 || rank >= o->entries) return OUTSIDE;
                seek(o, &at, rank);
                slots[b] = slots_of(o, at.p)[rank - at.before];
            }
        }
    }
    return OK;
}

/* Rank each ``slot`` by its |value|; for duplicate slots the last value counts.  ``how``: LARGEST_FIRST, otherwise the
 * smallest is first; with NAN_STAYS, a slot whose value is NaN keeps its rank, otherwise NaN is an error. */
EXPORT int64_t onrig_ranked_rank(const minibatches *m, int64_t updates, int64_t how)
{
    int64_t n = updates * m->orders * m->batch;
    for (int64_t i = 0; i < n; i++) {
        const ranked *o = m->order[i / m->batch % m->orders];
        if (!(how & NAN_STAYS) && (m->value[i] & 0x7FFFFFFFu) > INFINITE) return NOT_A_NUMBER;
        if (!inside(o, m->slot[i])) return OUTSIDE;
        if (!o->key_of[m->slot[i]]) return ABSENT;
    }
    for (int64_t s = 0; s < m->orders; s++)
        for (int64_t k = 0; k < updates; k++)
            for (int64_t b = 0; b < m->batch; b++) {
                int64_t i = (k * m->orders + s) * m->batch + b;
                uint32_t bits = m->value[i] & 0x7FFFFFFFu;
                if (bits <= INFINITE) move(m->order[s], m->slot[i], how & LARGEST_FIRST ? INFINITE - bits : bits);
            }
    return OK;
}
