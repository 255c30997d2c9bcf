from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.tools.watching.rig_text import (
    Canvas,
    Sketch,
    Track,
    bar,
    centred_bar,
    columns,
    create_sketch,
    rig_rows,
    scene_rows,
    sparkline,
)
from onrig.tools.watching.snapshot import LastStep
from tests.runtime.samples import MAGMAN, PENDULUM


def make_last_step(observation: tuple[float, ...], commanded: tuple[float, ...]) -> LastStep:
    return LastStep(observation, commanded, 0.5, 0.1, Rule.NONE)


def dot_centroid(rows: list[str]) -> tuple[float, float]:
    """Position of most of the dots: (column, row), from the middle, in characters."""
    dots = [(x, y, (ord(c) - 0x2800).bit_count()) for y, row in enumerate(rows) for x, c in enumerate(row) if c != " "]
    n = sum(d for *_, d in dots)
    center = 0.5 * (len(rows[0]) - 1), 0.5 * (len(rows) - 1)
    return sum(x * d for x, _, d in dots) / n - center[0], sum(y * d for _, y, d in dots) / n - center[1]


def test_the_pendulum_hangs_down_at_zero_and_is_upright_at_pi() -> None:
    replace_fields, task = msgspec.structs.replace, PENDULUM.task
    without_target = replace_fields(PENDULUM, task=replace_fields(task, reward=replace_fields(task.reward, target={})))

    def dial_centroid(angle: float) -> tuple[float, float]:
        return dot_centroid(scene_rows(create_sketch(without_target), make_last_step((angle, 0.0), (0.0,)), 9))

    assert dial_centroid(0.0)[1] > 0.5
    assert dial_centroid(math.pi)[1] < -0.5
    assert dial_centroid(math.pi / 2)[0] > 1.0, "positive to the right"
    assert dial_centroid(-math.pi / 2)[0] < -1.0


def test_the_ball_is_drawn_at_its_place_over_the_coils() -> None:
    sketch = Sketch(track=Track(position=0, low=0.0, high=1.0, target=0.5))
    rows = rig_rows(MAGMAN.rig, sketch, make_last_step((1.0, 0.0), (0.0, 0.6, 0.3, 0.0)), 21, 8)
    assert rows[0] == " " * 20 + "●"
    assert rows[1] == "├─────────┼─────────┤"
    assert rig_rows(MAGMAN.rig, sketch, make_last_step((0.0, 0.0), (0.0,) * 4), 21, 8)[0] == "●"


def test_strong_coils_are_drawn_high() -> None:
    sketch = create_sketch(MAGMAN)
    coil_cells = rig_rows(MAGMAN.rig, sketch, make_last_step((0.0, 0.0), (0.0, 0.6, 0.3, 0.0)), 40, 8)[2].split()
    assert coil_cells == ["·", "█", "▄", "·"]


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN], ids=lambda c: c.rig.name)
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("size", [(36, 7), (20, 3), (100, 30)])
@pytest.mark.parametrize("value", [0.0, 1e9, -1e9, math.nan, math.inf])
def test_it_fits_whatever_the_rig_reports(
    config: RunConfig, unicode: bool, size: tuple[int, int], value: float
) -> None:
    n = len(config.rig.actuators)
    for sketch in (create_sketch(config), Sketch()):
        rows = rig_rows(config.rig, sketch, make_last_step((value, value), (value,) * n), *size, unicode=unicode)
        assert 0 < len(rows) <= size[1]
        assert all(len(row) <= size[0] for row in rows)
        if not unicode:
            assert all(o.isascii() for row in rows for o in row if o not in "²·")


def test_before_the_first_record_it_says_so() -> None:
    assert rig_rows(PENDULUM.rig, create_sketch(PENDULUM), None, 30, 5) == ["no step record yet"]


any_float = st.floats(allow_nan=True, allow_infinity=True, width=32)


@pytest.mark.parametrize("unicode", [True, False])
@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), max_size=20))
def test_a_canvas_keeps_its_size_wherever_one_draws(unicode: bool, points: list[tuple[float, float]]) -> None:
    canvas = Canvas(6, 3, unicode=unicode)
    for x, y in points:
        canvas.dot(x, y)
        canvas.line(0, 0, x, y)
        canvas.disc(x, y, 2.0)
    rows = canvas.rows()
    assert [len(row) for row in rows] == [6, 6, 6]
    if not unicode:
        assert "".join(rows).isascii()


def test_dots_are_where_they_were_set() -> None:
    canvas = Canvas(2, 1)
    canvas.dot(0, 0)
    canvas.dot(3, 3)
    assert canvas.rows() == [chr(0x2801) + chr(0x2880)]


@given(st.lists(any_float, max_size=30), st.integers(0, 12), st.booleans())
@settings(max_examples=50)
def test_a_curve_is_never_wider_than_requested(values: list[float], width: int, unicode: bool) -> None:
    line = sparkline(values, width, 0.0, 1.0, unicode=unicode)
    assert len(line) == min(width, len(values))


def test_a_curve_rises_with_its_values_and_has_a_gap_where_there_is_none() -> None:
    assert sparkline([0.0, 0.5, 1.0, math.nan, -3.0], 5, 0.0, 1.0) == "▁▅█ ▁"
    assert sparkline([0, 0, 1, 1], 2, 0.0, 1.0) == "▁█", "neighbours are averaged"
    assert sparkline([5.0], 3, 1.0, 1.0) == "▁", "without a range"


@given(any_float, st.integers(1, 20), st.booleans())
@settings(max_examples=50)
def test_bars_keep_their_width(fraction: float, width: int, unicode: bool) -> None:
    assert len(bar(fraction, width, unicode=unicode)) == width
    assert len(centred_bar(fraction, width, unicode=unicode)) == 2 * width + 1


def test_bars_show_their_share() -> None:
    assert bar(0.5, 4) == "██··"
    assert bar(0.5, 4, unicode=False) == "##.."
    assert centred_bar(-1.0, 2) == "██│··"
    assert centred_bar(0.5, 2) == "··│█·"
    assert centred_bar(math.nan, 1) == "·│·"


def test_a_histogram_shows_single_counts_next_to_thousands() -> None:
    assert columns([0, 1, 10_000]) == " ▁█"
    assert columns([]) == ""
    assert columns([0, 0]) == ""
