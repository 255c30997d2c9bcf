from __future__ import annotations

import math

import pytest

from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.tools.watching.rig_text import Sketch, pendulum_dial, rig_rows, sketch_of
from onrig.tools.watching.snapshot import Now
from tests.runtime.samples import MAGMAN, PENDULUM


def now(observation: tuple[float, ...], commanded: tuple[float, ...]) -> Now:
    return Now(observation, commanded, commanded, 0.5, 0.1, Rule.NONE)


def heavy(rows: list[str]) -> tuple[float, float]:
    """Where most of the dots are: (column, row), from the middle, in characters."""
    dots = [(x, y, (ord(c) - 0x2800).bit_count()) for y, row in enumerate(rows) for x, c in enumerate(row) if c != " "]
    n = sum(d for *_, d in dots)
    middle = 0.5 * (len(rows[0]) - 1), 0.5 * (len(rows) - 1)
    return sum(x * d for x, _, d in dots) / n - middle[0], sum(y * d for _, y, d in dots) / n - middle[1]


def test_the_pendulum_hangs_down_at_zero_and_stands_up_at_pi() -> None:
    assert heavy(pendulum_dial(0.0, None, 9))[1] > 0.5
    assert heavy(pendulum_dial(math.pi, None, 9))[1] < -0.5
    assert heavy(pendulum_dial(math.pi / 2, None, 9))[0] > 1.0, "positive to the right"
    assert heavy(pendulum_dial(-math.pi / 2, None, 9))[0] < -1.0


def test_the_ball_is_where_it_is_over_its_coils() -> None:
    sketch = Sketch(kind="track", position=0, low=0.0, high=1.0, target=0.5)
    rows = rig_rows(MAGMAN.rig, sketch, now((1.0, 0.0), (0.0, 0.6, 0.3, 0.0)), 21, 8)
    assert rows[0] == " " * 20 + "●"
    assert rows[1] == "├─────────┼─────────┤"
    assert rig_rows(MAGMAN.rig, sketch, now((0.0, 0.0), (0.0,) * 4), 21, 8)[0] == "●"


def test_strong_coils_are_high() -> None:
    sketch = sketch_of(MAGMAN)
    coils = rig_rows(MAGMAN.rig, sketch, now((0.0, 0.0), (0.0, 0.6, 0.3, 0.0)), 40, 8)[2].split()
    assert coils == ["·", "█", "▄", "·"]


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN], ids=lambda c: c.rig.name)
@pytest.mark.parametrize("fancy", [True, False])
@pytest.mark.parametrize("size", [(36, 7), (20, 3), (100, 30)])
@pytest.mark.parametrize("value", [0.0, 1e9, -1e9, math.nan, math.inf])
def test_it_fits_whatever_the_rig_says(config: RunConfig, fancy: bool, size: tuple[int, int], value: float) -> None:
    n = len(config.rig.actuators)
    for sketch in (sketch_of(config), Sketch(kind="bars")):
        rows = rig_rows(config.rig, sketch, now((value, value), (value,) * n), *size, fancy=fancy)
        assert 0 < len(rows) <= size[1]
        assert all(len(row) <= size[0] for row in rows)
        if not fancy:
            assert all(o.isascii() for row in rows for o in row if o not in "²·")


def test_before_the_first_record_it_says_so() -> None:
    assert rig_rows(PENDULUM.rig, sketch_of(PENDULUM), None, 30, 5) == ["no step record yet"]
