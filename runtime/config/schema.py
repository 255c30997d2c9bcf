"""What a run's configuration may say, as frozen structs; ``onrig.runtime.config.resolve`` reads YAML into them.

Two sections belong to packages that the SBC need not have: ``device.twin`` to ``sim`` and ``learner`` to ``learner``.
They travel through here as plain mappings; their owners define and check them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from onrig.hw.bounds import Quantity, Seconds
from onrig.hw.rig import Rig
from onrig.runtime.config.exploration import Exploration, NoExploration
from onrig.runtime.config.log import Log
from onrig.runtime.config.policy_rules import Probation, Staleness
from onrig.runtime.safety.limits import Limits
from onrig.runtime.task import Task

Section = dict[str, object]
MOST_CPUS: Final = 1024
"""The kernel's set of CPUs holds no more."""
MOST_EPISODES: Final = 10_000_000
"""Of one run: a year of four-second episodes."""


class Scaled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device time runs ``scaled`` times as fast as the wall clock."""

    scaled: Quantity


Pace = Literal["realtime", "lockstep"] | Scaled


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A real device on a serial port."""

    path: str
    baud: Annotated[int, msgspec.Meta(ge=50, le=20_000_000)] = 921_600
    """As the twin on a serial port has it (``onrig.hw.transport.DEFAULT_BAUD_RATE``)."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of ``twin`` (schema: ``onrig.sim.twin``) and ``port``."""

    twin: Section | None = None
    port: Port | None = None
    pace: Pace = "realtime"
    """Of the twin, ours or one behind the port; hardware always runs in real time."""


class Synthetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Experiences replaced by ones recomputed with the twin's plant, for more diversity (000 §6.2.1, §6.3.1).

    See ``onrig.sim.synthetic`` for the law.
    """

    states: float = 0.0
    """Fraction of the memory whose state is drawn anew; the action is then the policy's there, exploration included."""
    actions: float = 0.0
    """Fraction of the memory whose action is drawn anew."""
    refresh: float = 1.0
    """Probability that a synthetic experience makes room when its turn to be overwritten comes, else it stays."""


class Weighted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Importance of what it is said of, 1 for everything else."""

    weight: float


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which experiences to keep and which to replay, in the notation of 000 §5.2."""

    strategy: str = "FIFO[Uniform]"
    capacity: int | None = None
    """In experiences; by default 10 000 (000 §4), or all of the run's for FULL."""
    capacity_bytes: int | None = None
    """Instead of ``capacity``: as many experiences as fit, with all that keeping them in order takes."""
    write_probability: float = 1.0
    """Chance of each experience to be offered to the memory at all ([DE] of 000 §6.4: 50 Hz over the rate)."""
    synthetic: Synthetic | None = None
    intervened: Literal["keep", "drop"] | Weighted = "keep"
    """Experiences in which the shield acted: kept, left out of the memory, or kept with this weight in the critic's
    loss.  Their action is the executed one in any case."""


class RealTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the loop asks the machine for punctuality (never in lockstep)."""

    priority: int = 50
    """SCHED_FIFO priority (as ros2_control); 0 for the ordinary scheduler."""
    cpu: Annotated[int, msgspec.Meta(ge=0, le=MOST_CPUS - 1)] | Literal["auto"] | None = "auto"
    """CPU of the loop, which the replay process and a local learner then stay off; ``auto``: where there are several,
    the one that devices interrupt least, the last of equals; null: any, shared with all."""
    lock_memory: bool = True
    stay_awake: bool = True
    """Keep the CPUs out of deep sleep states while the loop runs, where the machine lets it: waking takes a while."""


_HANG_S: Final = 30.0
_FROZEN_S: Final = 2.0


class Supervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run ends and how long it waits for a person."""

    fade_s: Seconds = 0.3
    """On the first Ctrl-C the command fades to the safe output over this time (device time); 0: at once."""
    resume_timeout_s: Seconds = 600.0
    """How long a run that is paused, or latched a fault that a person must re-arm, waits before it ends."""
    hang_s: Annotated[float, msgspec.Meta(ge=2.0, le=3600.0)] | msgspec.UnsetType = msgspec.UNSET
    """A replay process or local learner that shows no progress for so long is killed and started again; 30 by
    default, which is not written to ``config.yaml``: the names of parent runs are digests of that."""
    frozen_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    """Sensors that do not change by a count for so long (device time), while every actuator's output varies by a
    quarter of its range in each half of it, are a fault; 0: never, for rigs that are slower than that.  2 by default,
    not written either."""

    @property
    def hang_limit_s(self) -> float:
        """``hang_s``, or its default."""
        return _HANG_S if self.hang_s is msgspec.UNSET else self.hang_s

    @property
    def frozen_limit_s(self) -> float:
        """``frozen_s``, or its default."""
        return _FROZEN_S if self.frozen_s is msgspec.UNSET else self.frozen_s


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where learners on other machines connect; those on this one have a door of their own."""

    listen: str | None = None
    """``tcp://HOST:PORT``, ``*`` for every interface; null: nobody from outside."""
    keys: str | None = None
    """The rig's folder of keys (`onrig keys`)."""
    allow_plain_loopback: bool = False
    """Without keys: let whoever is on this machine connect, unencrypted, to a loopback address."""
    admissions_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """Policies that are judged per second of device time (not in lockstep: one at each barrier)."""


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run: what is driven, for what, how fast, how long, and how it learns."""

    rig: Rig
    task: Task
    device: Device
    rate_hz: Quantity
    episodes: Annotated[int, msgspec.Meta(le=MOST_EPISODES)]
    learner: Section = {}
    selection: Selection = Selection()
    exploration: Exploration = NoExploration()
    limits: Limits = Limits()
    realtime: RealTime = RealTime()
    supervision: Supervision = Supervision()
    link: Link = Link()
    log: Log = Log()
    probation: Probation | None = Probation()
    staleness: Staleness = Staleness()
    seed: int = 0
    evaluate_every: int = 1
    """A noise-free evaluation episode after every n-th training episode; 0 for none (METHODS S5)."""
    local_learner: bool = True
    """Start a learner beside the loop; False waits for one that connects (`onrig learn`)."""
    policy: str | None = None
    """ONNX file to start with; without one the run waits for the learner's first policy."""
    barrier_timeout_s: Seconds = 60.0
    """How long the loop waits for the learner: at the start, and in lockstep at every barrier."""
    checkpoint_s: Seconds = 5.0
    """Seconds between checkpoints of the memory (in lockstep of device time, at whole episodes): what a crash costs."""

    @property
    def lockstep(self) -> bool:
        """Whether the run proceeds in virtual time, bit for bit reproducible (ARCHITECTURE §3)."""
        return self.device.pace == "lockstep"

    @property
    def checkpoint_episodes(self) -> int:
        """How many training episodes apart checkpoints are in lockstep."""
        return max(1, int(self.checkpoint_s / self.task.episode_s))

    @property
    def period_us(self) -> int:
        """Sampling period T in device time."""
        return round(1e6 / self.rate_hz)

    @property
    def wall_period_ns(self) -> int:
        """Sampling period as the wall clock sees it (a scaled twin's is shorter)."""
        scale = self.device.pace.scaled if isinstance(self.device.pace, Scaled) else 1.0
        return round(1e9 / (self.rate_hz * scale))
