"""Sections ``realtime`` and ``staleness`` of a run: the loop's scheduling, and its behaviour without a learner."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import Share

MOST_CPUS: Final = 1024
"""Size of the kernel's CPU set."""


class RealTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Real-time settings of the loop (unused in lockstep)."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=98)] = 50
    """SCHED_FIFO priority (as ros2_control); 0 for the ordinary scheduler."""
    cpu: Annotated[int, msgspec.Meta(ge=0, le=MOST_CPUS - 1)] | Literal["auto"] | None = "auto"
    """CPU of the loop, avoided by the replay process and a local learner; ``auto``: of several, the one with the fewest
    device interrupts (the last of equals); null: any, shared."""
    lock_memory: bool = True
    """Whether memory is locked (``mlockall``)."""
    stay_awake: bool = True
    """Keep the CPUs out of deep sleep states while the loop runs, if permitted: waking up takes time."""


class Staleness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Behaviour of a run whose learner is silent (unused in lockstep, where the loop waits at the barrier)."""

    after_s: Annotated[float, msgspec.Meta(ge=1.0, le=1e8)] = 60.0
    """Wall-clock time without a message from the pushing learner, or from the replay process that receives it.  A
    working learner sends a sign of life several times a second, a waiting one every 0.2 s."""
    then: Literal["keep", "lower", "fall_back"] = "keep"
    """``keep``: warn and continue.  ``lower``: explore less from the next episode on.  ``fall_back``: pause, disarmed,
    between episodes until the learner is heard again (at most ``supervision.resume_timeout_s``)."""
    factor: Share = 0.5
    """Factor on the exploration's amplitude while the learner is silent (``lower``)."""
