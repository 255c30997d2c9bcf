"""A run that starts from a pretraining continues its exploration schedule."""

from __future__ import annotations

import pytest

from onrig.tools.pretraining.start import shift_schedule

SCHEDULE = [[1, 1.0], [101, 0.2], [301, 0.1]]


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        (0, [[1.0, 1.0], [101, 0.2], [301, 0.1]]),
        (50, [[1.0, 0.6], [51, 0.2], [251, 0.1]]),
        (100, [[1.0, 0.2], [201, 0.1]]),
        (400, [[1.0, 0.1]]),
    ],
)
def test_a_schedule_continues_where_the_pretraining_ended(episodes: int, expected: list[list[float]]) -> None:
    points = [pytest.approx(point) for point in expected]
    assert shift_schedule(SCHEDULE, episodes) == points
    assert shift_schedule({"coil": SCHEDULE}, episodes) == {"coil": points}
