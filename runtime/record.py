"""Step record: all inputs, decisions and measurements of the loop in one tick.

``Step`` declares the fields.  The following are derived from it: the record in shared memory (written with ``struct``,
which is fast for one record, and read with numpy, which is fast in bulk), the messages of the log, the columns of a
post-mortem, and the comparison in ``onrig replay``.  Observations and actions are in SI units and in the rig's order.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig

STAGES: Final = ("receive", "observe", "policy", "explore", "shield", "send", "record")
"""Stages of a tick, in order; ``stage_ns`` holds the duration of each."""


class Kind(enum.IntEnum):
    """Purpose of an episode."""

    TRAIN = 0
    EVAL = 1
    RESET = 2
    """Motion to an episode's start under a reset controller; it has the index of the previous training episode and is
    not used for learning."""


class Flag(enum.IntFlag):
    """Bits of a record's ``flags``."""

    TERMINATED = 1
    TRUNCATED = 2
    INVALID = 4
    """The transition that starts here is incomplete: a frame was lost, or the device was not armed."""
    FIRST = 8
    """First record of its episode."""
    NO_ACTION = 16
    """Last record of its episode: it ends a transition and starts none."""
    LATE = 32
    """The command took effect after the sample (0 < tau < T) or not at all (tau = T)."""
    FADED = 64
    """The run is fading out, so ``explored`` is not the action that policy and exploration chose."""
    PROBATION = 128
    """The acting policy is on probation and may be rolled back."""
    ROLLED_BACK = 256
    """First record after a rollback: the predecessor acts again."""
    CUT_OFF = 512
    """The connection closed after this record's command. The record ends its episode although it has an action, whose
    outcome is unknown; NO_ACTION is set as well."""
    RESTRAINED = 1024
    """A stochastic policy's noise was reduced (amplitude below 1): the action follows a narrower distribution than the
    policy's."""
    NATIVE = 2048
    """The C library evaluated the policy, not onnxruntime; the two differ in rounding."""
    HELD = 4096
    """The trainer that acts in place of a policy supplied no action in time, so its last action was held."""


class Rule(enum.IntEnum):
    """Rule of the shield that intervened."""

    NONE = 0
    FINITE = 1
    RANGE = 2
    RATE = 3
    ENVELOPE = 4
    FALLBACK = 5
    """The fallback controller still acts after an earlier intervention."""
    JERK = 6
    PREDICTED = 7
    """The command would have led out of the set of states from which the fallback can keep the velocity in its
    envelope."""

    falls_back: bool
    """Whether the fallback controller acts under this rule; other rules only limit the command."""


for _rule in Rule:  # a plain attribute, because a property that hashes a member takes a microsecond per tick
    _rule.falls_back = _rule in (Rule.FINITE, Rule.ENVELOPE, Rule.FALLBACK, Rule.PREDICTED)


class Miss(enum.IntEnum):
    """Cause of the unanswered frames before a record."""

    NONE = 0
    LINK = 1
    """The frame did not arrive intact."""
    PROGRAM = 2
    """The loop was still busy when the frame arrived."""
    HOST = 3
    """The loop waited for the frame but was woken late."""


MAX_POLICY_ID: Final = (1 << 32) - 1
"""Highest policy id that fits into a record; 0 means no policy."""

Code = Literal["u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8"]
"""Storage type of a number, by its numpy code; little-endian."""
Per = Literal["tick", "stage", "sensor", "signal", "input", "actuator"]
Source = Literal["frame", "loop", "decision"]
_STRUCT_CODES: Final = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}


class Stored(NamedTuple):
    """Storage and meaning of a field of the step."""

    number: int
    """Field number in the log's message format; the next new field gets number 41."""
    code: Code
    source: Source
    """Origin: the device's frames, the loop's clock and counters, or a decision (recomputed by a replay)."""
    per: Per = "tick"
    """What each element of the vector belongs to, such as ``sensor``; ``tick`` for a scalar."""
    unit: str = ""
    """``SI``: the signal's unit; ``counts``: counts on the wire; empty if the field's name contains the unit."""
    behaviour: bool = False
    """Whether only records of stochastic policies contain the field."""


