from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.control.overrun import attribute_miss, next_deadline_ns
from runtime.record import Miss

PERIOD = 1000


@given(st.integers(0, 10**12), st.integers(-(10**6), 10**6), st.integers(1, 10**5))
def test_the_next_deadline_is_the_first_grid_point_still_to_come(deadline: int, late: int, period: int) -> None:
    now = deadline + late
    following = next_deadline_ns(deadline, now, period)
    assert (following - deadline) % period == 0, "on the grid, so nothing drifts"
    assert following > now
    assert following >= deadline + period
    assert following == deadline + period or following - period <= now, "no grid point to come is left out"


def test_periods_missed_are_skipped_and_not_made_up_for() -> None:
    assert next_deadline_ns(0, 999, PERIOD) == 1000
    assert next_deadline_ns(0, 1000, PERIOD) == 2000
    assert next_deadline_ns(0, 5500, PERIOD) == 6000


@pytest.mark.parametrize(
    ("missed", "previous_end", "skipped", "cause"),
    [
        (0, 5000, 0, Miss.NONE),
        (1, 500, 0, Miss.LINK),
        (1, 5000, 0, Miss.LINK),
        (1, 1500, 1, Miss.PROGRAM),
        (3, 3900, 3, Miss.PROGRAM),
        (1, 999, 1, Miss.HOST),
    ],
    ids=[
        "nothing missed",
        "the frame never came",
        "it never came, however long we worked",
        "we worked past its arrival",
        "we worked past the arrival of several",
        "we waited for it and were woken late",
    ],
)
def test_a_miss_is_attributed(missed: int, previous_end: int, skipped: int, cause: Miss) -> None:
    assert attribute_miss(missed, 1000, previous_end, 2100, PERIOD, skipped) == cause
