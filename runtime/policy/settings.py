"""Section ``probation`` of a run: limits on a new policy."""

from __future__ import annotations

from typing import Annotated

import msgspec

from onrig.hw.bounds import Count, NotNegative, PositiveShare


class Probation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on a new policy; if it exceeds one of them, its predecessor takes over in the next tick.

    A non-finite output always fails.  Null instead of this section disables rollback.
    """

    duration_s: Annotated[
        float, msgspec.Meta(gt=0.0, le=86_400.0, description="null instead of the section disables it")
    ] = 2.0
    """Length of the probation in device time; it may span episodes."""
    slow_share: PositiveShare = 0.5
    """Fraction of the wall-clock period above which a policy is slow in a tick (unused in lockstep)."""
    slow_ticks: Count = 10
    """Number of consecutive slow ticks after which a policy fails its probation."""
    excess_fallback: NotNegative = 0.5
    """Maximum increase in the fraction of ticks in which the fallback acts, compared with the predecessor; 1 or more
    disables the check.  Some increase is normal, because policies that reach new states cause trips: over 10 000
    policies of the shipped tasks, the increase remained below 0.35.
    """
