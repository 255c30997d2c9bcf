"""What the benchmark and the process of one library say to each other: a line of JSON each."""

from __future__ import annotations

import msgspec

from onrig.tools.benchmarks.cases import Case
from onrig.tools.benchmarks.gate import Verdict


class Gate(msgspec.Struct, frozen=True, tag=True):
    """Put the draws of one kind of memory to the test."""

    kind: str
    draws: int
    seed: int


class Weigh(msgspec.Struct, frozen=True, tag=True):
    """Fill a memory and tell what the process grew by."""

    kind: str
    n_obs: int
    n_act: int
    capacity: int
    seed: int


class Fill(msgspec.Struct, frozen=True, tag=True):
    """Hold a full memory ready."""

    kind: str
    n_obs: int
    n_act: int
    capacity: int
    seed: int


class Round(msgspec.Struct, frozen=True, tag=True):
    """Time calls of one case on the memory of ``kind`` until ``calls`` or ``limit_ns`` are used up."""

    case: Case
    kind: str
    calls: int
    limit_ns: int
    beside_stalls: bool


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Let go of every memory."""


Call = Gate | Weigh | Fill | Round | Drop


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Done; the first message of a process as well."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The library cannot do that here; says why."""

    reason: str


class Judged(msgspec.Struct, frozen=True, tag=True):
    """How the gate went."""

    verdict: Verdict


class Weighed(msgspec.Struct, frozen=True, tag=True):
    """What a full memory takes."""

    resident: int | None
    """Bytes by which the process grew; None where that cannot be read."""
    arrays: int | None
    """Bytes of the arrays; None where the library does not tell."""


class Timings(msgspec.Struct, frozen=True, tag=True):
    """Durations in ns; see :class:`~onrig.tools.benchmarks.timing.BesideStalls` for all but the first."""

    calls: list[int]
    spans: list[int] = []
    busy_calls: list[int] = []
    busy_spans: list[int] = []


Reply = Ready | Refused | Judged | Weighed | Timings
