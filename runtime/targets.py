"""Targets of a task: signals drawn for each episode or following a given course, as policy inputs after the rig's
signals.  Their values depend only on seed, role, episode and step, so that a replay, a resumed run and trials see
identical values.  Descriptions are selected by ``kind``.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from onrig.hw.bounds import LARGEST, NotNegative, Positive, Quantity
from onrig.hw.rig import Observation
from onrig.runtime import registry
from onrig.runtime.config.registered import registered
from onrig.runtime.config.tables import hash_of

if TYPE_CHECKING:
    from numpy.random import Generator  # slow to import

Values = NDArray[np.float64]
Problems = Iterator[tuple[str, str]]
StreamFactory = Callable[[int], "Generator"]
"""Function that returns the random stream for the target with the given number."""
MAX_TARGETS: Final = 16
_UNITLESS: Final = "1"
_SAME_TIME_S: Final = 1e-9
"""Tolerance on the time of a step, so that rounding cannot delay a level by one step."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    """Description of a target; a subclass declares its settings as fields and its name as the tag."""

    observation: str | UnsetType = UNSET
    """Observation that follows the target and determines its unit; default: the observation that a ``distance`` of the
    reward compares with the target."""

    def problems(self) -> Problems:
        """List the problems of the settings."""
        return iter(())

    def span(self) -> tuple[float, float]:
        """Return [low, high] of the values, which maps to [-1, 1] for policies."""
        raise NotImplementedError

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the values (t,) at ``times`` (t,), in s since the first sample of an episode."""
        raise NotImplementedError


class Drawn(Target, frozen=True, forbid_unknown_fields=True, tag="drawn", kw_only=True):
    """One value per episode, drawn uniformly from [low, high]."""

    low: Quantity
    """Smallest value."""
    high: Quantity
    """Largest value."""

    def span(self) -> tuple[float, float]:
        """Return the interval."""
        return self.low, self.high

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the drawn value at each time."""
        return np.full(len(times), rng.uniform(self.low, self.high))


class Choice(Target, frozen=True, forbid_unknown_fields=True, tag="choice", kw_only=True):
    """One value per episode, drawn from a list."""

    values: Annotated[tuple[Quantity, ...], msgspec.Meta(min_length=1)]
    """Values, all equally likely."""

    def span(self) -> tuple[float, float]:
        """Return the smallest and the largest value of the list."""
        return min(self.values), max(self.values)

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the drawn value at each time."""
        return np.full(len(times), self.values[int(rng.integers(len(self.values)))])


class Steps(Target, frozen=True, forbid_unknown_fields=True, tag="steps", kw_only=True):
    """Levels, each held until the next: ``levels`` at given times, or drawn from [low, high] every ``every_s``."""

    levels: tuple[tuple[Quantity, Quantity], ...] | UnsetType = UNSET
    """[time in s, value] of each level, the first at 0."""
    low: Quantity | UnsetType = UNSET
    """Smallest level drawn."""
    high: Quantity | UnsetType = UNSET
    """Largest level drawn."""
    every_s: Annotated[float, msgspec.Meta(ge=1e-3, le=LARGEST)] | UnsetType = UNSET
    """Time between two draws."""

    def problems(self) -> Problems:
        """Report missing or contradictory settings, and times that do not increase from 0."""
        drawn_settings = [value is not UNSET for value in (self.low, self.high, self.every_s)]
        if (self.levels is UNSET) == (not any(drawn_settings)) or (any(drawn_settings) and not all(drawn_settings)):
            yield "", "expected either levels, as [time in s, value], or all of low, high and every_s"
        elif self.levels is not UNSET:
            times = [t for t, _ in self.levels]
            if not times or times[0] != 0.0:
                yield "levels", "the first level must be at 0 s"
            elif any(b <= a for a, b in itertools.pairwise(times)):
                yield "levels", "the times must increase"

    def span(self) -> tuple[float, float]:
        """Return the smallest and the largest level."""
        if self.levels:
            values = [value for _, value in self.levels]
            return min(values), max(values)
        return self.low or 0.0, self.high or 0.0

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the level in force at each time."""
        if self.levels:
            return _hold_values(times, *np.array(self.levels, np.float64).T)
        number = np.floor((times + _SAME_TIME_S) / (self.every_s or 1.0)).astype(np.int64)
        return rng.uniform(*self.span(), int(number[-1]) + 1)[number]


class Sine(Target, frozen=True, forbid_unknown_fields=True, tag="sine", kw_only=True):
    """offset + amplitude sin(2 pi frequency t + phase)."""

    amplitude: Positive
    """Amplitude in the unit of the target."""
    frequency_hz: NotNegative
    """Cycles per second."""
    offset: Quantity = 0.0
    """Middle of the values."""
    phase_rad: Quantity | Literal["drawn"] = "drawn"
    """Phase at the first sample; ``drawn``: uniform over a cycle, for each episode."""

    def span(self) -> tuple[float, float]:
        """Return the values of trough and crest."""
        return self.offset - self.amplitude, self.offset + self.amplitude

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the sine at each time."""
        phase = rng.uniform(-math.pi, math.pi) if self.phase_rad == "drawn" else self.phase_rad
        return self.offset + self.amplitude * np.sin(2.0 * math.pi * self.frequency_hz * times + phase)


