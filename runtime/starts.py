"""Start states of episodes: numbers, intervals to draw from, or a list to draw one from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from onrig.hw.bounds import Quantity
from onrig.runtime.random_streams import start_stream

_Interval = Annotated[tuple[Quantity, ...], msgspec.Meta(min_length=2, max_length=2)]
# Of variable length, because msgspec 0.22 crashes on a fixed-length tuple in a union with a bounded number.
StartValue = Quantity | _Interval
"""Value at the start, or the interval [low, high] from which it is drawn uniformly."""
Start = Mapping[str, StartValue]
"""Initial value of each state of the plant, by name (SI units)."""
Starts = Start | Sequence[Start]
"""A start state, or a list of them."""
_MAX_CORNERS: Final = 64


def start_list(starts: Starts) -> Sequence[Start]:
    """Return the list of start states; a single state becomes a list of one."""
    return (starts,) if isinstance(starts, Mapping) else starts


def are_starts_random(starts: Starts) -> bool:
    """Return whether start states differ between episodes."""
    rows = start_list(starts)
    return len(rows) > 1 or any(isinstance(value, tuple) for row in rows for value in row.values())


def draw_start(starts: Starts, reset_seed: int) -> dict[str, float]:
    """Return the start state of the episode whose reset has this seed (``onrig.runtime.random_streams.device_seed``).

    A twin, which receives the seed, draws the same state, and so do trials and the host of a rig with a reset
    controller.
    """
    rows = start_list(starts)
    if not are_starts_random(starts):
        return {name: _interval(value)[0] for name, value in rows[0].items()}
    rng = start_stream(reset_seed)
    row = rows[int(rng.integers(len(rows)))] if len(rows) > 1 else rows[0]
    intervals = {name: _interval(value) for name, value in row.items()}
    return {name: float(rng.uniform(low, high)) if low < high else low for name, (low, high) in intervals.items()}


def middle_start(starts: Starts) -> dict[str, float]:
    """Return the middle of each interval, taking the first entry of a list; a plain number is returned unchanged."""
    intervals = {name: _interval(value) for name, value in start_list(starts)[0].items()}
    return {name: low if low == high else 0.5 * (low + high) for name, (low, high) in intervals.items()}


def starts_with_paths(starts: Starts) -> Iterator[tuple[str, Start]]:
    """Yield each start state with its path in the task."""
    if isinstance(starts, Mapping):
        yield "start", starts
    else:
        yield from ((f"starts[{i}]", start) for i, start in enumerate(starts))


def extreme_starts(starts: Starts) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield start states at the ends of their intervals with their paths: all low, all high, then up to 64
    combinations."""
    for path, start in starts_with_paths(starts):
        ends = [value if isinstance(value, tuple) else (value,) for value in start.values()]
        extremes = [tuple(end[0] for end in ends), tuple(end[-1] for end in ends)]
        combinations = itertools.islice(itertools.product(*ends), _MAX_CORNERS)
        for values in dict.fromkeys([*extremes, *combinations]):
            yield path, dict(zip(start, values, strict=True))


def _interval(value: StartValue) -> tuple[float, float]:
    return (value[0], value[1]) if isinstance(value, tuple) else (value, value)
