"""File of a sampled barrier: a table over states and commands, with a description of how it was computed and tested.

The first line is a JSON object (:class:`Header`); little-endian float32 numbers follow, in the order of the axes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import isfinite, prod
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import Quantity
from onrig.runtime.config.pieces import MAX_BARRIER_BYTES
from onrig.runtime.files import read_file, replace_file

FORMAT: Final = "onrig-barrier-2"
MAX_STATES: Final = 4
MAX_COMMANDS: Final = 2
_MAX_HEADER_BYTES: Final = 1 << 16
_MAX_NODES: Final = 4096

Values = NDArray[np.float32]


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evenly spaced nodes over one observation or actuator, both ends included."""

    name: str
    low: Quantity
    high: Quantity
    nodes: Annotated[int, msgspec.Meta(ge=2, le=_MAX_NODES)]
    wraps: bool = False
    """Whether the last node is the same as the first, one turn later."""


class BarrierTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a test in hostile episodes, each with a new plant that was not used in the computation."""

    plants: Annotated[int, msgspec.Meta(ge=0)]
    """Number of plants, one per episode."""
    breaches: Annotated[int, msgspec.Meta(ge=0)]
    """Number of episodes in which an observation left its envelope."""
    rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    """Upper bound on the fraction of episodes with a breach, at the level ``confidence``."""
    confidence: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
    outside: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    """Fraction of an episode's steps whose next measurement no plant of the computation explains; the largest of any
    episode."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a table."""

    format: str
    made_for: dict[str, str]
    """Digest of each part of the configuration that the table depends on, by name."""
    states: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MAX_STATES)]
    """Axes of the observations that are the plant's states."""
    commands: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MAX_COMMANDS)]
    """Axes of the actuators."""
    plants: Annotated[int, msgspec.Meta(ge=1)]
    """Number of plants in the computation: at the corners of the uncertainty, and drawn from it."""
    horizon_s: float
    """How long each plant was simulated under the fallback, and how long it was then simulated after the host's
    death."""
    slack: float
    """Margin below which a command is refused; it covers the interpolation error between nodes."""
    seed: int
    tested: BarrierTest | None = None
    """Result of the test; None before it."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, states first."""
        return (*self.states, *self.commands)

    @property
    def points(self) -> int:
        """Number of states in the grid."""
        return prod(axis.nodes for axis in self.states)


class Barrier(msgspec.Struct, frozen=True):
    """Table of margins by state and command: at least 0 where every computed plant stays inside the envelopes."""

    header: Header
    values: Values
    """Flat, in the order of the axes."""
    sha256: str


def content_digest(data: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def encode_barrier(header: Header, values: Values) -> bytes:
    """Return the content of a barrier file."""
    return msgspec.json.encode(header) + b"\n" + values.astype("<f4").tobytes()


def write_barrier(path: Path, header: Header, values: Values) -> str:
    """Write a barrier file atomically; return its digest. Raises OSError."""
    data = encode_barrier(header, values)
    replace_file(path, data)
    return content_digest(data)


def decode_barrier(data: bytes) -> Barrier:
    """Parse the content of a barrier file; raises a ValueError that describes the defect."""
    line, _, remainder = data[: _MAX_HEADER_BYTES + 1].partition(b"\n")
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a table of `onrig safety --barrier`: {error}") from None
    if header.format != FORMAT:
        raise ValueError(f"expected the format {FORMAT}, got {header.format!r}: compute it again")
    del remainder
    values = np.frombuffer(data, "<f4", offset=len(line) + 1) if (len(data) - len(line) - 1) % 4 == 0 else np.zeros(0)
    if len(values) != prod(axis.nodes for axis in header.axes) or not np.isfinite(values).all():
        raise ValueError("values are missing or non-finite: compute it again")
    if not all(axis.low < axis.high for axis in header.axes) or not (isfinite(header.slack) and header.slack >= 0.0):
        raise ValueError("an axis or the slack is invalid: compute it again")
    return Barrier(header, values.astype(np.float32), content_digest(data))


def read_barrier(path: str, sha256: str = "") -> Barrier:
    """Read a table, decoding it once per process; raises ValueError if it is missing or invalid, or if its SHA-256 is
    not ``sha256`` (empty: any)."""
    try:
        data = read_file(Path(path), MAX_BARRIER_BYTES)
    except OSError as error:
        raise ValueError(f"'{path}': {error.strerror or error}; `onrig safety CONFIG --barrier` computes it") from None
    digest = content_digest(data)
    if sha256 and digest != sha256:
        raise ValueError(f"'{path}' has changed since the configuration was read")
    return _decode_file(path, digest)


@lru_cache(maxsize=4)
def _decode_file(path: str, sha256: str) -> Barrier:
    data = read_file(Path(path), MAX_BARRIER_BYTES)
    try:
        return decode_barrier(data)
    except ValueError as error:
        raise ValueError(f"'{path}': {error}") from None
