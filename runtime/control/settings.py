"""The sections ``realtime`` and ``staleness`` of a run: the loop's punctuality, and what it does without a learner."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import Share

MOST_CPUS: Final = 1024
"""The kernel's set of CPUs holds no more."""


class RealTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the loop asks the machine for punctuality (never in lockstep)."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=98)] = 50
    """SCHED_FIFO priority (as ros2_control); 0 for the ordinary scheduler."""
    cpu: Annotated[int, msgspec.Meta(ge=0, le=MOST_CPUS - 1)] | Literal["auto"] | None = "auto"
    """CPU of the loop, which the replay process and a local learner then stay off; ``auto``: where there are several,
    the one that devices interrupt least, the last of equals; null: any, shared with all."""
    lock_memory: bool = True
    stay_awake: bool = True
    """Keep the CPUs out of deep sleep states while the loop runs, where the machine lets it: waking takes a while."""


class Staleness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a run whose learner is silent (never in lockstep, where the loop waits at the barrier)."""

    after_s: Annotated[float, msgspec.Meta(ge=1.0, le=1e8)] = 60.0
    """Wall-clock time without a word from the learner that pushes, or from the replay process that hears it: one that
    works gives a sign of life several times a second, one that waits every 0.2 s."""
    then: Literal["keep", "lower", "fall_back"] = "keep"
    """``keep``: go on and say so.  ``lower``: explore less from the next episode on.  ``fall_back``: stand safe between
    episodes until the learner is heard again (``supervision.resume_timeout_s`` at most)."""
    factor: Share = 0.5
    """On the exploration's amplitude while the learner is silent (``lower``)."""
