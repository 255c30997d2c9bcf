/* Returns along stored episodes, equal bit for bit to onrig.learner.algorithms.returns in numpy. */
#include "native.h"

EXPORT void onrig_retrace(int64_t n, const double *reward, const double *value, const double *trace, const double *advantage,
                          const double *end_value, const int64_t *after, double gamma, int64_t *before, double *q);

/* Compute Q^ret (n) of the experiences in n slots.  The experience in slot i is followed by the one in slot after[i],
 * or by none if that is -1; before (n) receives the inverse.  A slot follows at most one other, and every chain ends. */
void onrig_retrace(int64_t n, const double *reward, const double *value, const double *trace, const double *advantage,
                   const double *end_value, const int64_t *after, double gamma, int64_t *before, double *q) {
    for (int64_t i = 0; i < n; i++) before[i] = -1;
    for (int64_t i = 0; i < n; i++)
        if (after[i] >= 0) before[after[i]] = i;
    for (int64_t end = 0; end < n; end++) {
        if (after[end] >= 0) continue;
        q[end] = reward[end] + gamma * end_value[end];
        for (int64_t j = end, i = before[end]; i >= 0; j = i, i = before[i])
            q[i] = reward[i] + gamma * (value[j] + trace[j] * (q[j] - value[j] - advantage[j]));
    }
}