class Csv(Target, frozen=True, forbid_unknown_fields=True, tag="csv", kw_only=True):
    """Values of a table with the columns ``t`` (s) and ``value``; the last value is held."""

    file: str
    """Path relative to the task's file."""
    between: Literal["linear", "held"] = "linear"
    """Value between two rows: ``linear`` interpolates, ``held`` keeps the earlier row's value."""
    content: str | UnsetType = UNSET
    """Content of the file, filled in when the task is read, so that a run needs no other file."""
    sha256: str | UnsetType = UNSET
    """Hash of the content, filled in when the task is read."""

    def problems(self) -> Problems:
        """Report a table that cannot be read or does not match its hash."""
        if self.content is UNSET:
            yield "file", "the file was not read"
            return
        if self.sha256 is not UNSET and self.sha256 != hash_of(self.content):
            yield "content", "does not match its sha256: remove both to read the file again"
        try:
            _parse_table(self.content)
        except ValueError as error:
            yield "file", f"{self.file}: {error}"

    def span(self) -> tuple[float, float]:
        """Return the smallest and the largest value of the table."""
        values = _parse_table(self.content or "")[1]
        return float(values.min()), float(values.max())

    def draw(self, times: Values, rng: Generator) -> Values:
        """Return the table's value at each time."""
        row_times, values = _parse_table(self.content or "")
        return (
            np.interp(times, row_times, values) if self.between == "linear" else _hold_values(times, row_times, values)
        )


def _hold_values(times: Values, row_times: Values, values: Values) -> Values:
    """Return the value of the latest row at each time; times before the first row get the first row's value."""
    held_values: Values = values[np.maximum(np.searchsorted(row_times, times + _SAME_TIME_S, side="right") - 1, 0)]
    return held_values


@lru_cache(maxsize=8)
def _parse_table(content: str) -> tuple[Values, Values]:
    """Return the times and values of a table as read-only arrays; raises a ValueError that states the line."""
    table = csv.DictReader(io.StringIO(content))
    if not {"t", "value"}.issubset(table.fieldnames or ()):
        raise ValueError("expected a first line with the columns t and value")
    points: list[tuple[float, float]] = []
    for row in table:
        try:
            t, value = float(row["t"]), float(row["value"])
        except (TypeError, ValueError):
            raise ValueError(f"line {table.line_num}: expected two numbers") from None
        if not (abs(t) <= LARGEST and abs(value) <= LARGEST):
            raise ValueError(f"line {table.line_num}: expected numbers of at most {LARGEST:g}")
        if points and t <= points[-1][0]:
            raise ValueError(f"line {table.line_num}: the times must increase")
        points.append((t, value))
    if not points:
        raise ValueError("has no rows")
    columns = np.array(points, np.float64).T
    columns.flags.writeable = False
    row_times, values = columns
    return row_times, values


if TYPE_CHECKING:
    AnyTarget = Target
else:
    AnyTarget = Annotated[Any, registered(registry.TARGETS)]
Targets = Mapping[str, Target] | UnsetType
"""Targets, keyed by their names in the task."""


class TargetFailed(Exception):
    """Exception in a target's code, or unusable values; the message has one line."""


def signal_of(name: str, target: Target, unit: str | None) -> Observation:
    """Return a target's name, unit and range as a signal, with a default range if its settings are invalid."""
    try:
        low, high = target.span()
    except Exception:  # invalid settings or third-party code, reported by the checks
        low, high = -1.0, 1.0
    return Observation(name=name, unit=unit or _UNITLESS, low=low, high=high if high > low else low + 1.0)


def sample_times(steps: int, period_s: float) -> Values:
    """Return the times (steps + 1,), in s, of an episode's samples."""
    return np.asarray(np.arange(steps + 1) * period_s, np.float64)


def draw_values(targets: Sequence[Target], steps: int, period_s: float, streams: StreamFactory) -> Values:
    """Return the values (steps + 1, q) of q targets at the samples of one episode; raises TargetFailed."""
    times = sample_times(steps, period_s)
    values = np.empty((len(times), len(targets)))
    for i, target in enumerate(targets):
        kind = target.__struct_config__.tag
        try:
            values[:, i] = target.draw(times, streams(i))
        except Exception as error:
            raise TargetFailed(f"a target of kind '{kind}' raises {registry.describe_exception(error)}") from error
        if not np.isfinite(values[:, i]).all():
            raise TargetFailed(f"a target of kind '{kind}' has a non-finite value")
    return values
