"""Schema of a run's configuration as frozen structs; ``onrig.runtime.run_loading`` reads them from YAML.

Two sections belong to packages that may be missing on the SBC: ``device.twin`` to ``sim`` and ``learner`` to
``learner``. Here they are plain mappings; the two packages define and check their contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from onrig.hw.bounds import Quantity, Seconds
from onrig.hw.cameras.driver import CameraDevice
from onrig.hw.device.driven import PythonDevice
from onrig.hw.line import Line, Serial
from onrig.hw.rig import Camera, Observation, Rig, with_targets
from onrig.runtime import registry
from onrig.runtime.config.registered import WithRegistered, registered
from onrig.runtime.explore.settings import Exploration, NoExploration, OwnNoise
from onrig.runtime.inputs import cameras_in_use, policy_signals
from onrig.runtime.link.endpoint import Link
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.settings import Selection, capacity_for
from onrig.runtime.policy.settings import Probation
from onrig.runtime.process_settings import Log, RealTime, Staleness, Supervision
from onrig.runtime.record import RecordLayout
from onrig.runtime.safety.limits import Limits
from onrig.runtime.task import Task, episode_steps
from onrig.runtime.tracking import tracking_rig

Section = dict[str, object]
Pieces = dict[str, dict[str, str]]
"""Plugins in Python files: locations keyed by group (without ``onrig.``) and name."""
# Settings added later are unset by default, so that they do not appear in config.yaml, whose digest identifies runs.
_DEFAULT_RECONNECT_S: Final = 60.0
MAX_EPISODES: Final = 10_000_000
"""Maximum number of episodes: a year of four-second ones."""


class Scaled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pace at which device time runs ``scaled`` times as fast as the wall clock."""

    scaled: Annotated[float, msgspec.Meta(ge=0.01, le=1000.0)]
    """Device seconds for each second of the wall clock."""


