"""The section ``probation`` of a run: how far a new policy is trusted."""

from __future__ import annotations

from typing import Annotated

import msgspec

from onrig.hw.bounds import Count, NotNegative, PositiveShare


class Probation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new policy must not do at first; where it does, its predecessor acts from the next tick on.

    An answer that is no finite number is always too much.  Null instead of this section: nothing is rolled back.
    """

    duration_s: Annotated[
        float, msgspec.Meta(gt=0.0, le=86_400.0, description="null instead of the section turns it off")
    ] = 2.0
    """Device time that a policy acts on probation, over episodes if need be."""
    slow_share: PositiveShare = 0.5
    """Of the period on the wall clock: a policy that takes longer was slow in that tick (never in lockstep)."""
    slow_ticks: Count = 10
    """So many slow ticks in a row are too much."""
    excess_fallback: NotNegative = 0.5
    """Share of the ticks of the probation in which the fallback may act more than it did under the predecessor; from
    1 on nothing is too much.  A policy that learns its way into new states trips: over 10 000 policies of the shipped
    tasks the excess stayed below 0.35."""
