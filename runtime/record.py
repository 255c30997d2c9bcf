"""The step record: all that the loop knew, decided and measured in one tick (ARCHITECTURE §2).

Records cross from the control process to the replay process through shared memory, so they have a fixed size; the
same layout is written with ``struct`` (fast in the tick) and read with numpy (fast in bulk).  Observations and
actions are in SI units and in the rig's order.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Final

import numpy as np

STAGES: Final = ("receive", "observe", "policy", "explore", "shield", "send", "record")
"""What a tick spends its time on, in order; ``stage_ns`` holds one duration for each."""


class Kind(enum.IntEnum):
    """What an episode is for."""

    TRAIN = 0
    EVAL = 1
    RESET = 2
    """On the way to the start of an episode, driven by a reset controller; bears the index of the training episode
    before it.  Nothing is learned from it."""


class Flag(enum.IntFlag):
    """Bits of a record's ``flags``."""

    TERMINATED = 1
    TRUNCATED = 2
    INVALID = 4
    """The transition that starts here was not observed whole: a frame was lost, or the device was not armed."""
    FIRST = 8
    """First record of its episode."""
    NO_ACTION = 16
    """Last record of its episode: it closes a transition and starts none."""
    LATE = 32
    """The command took effect after the sample (0 < tau < T) or not at all (tau = T)."""
    FADED = 64
    """The run is being faded out: ``explored`` is no longer what policy and exploration wished."""
    PROBATION = 128
    """The policy that acts is new and may yet be rolled back."""
    ROLLED_BACK = 256
    """First record after a roll-back: the policy that acts now is the predecessor of the one before."""


class Rule(enum.IntEnum):
    """Which rule of the shield intervened."""

    NONE = 0
    FINITE = 1
    RANGE = 2
    RATE = 3
    ENVELOPE = 4
    FALLBACK = 5
    """The fallback controller is still acting after an earlier intervention."""
    JERK = 6
    PREDICTED = 7
    """The command would have led out of the states from which the fallback still keeps the envelope."""

    @property
    def falls_back(self) -> bool:
        """Whether the fallback controller acts under this rule; the others only limit the command."""
        return self in _FALLS_BACK


_FALLS_BACK = frozenset({Rule.FINITE, Rule.ENVELOPE, Rule.FALLBACK, Rule.PREDICTED})


class Miss(enum.IntEnum):
    """Why frames before this one were not answered."""

    NONE = 0
    LINK = 1
    """The frame never arrived whole."""
    PROGRAM = 2
    """Our own work ran past the frame's arrival."""
    HOST = 3
    """We waited for the frame but the machine woke us late."""


_HEAD: Final = (
    ("seq", "Q", "<u8"),
    ("tick", "Q", "<u8"),
    ("episode", "I", "<u4"),
    ("frame", "I", "<u4"),
    ("kind", "B", "u1"),
    ("rule", "B", "u1"),
    ("flags", "H", "<u2"),
    ("policy_id", "I", "<u4"),
    ("missed", "H", "<u2"),
    ("miss", "B", "u1"),
    ("fault", "B", "u1"),
    ("status", "H", "<u2"),
    ("answers", "I", "<u4"),
    ("tau_us", "I", "<u4"),
    ("t_device_us", "Q", "<u8"),
    ("t_mono_ns", "q", "<i8"),
    ("t_receive_ns", "q", "<i8"),
    ("t_send_ns", "q", "<i8"),
    ("lateness_ns", "q", "<i8"),
    ("tick_ns", "q", "<i8"),
)


MAX_POLICY_ID: Final = (1 << 32) - 1
"""Highest id that fits into a record; 0 stands for no policy."""


class RecordLayout:
    """Layout of the step record of a rig with given numbers of sensors, observations and actions.

    ``t_mono_ns`` is the time of the sample: host monotonic, or virtual in lockstep.  ``sensors`` and ``command`` are
    counts as on the wire; ``u_start`` and ``u_end`` the commands in force in the period that the record's action
    governs; ``status`` and ``answers`` are the frame's own.  ``mean`` and ``std`` describe the behaviour distribution
    (std 0 where the policy is deterministic).  ``amplitude`` multiplied each action's noise, gates included, 0 where
    there was none; ``exploration`` is the 1-norm of explored minus policy action in normalised units (000 §7.1.1).
    ``amount`` is what the ``rule`` did and ``margin`` how far inside the limits it was
    (``onrig.runtime.safety.shield.Verdict``).
    """

    def __init__(self, n_sensors: int, n_observations: int, n_actions: int) -> None:
        self.n_sensors, self.n_observations, self.n_actions = n_sensors, n_observations, n_actions
        vectors = (
            ("stage_ns", len(STAGES), "Q", "<u8"),  # a suspended process makes stages longer than 32 bits hold
            ("sensors", n_sensors, "i", "<i4"),
            ("command", n_actions, "i", "<i4"),
            ("u_start", n_actions, "i", "<i4"),
            ("u_end", n_actions, "i", "<i4"),
            ("observation", n_observations, "f", "<f4"),
            ("policy", n_actions, "f", "<f4"),
            ("explored", n_actions, "f", "<f4"),
            ("commanded", n_actions, "f", "<f4"),
            ("applied", n_actions, "f", "<f4"),
            ("mean", n_actions, "f", "<f4"),
            ("std", n_actions, "f", "<f4"),
            ("amplitude", n_actions, "f", "<f4"),
        )
        tail = (("exploration", "f", "<f4"), ("amount", "f", "<f4"), ("margin", "f", "<f4"), ("reward", "d", "<f8"))
        code = "<" + "".join(c for _, c, _ in _HEAD) + "".join(f"{n}{c}" for _, n, c, _ in vectors)
        self._body = struct.Struct(code + "".join(c for _, c, _ in tail))
        self._crc = struct.Struct("<I")
        self.size: int = self._body.size + self._crc.size
        self.dtype = np.dtype(
            [(name, d) for name, _, d in _HEAD]
            + [(name, d, (n,)) for name, n, _, d in vectors]
            + [(name, d) for name, _, d in tail]
            + [("crc", "<u4")]
        )
        if self.dtype.itemsize != self.size:
            raise AssertionError(f"record layouts disagree: {self.dtype.itemsize} and {self.size} bytes")

    @property
    def schema(self) -> str:
        """Text that changes whenever the layout does; both ends of the ring compare its hash."""
        return str(self.dtype.descr)

    def pack_into(self, buffer: memoryview, offset: int, fields: tuple[float, ...]) -> None:
        """Write one record (its scalar fields flattened in layout order, without the CRC) and seal it with a CRC-32."""
        body = self._body
        body.pack_into(buffer, offset, *fields)
        end = offset + body.size
        self._crc.pack_into(buffer, end, zlib.crc32(buffer[offset:end]))

    def sealed(self, raw: memoryview) -> bool:
        """Tell whether the bytes of one record are whole."""
        end = self._body.size
        crc: int = self._crc.unpack_from(raw, end)[0]
        return zlib.crc32(raw[:end]) == crc