Pace = Literal["realtime", "lockstep"] | Scaled


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A real device on a serial port."""

    path: str
    """Device file, such as /dev/ttyACM0 or a link in /dev/serial/by-id."""
    baud: Annotated[int, msgspec.Meta(ge=50, le=20_000_000)] = 921_600
    """Baud rate; default: the rate of a twin on a serial port (``onrig.hw.transport.DEFAULT_BAUD_RATE``)."""


if TYPE_CHECKING:
    AnyLine = Line
    AnyPythonDevice = PythonDevice
    AnyCameraDevice = CameraDevice
else:
    AnyLine = Annotated[Any, registered(registry.TRANSPORTS)]
    AnyPythonDevice = Annotated[Any, registered(registry.DEVICES)]
    AnyCameraDevice = Annotated[Any, registered(registry.CAMERAS)]


class Device(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device to drive: exactly one of ``twin``, ``port``, ``transport`` and ``driver``."""

    twin: Section | None = None
    port: Port | None = None
    pace: Pace = "realtime"
    """Pace of the twin, whether local or on the port; hardware always runs in real time."""
    reconnect_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    """How long a real-time run waits for a device whose connection has closed (default 60); 0: the run ends at once."""
    transport: AnyLine | msgspec.UnsetType = msgspec.UNSET
    """Connection to a real device that is not on a serial port."""
    driver: AnyPythonDevice | msgspec.UnsetType = msgspec.UNSET
    """Device written in Python, driven by a process of the run (docs/devices.md)."""
    attended: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether to accept a driver whose motor controller has no watchdog, because a person watches the rig, with a hand
    on the e-stop, for as long as it runs."""
    cameras: dict[str, AnyCameraDevice] | msgspec.UnsetType = msgspec.UNSET
    """The rig's cameras that the task uses, by name.  During a run each is read by a process of its own
    (docs/cameras.md); a twin renders its images itself."""

    @property
    def line(self) -> Line | None:
        """Connection to the device; None for a twin or driver started by the run."""
        if self.transport is not msgspec.UNSET:
            return self.transport
        return None if self.port is None else Serial(self.port.path, self.port.baud)

    @property
    def address(self) -> str:
        """Location of the device, as shown in messages."""
        if self.line is not None:
            return self.line.address
        return "a twin" if self.driver is msgspec.UNSET else f"driver '{self.driver.__struct_config__.tag}'"

    @property
    def reconnect_limit_s(self) -> float:
        """``reconnect_s`` or its default; 0 for a twin or driver started by the run, and in lockstep."""
        if self.line is None or not self.line.may_reconnect or self.pace == "lockstep":
            return 0.0
        return _DEFAULT_RECONNECT_S if self.reconnect_s is msgspec.UNSET else self.reconnect_s


class RunConfig(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run: rig, task, rate, length, and learning."""

    rig: Rig
    """Sensors, actuators, limits and units of the rig, or the name of a file in ``rigs/``."""
    task: Task
    """Reward, start and length of episodes, or the name of a file in ``tasks/``."""
    device: Device
    rate_hz: Quantity
    """Sampling rate, 0.1 to 10 000 Hz."""
    episodes: Annotated[int, msgspec.Meta(ge=1, le=MAX_EPISODES)]
    """Training episodes of the run."""
    python: Pieces | msgspec.UnsetType = msgspec.UNSET
    """Plugins in Python files in the configuration's folder, as ``FILE.py:NAME`` by group and name
    (docs/extending.md)."""
    view: Section | msgspec.UnsetType = msgspec.UNSET
    """Display of the run in pages and terminals."""
    learner: Section = {}
    selection: Selection = Selection()
    exploration: Exploration = NoExploration()
    """Noise on the policy's action, its schedule, and its attenuation."""
    limits: Limits = Limits()
    realtime: RealTime = RealTime()
    supervision: Supervision = Supervision()
    link: Link = Link()
    log: Log = Log()
    probation: Probation | None = Probation()
    staleness: Staleness = Staleness()
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    """Seed of all random streams of the run."""
    evaluate_every: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Interval of noise-free evaluation episodes, in training episodes; 0 for none (docs/methods.md)."""
    local_learner: bool = True
    """Whether to start a local learner; if ``false``, the run waits for one to connect (`onrig learn`)."""
    identified: str | msgspec.UnsetType = msgspec.UNSET
    """Result file of `onrig identify` that overrides the plants of twin and shield; once loaded, the hash of that
    file."""
    policy: str | None = None
    """Initial policy (ONNX file); without one the run waits for the learner's first policy."""
    actor: Literal["trainer"] | msgspec.UnsetType = msgspec.UNSET
    """Source of the actions; unset: the policies. ``trainer``: a Python program, through the environment of
    ``onrig.make`` (which sets this key)."""
    evaluator: Literal["auto", "onnxruntime"] = "auto"
    """Inference backend of policies; ``auto``: the C library if admission finds that it agrees with onnxruntime."""
    barrier_timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e8)] = 60.0
    """How long the loop waits for the learner: at the start, and in lockstep at every barrier. The time restarts
    whenever the learner reports that it is learning."""
    checkpoint_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 5.0
    """Interval of the memory's checkpoints in s (in lockstep: device time, rounded to episodes); a crash loses at most
    this much. With shorter intervals the replay process would mostly wait for the disk."""

    def __post_init__(self) -> None:
        """Add the task's targets, which no rig file contains, to the rig's signals."""
        super().__post_init__()
        msgspec.structs.force_setattr(self, "rig", tracking_rig(self.task, self.rig))

    @property
    def stochastic(self) -> bool:
        """Whether policies are stochastic and explore with their own noise; records then hold the distribution."""
        return isinstance(self.exploration, OwnNoise)

    @property
    def signals(self) -> tuple[Observation, ...]:
        """Signals of the policy inputs, in order (``onrig.runtime.inputs``)."""
        return policy_signals(self.task.inputs, self.rig)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the policy inputs, if the task defines them; empty if they are the rig's observations."""
        return () if self.task.inputs is msgspec.UNSET else tuple(s.name for s in self.signals)

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """Cameras whose images are policy inputs, in the rig's order."""
        return cameras_in_use(self.task.inputs, self.rig)

    @property
    def lockstep(self) -> bool:
        """Whether the run is in virtual time and reproducible bit for bit (docs/architecture.md)."""
        return self.device.pace == "lockstep"

    @property
    def checkpoint_episodes(self) -> int:
        """Interval of checkpoints in lockstep, in training episodes."""
        return max(1, int(self.checkpoint_s / self.task.episode_s))

    @property
    def period_us(self) -> int:
        """Sampling period T in device time."""
        return round(1e6 / self.rate_hz)

    @property
    def wall_period_ns(self) -> int:
        """Sampling period on the wall clock (shorter for a scaled twin)."""
        scale = self.device.pace.scaled if isinstance(self.device.pace, Scaled) else 1.0
        return round(1e9 / (self.rate_hz * scale))


def to_plain_data(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as plain data, as written to files; targets are part of the task, not of the rig."""
    plain_data = {"rig": with_targets(config.rig, ())}
    return {
        field.encode_name: msgspec.to_builtins(value)
        for field in msgspec.structs.fields(config)
        if (value := plain_data.get(field.name, getattr(config, field.name))) is not msgspec.UNSET
    }


def record_layout(config: RunConfig) -> RecordLayout:
    """Return the layout of the run's step records."""
    return RecordLayout.for_rig(config.rig, behaviour=config.stochastic, n_inputs=len(config.input_names))


def capacity_of(config: RunConfig) -> int:
    """Return the capacity of the run's memory in experiences; raises ValueError if the configured bytes cannot hold
    any."""
    run_length = config.episodes * episode_steps(config.task, config.rate_hz)
    return capacity_for(config.selection, layout_of(config), run_length=run_length)


def layout_of(config: RunConfig) -> Layout:
    """Return the layout of the rows in the run's memory."""
    return Layout(len(config.signals), len(config.rig.actuators), behaviour=config.stochastic)
