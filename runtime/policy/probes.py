"""States on which a policy is tried before it is admitted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.contract import PolicyContract


def probe_states(contract: PolicyContract, n: int, seed: int, widen: float = 2.0) -> npt.NDArray[np.float32]:
    """Make ``n`` observations in SI units, float32 (n, width), for ``admit``; the same for the same arguments.

    The centre of the range first; then at most n/4 corners of the range and as many of the widened one (all of them,
    or a random choice where there are more); the rest uniform over the widened range.  ``widen`` is the factor on each
    half range: a rig that misbehaves leaves its range, and a policy must be harmless there too.
    """
    rng = np.random.default_rng(seed)
    low = np.array([s.low for s in contract.observations])
    high = np.array([s.high for s in contract.observations])
    centre, half = 0.5 * (low + high), 0.5 * (high - low)
    width = len(low)
    count = n // 4 if width >= 30 else min(1 << width, n // 4)
    if width < 20:
        picked = rng.permutation(1 << width)[:count]
        signs = 2.0 * ((picked[:, None] >> np.arange(width)) & 1) - 1.0
    else:
        signs = rng.choice((-1.0, 1.0), size=(count, width))
    rest = rng.uniform(-widen, widen, size=(max(n - 1 - 2 * count, 0), width))
    unit = np.concatenate([np.zeros((1, width)), signs, widen * signs, rest])[:n]
    return np.asarray(centre + half * unit, np.float32)
