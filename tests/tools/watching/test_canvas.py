from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.watching.canvas import Canvas, bar, both_ways, columns, sparkline

anything = st.floats(allow_nan=True, allow_infinity=True, width=32)


@pytest.mark.parametrize("fancy", [True, False])
@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), max_size=20))
def test_a_canvas_is_as_large_as_it_says_wherever_one_draws(fancy: bool, points: list[tuple[float, float]]) -> None:
    canvas = Canvas(6, 3, fancy=fancy)
    for x, y in points:
        canvas.dot(x, y)
        canvas.line(0, 0, x, y)
        canvas.disc(x, y, 2.0)
    rows = canvas.rows()
    assert [len(row) for row in rows] == [6, 6, 6]
    if not fancy:
        assert "".join(rows).isascii()


def test_dots_are_where_they_were_set() -> None:
    canvas = Canvas(2, 1)
    canvas.dot(0, 0)
    canvas.dot(3, 3)
    assert canvas.rows() == [chr(0x2801) + chr(0x2880)]


@given(st.lists(anything, max_size=30), st.integers(0, 12), st.booleans())
@settings(max_examples=50)
def test_a_curve_is_never_wider_than_asked(values: list[float], width: int, fancy: bool) -> None:
    line = sparkline(values, width, 0.0, 1.0, fancy=fancy)
    assert len(line) == min(width, len(values))


def test_a_curve_rises_where_its_values_do_and_has_a_gap_where_there_is_none() -> None:
    assert sparkline([0.0, 0.5, 1.0, math.nan, -3.0], 5, 0.0, 1.0) == "▁▅█ ▁"
    assert sparkline([0, 0, 1, 1], 2, 0.0, 1.0) == "▁█", "neighbours are averaged"
    assert sparkline([5.0], 3, 1.0, 1.0) == "▁", "without a range"


@given(anything, st.integers(1, 20), st.booleans())
@settings(max_examples=50)
def test_bars_keep_their_width(share: float, width: int, fancy: bool) -> None:
    assert len(bar(share, width, fancy=fancy)) == width
    assert len(both_ways(share, width, fancy=fancy)) == 2 * width + 1


def test_bars_show_their_share() -> None:
    assert bar(0.5, 4) == "██··"
    assert bar(0.5, 4, fancy=False) == "##.."
    assert both_ways(-1.0, 2) == "██│··"
    assert both_ways(0.5, 2) == "··│█·"
    assert both_ways(math.nan, 1) == "·│·"


def test_a_histogram_shows_single_ones_beside_thousands() -> None:
    assert columns([0, 1, 10_000]) == " ▁█"
    assert columns([]) == ""
    assert columns([0, 0]) == ""
