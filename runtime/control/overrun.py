"""What to make of a frame that did not come when it should have: pure functions over plain numbers."""

from __future__ import annotations

from runtime.record import Miss


def next_deadline_ns(deadline_ns: int, now_ns: int, period_ns: int) -> int:
    """First grid point of ``deadline_ns + k period_ns`` (k >= 1) that lies after ``now_ns``.

    Absolute, so that nothing drifts; whole periods are skipped after an overrun, never made up for in a burst.
    """
    behind = now_ns - deadline_ns
    periods = 1 if behind < 0 else behind // period_ns + 1
    return deadline_ns + periods * period_ns


def attribute_miss(
    missed: int, expected_ns: int, previous_end_ns: int, woke_ns: int, period_ns: int, skipped: int
) -> Miss:
    """Say why ``missed`` frames before the present one were not answered.

    expected_ns: when the first missed frame should have arrived; previous_end_ns: when our work on the tick before it
    ended; woke_ns: when the present frame was in our hands; skipped: how many of the missed frames did arrive but
    were overtaken by a newer one before we read them.
    """
    if missed <= 0:
        return Miss.NONE
    if skipped == 0:
        return Miss.LINK
    if previous_end_ns > expected_ns:
        return Miss.PROGRAM
    return Miss.HOST
