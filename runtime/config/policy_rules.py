"""The sections ``probation`` and ``staleness`` of a run: how far a new policy, and an old one, is trusted."""

from __future__ import annotations

from typing import Literal

import msgspec

from onrig.hw.bounds import Quantity, Seconds


class Probation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new policy must not do at first; where it does, its predecessor acts from the next tick on.

    An answer that is no finite number is always too much.  Null instead of this section: nothing is rolled back.
    """

    duration_s: float = 2.0
    """Device time that a policy acts on probation, over episodes if need be."""
    slow_share: float = 0.5
    """Of the period on the wall clock: a policy that takes longer was slow in that tick (never in lockstep)."""
    slow_ticks: int = 10
    """So many slow ticks in a row are too much."""
    excess_fallback: Quantity = 0.5
    """Share of the ticks of the probation in which the fallback may act more than it did under the predecessor; from
    1 on nothing is too much.  A policy that learns its way into new states trips: over 10 000 policies of the shipped
    tasks the excess stayed below 0.35."""


class Staleness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a run whose learner is silent (never in lockstep, where the loop waits at the barrier)."""

    after_s: Seconds = 60.0
    """Wall-clock time without a word from the learner that pushes, or from the replay process that hears it."""
    then: Literal["keep", "lower", "fall_back"] = "keep"
    """``keep``: go on and say so.  ``lower``: explore less from the next episode on.  ``fall_back``: stand safe between
    episodes until the learner is heard again (``supervision.resume_timeout_s`` at most)."""
    factor: float = 0.5
    """On the exploration's amplitude while the learner is silent (``lower``)."""
