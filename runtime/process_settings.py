"""Sections of a run that configure its processes: ``realtime``, ``staleness``, ``supervision`` and ``log``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import Count, Seconds, Share

MAX_CPUS: Final = 1024
"""Size of the kernel's CPU set."""
# Settings added later are unset by default, so that they do not appear in config.yaml, whose digest identifies runs.
_DEFAULT_HANG_LIMIT_S: Final = 30.0
_DEFAULT_FROZEN_LIMIT_S: Final = 2.0


class RealTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Real-time settings of the loop (unused in lockstep)."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=98)] = 50
    """SCHED_FIFO priority (as in ros2_control); 0 for the default scheduler."""
    cpu: Annotated[int, msgspec.Meta(ge=0, le=MAX_CPUS - 1)] | Literal["auto"] | None = "auto"
    """CPU of the loop, avoided by the replay process and a local learner; ``auto``: the CPU with the fewest device
    interrupts (ties go to the last one), if several are available; null: any CPU, shared with the other processes."""
    lock_memory: bool = True
    """Whether to lock the process's memory (``mlockall``)."""
    stay_awake: bool = True
    """Whether to keep the CPUs out of deep sleep states while the loop runs, if permitted, because waking up takes
    time."""


class Staleness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reaction to a silent learner (unused in lockstep, where the loop waits at the barrier)."""

    after_s: Annotated[float, msgspec.Meta(ge=1.0, le=1e8)] = 60.0
    """Wall-clock time without a message from the pushing learner, or from the replay process that receives its
    messages, after which ``then`` applies.  A busy learner sends heartbeats several times a second, an idle one every
    0.2 s."""
    then: Literal["keep", "lower", "fall_back"] = "keep"
    """``keep``: warn and continue.  ``lower``: explore less from the next episode on.  ``fall_back``: pause, disarmed,
    between episodes until the learner responds again (at most ``supervision.resume_timeout_s``)."""
    factor: Share = 0.5
    """Factor on the exploration's amplitude while the learner is silent (``lower``)."""


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run ends, and its timeouts."""

    fade_s: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.3
    """Device time over which the first Ctrl-C fades the command to the safe output; 0: immediately."""
    resume_timeout_s: Seconds = 600.0
    """Time after which a run ends if it is paused or a fault awaits manual re-arming."""
    hang_s: Annotated[float, msgspec.Meta(ge=2.0, le=3600.0)] | msgspec.UnsetType = msgspec.UNSET
    """Time without progress after which a replay process or local learner is killed and restarted (default 30)."""
    frozen_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    """Device time after which sensors that have changed by at most one count are a fault, if every actuator's output
    has varied by a quarter of its range in each half of that time (default 2); 0: never, for slower rigs."""

    @property
    def hang_limit_s(self) -> float:
        """``hang_s``, or its default."""
        return _DEFAULT_HANG_LIMIT_S if self.hang_s is msgspec.UNSET else self.hang_s

    @property
    def frozen_limit_s(self) -> float:
        """``frozen_s``, or its default."""
        return _DEFAULT_FROZEN_LIMIT_S if self.frozen_s is msgspec.UNSET else self.frozen_s


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files ``log.mcap``, ``log-2.mcap``, ... in the run folder (docs/logs.md)."""

    mcap: bool | Literal["auto"] = "auto"
    """Whether to write a log; ``auto``: only if the package mcap is installed (extra ``log``)."""
    decimation: Count = 1
    """Number n such that every n-th tick is logged, plus the first and last tick of each episode; only a complete log
    can be replayed."""
    max_bytes: Count | None = None
    """Total size of the run's log files at which logging stops."""
    keep_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = 200_000_000
    """Free disk space below which logging stops, to leave room for checkpoints of the memory."""