class Step(msgspec.Struct, gc=False, eq=False):
    """One tick: the data of its frame, then the decisions; fields that the next frame reports are filled in later."""

    tick: Annotated[int, Stored(2, "u8", "loop")]
    episode: Annotated[int, Stored(3, "u4", "loop")]
    kind: Annotated[Kind, Stored(5, "u1", "loop")]

    frame: Annotated[int, Stored(4, "u4", "frame")]
    t_device_us: Annotated[int, Stored(15, "u8", "frame")]
    status: Annotated[int, Stored(12, "u2", "frame")]
    fault: Annotated[int, Stored(11, "u1", "frame")]
    answers: Annotated[int, Stored(13, "u4", "frame")]
    """Number of the frame answered by ``u_end``; 0 for the safe output."""
    sensors: Annotated[tuple[int, ...], Stored(22, "i4", "frame", "sensor", "counts")]
    u_start: Annotated[tuple[int, ...], Stored(24, "i4", "frame", "actuator", "counts")]
    """Command in force at the start of the period governed by the step's action; ``u_end``: at its end."""
    u_end: Annotated[tuple[int, ...], Stored(25, "i4", "frame", "actuator", "counts")]

    observation: Annotated[tuple[float, ...], Stored(26, "f4", "decision", "signal", "SI")]
    policy: Annotated[tuple[float, ...], Stored(27, "f4", "decision", "actuator", "SI")]
    """The policy's action without noise: for a stochastic policy, its clipped or squashed mean."""
    amplitude: Annotated[tuple[float, ...], Stored(33, "f4", "decision", "actuator")]
    """Factor on each action's noise, including the effect of gates; 0 without noise."""
    explored: Annotated[tuple[float, ...], Stored(28, "f4", "decision", "actuator", "SI")]
    commanded: Annotated[tuple[float, ...], Stored(29, "f4", "decision", "actuator", "SI")]
    command: Annotated[tuple[int, ...], Stored(23, "i4", "decision", "actuator", "counts")]
    applied: Annotated[tuple[float, ...], Stored(30, "f4", "decision", "actuator", "SI")]

    exploration: Annotated[float, Stored(34, "f4", "decision")] = 0.0
    """1-norm of explored minus policy action, both clipped and normalised (de Bruin et al. 2018, §7.1.1)."""
    rule: Annotated[Rule, Stored(6, "u1", "decision")] = Rule.NONE
    amount: Annotated[float, Stored(35, "f4", "decision")] = 0.0
    """Amount of the intervention; ``margin``: margin to the limits (``onrig.runtime.safety.shield.Verdict``)."""
    margin: Annotated[float, Stored(36, "f4", "decision")] = 1.0
    tau_us: Annotated[int, Stored(14, "u4", "frame")] = 0
    """Time from the sample to the switch of the period's command."""
    reward: Annotated[float, Stored(37, "f8", "decision")] = 0.0
    flags: Annotated[int, Stored(7, "u2", "decision")] = 0
    policy_id: Annotated[int, Stored(8, "u4", "decision")] = 0

    missed: Annotated[int, Stored(9, "u2", "loop")] = 0
    """Number of frames before this one that were not answered."""
    miss: Annotated[Miss, Stored(10, "u1", "loop")] = Miss.NONE
    t_mono_ns: Annotated[int, Stored(16, "i8", "loop")] = 0
    """Time of the sample: the host's monotonic clock, or virtual in lockstep."""
    t_receive_ns: Annotated[int, Stored(17, "i8", "loop")] = 0
    t_send_ns: Annotated[int, Stored(18, "i8", "loop")] = 0
    lateness_ns: Annotated[int, Stored(19, "i8", "loop")] = 0
    tick_ns: Annotated[int, Stored(20, "i8", "loop")] = 0
    stage_ns: Annotated[tuple[int, ...], Stored(21, "u8", "loop", "stage")] = (0,) * len(STAGES)
    """64 bits, because a stage may last minutes in a suspended process."""

    drawn: Annotated[tuple[float, ...], Stored(39, "f4", "decision", "actuator", behaviour=True)] = ()
    """Value drawn by a stochastic policy; ``mean`` and ``std`` describe the Gaussian it is drawn from (std reduced if
    the amplitude is below 1). All are normalised, before clipping or squashing
    (``onrig.runtime.policy.contract.ports_for``)."""
    input: Annotated[tuple[float, ...], Stored(40, "f4", "decision", "input", "SI")] = ()
    """Input of the policy, if it differs from the observation (``onrig.runtime.inputs``)."""
    mean: Annotated[tuple[float, ...], Stored(31, "f4", "decision", "actuator", behaviour=True)] = ()
    std: Annotated[tuple[float, ...], Stored(32, "f4", "decision", "actuator", behaviour=True)] = ()

    tripped: bool = False
    """Whether the fallback controller took over in this tick; not recorded."""


class Field(NamedTuple):
    """One field of the records."""

    name: str
    type: type
    """Enumeration, for a scalar that has one; otherwise the type of the value."""
    stored: Stored


SEQ: Final = Field("seq", int, Stored(1, "u8", "loop"))
"""Number of the record in the ring."""
CRC: Final = Field("crc", int, Stored(38, "u4", "loop"))
"""CRC-32 of the record's preceding bytes."""


def _declared_fields() -> Iterator[Field]:
    for name, hint in get_type_hints(Step, include_extras=True).items():
        for stored in getattr(hint, "__metadata__", ()):
            yield Field(name, hint.__origin__, stored)


FIELDS: Final = tuple(_declared_fields())
"""Fields of the step in the order of their declaration, including the fields of stochastic policies."""


def _flattener(fields: Sequence[Field], n_actions: int) -> Callable[[Step], tuple[float, ...]]:
    """Compile ``(step.tick, ..., *step.sensors, ...)`` into one function; ``attrgetter`` and ``chain`` would take twice
    as long.

    The fields of a stochastic policy are 0 if no policy was evaluated.
    """
    items = [
        f"*(step.{name} or none)" if stored.behaviour else f"{'*' * (stored.per != 'tick')}step.{name}"
        for name, _, stored in fields
    ]
    flatten: Callable[[Step], tuple[float, ...]] = eval(
        f"lambda step: ({', '.join(items)},)", {"none": (0.0,) * n_actions}
    )
    return flatten


class RecordLayout:
    """Layout of a rig's records: scalars, then vectors, between ``seq`` and ``crc``.

    ``behaviour`` adds the fields of stochastic policies; ``n_inputs`` adds the policy inputs, if they differ from the
    observation.
    """

    def __init__(
        self, n_sensors: int, n_observations: int, n_actions: int, *, behaviour: bool = False, n_inputs: int = 0
    ) -> None:
        self._widths = {"stage": len(STAGES), "sensor": n_sensors, "signal": n_observations, "actuator": n_actions}
        self._widths["input"] = n_inputs
        self.n_sensors, self.n_actions = n_sensors, n_actions
        self.n_policy_inputs: Final = n_inputs or n_observations
        """Number of policy inputs."""
        fields = [f for f in FIELDS if behaviour or not f.stored.behaviour]
        fields = [f for f in fields if n_inputs or f.stored.per != "input"]
        scalars = [f for f in fields if f.stored.per == "tick"]
        vectors = [f for f in fields if f.stored.per != "tick"]
        self.fields: Final = (SEQ, *scalars, *vectors, CRC)
        self.values: Final = _flattener([*scalars, *vectors], n_actions)
        """Function that returns a step's values in the order of the layout, without ``seq`` and ``crc``."""
        self._body = struct.Struct("<" + "".join(self._code(f) for f in self.fields[:-1]))
        self._crc = struct.Struct("<" + self._code(CRC))
        self.size: int = self._body.size + self._crc.size
        self.dtype = np.dtype([(f.name, f"<{f.stored.code}", *self._shape(f)) for f in self.fields])
        if self.dtype.itemsize != self.size:
            raise AssertionError(f"record layouts disagree: {self.dtype.itemsize} and {self.size} bytes")

    @classmethod
    def for_rig(cls, rig: Rig, *, behaviour: bool = False, n_inputs: int = 0) -> RecordLayout:
        """Return the layout of a rig's records."""
        widths = len(rig.sensors), len(rig.signals), len(rig.actuators)
        return cls(*widths, behaviour=behaviour, n_inputs=n_inputs)

    def _shape(self, field: Field) -> tuple[tuple[int], ...]:
        return () if field.stored.per == "tick" else ((self._widths[field.stored.per],),)

    def _code(self, field: Field) -> str:
        width = "" if field.stored.per == "tick" else str(self._widths[field.stored.per])
        return width + _STRUCT_CODES[field.stored.code]

    @property
    def schema(self) -> str:
        """Description that changes with the layout; both ends of the ring compare its hash."""
        return str(self.dtype.descr)

    def pack_into(self, buffer: memoryview, offset: int, seq: int, values: tuple[float, ...]) -> None:
        """Write one record with its CRC-32."""
        body = self._body
        body.pack_into(buffer, offset, seq, *values)
        end = offset + body.size
        self._crc.pack_into(buffer, end, zlib.crc32(buffer[offset:end]))

    def has_valid_crc(self, raw: memoryview) -> bool:
        """Return whether the bytes of a record match its CRC."""
        end = self._body.size
        crc: int = self._crc.unpack_from(raw, end)[0]
        return zlib.crc32(raw[:end]) == crc

    def pack(self, steps: list[Step]) -> npt.NDArray[np.void]:
        """Convert steps to records, numbered from 0."""
        buffer = memoryview(bytearray(self.size * len(steps)))
        for seq, step in enumerate(steps):
            self.pack_into(buffer, self.size * seq, seq, self.values(step))
        return np.frombuffer(buffer, self.dtype)

    def step(self, record: npt.NDArray[np.void]) -> Step:
        """Convert a record, shape (), to a step."""
        values: dict[str, object] = {}
        for name, kind, stored in self.fields[1:-1]:
            value = record[name].tolist()
            values[name] = tuple(value) if stored.per != "tick" else kind(value)
        return Step(**values)  # type: ignore[arg-type]
