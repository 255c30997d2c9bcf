"""Timing of a sentinel, so that it disturbs no tick."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.record import RecordLayout
from onrig.tools.bench.loop.sentinel import PhaseTracker, Sentinels, first_wake_ns

PERIOD_NS = 1_000_000
LAYOUT = RecordLayout(2, 1, 1)


def record_aims(*sampled_ns: int) -> list[tuple[int, int]]:
    """Aims of a sentinel, given records of frames sampled at these times, one at a time."""
    aims: list[tuple[int, int]] = []
    tracker = PhaseTracker(PERIOD_NS, lambda *args: aims.append(args))
    for frame_sampled_ns in sampled_ns:
        records = np.zeros(1, LAYOUT.dtype)
        records["t_mono_ns"] = frame_sampled_ns
        tracker.add(records)
        tracker.add(records[:0])
    return aims


def test_it_measures_during_the_loops_rest() -> None:
    assert record_aims(7_000_000) == [(7_600_000, PERIOD_NS)]


def test_it_is_aimed_once_while_the_device_keeps_its_phase() -> None:
    assert len(record_aims(*(7_000_000 + n * PERIOD_NS + (-1) ** n * 20_000 for n in range(100)))) == 1


def test_it_is_aimed_again_after_a_pause_of_the_twin_or_a_drift_of_the_crystal() -> None:
    assert record_aims(7_000_000, 9_333_000, 10_333_000) == [(7_600_000, PERIOD_NS), (9_933_000, PERIOD_NS)]
    drifting_aims = record_aims(*(n * (PERIOD_NS + 100) for n in range(2001)))
    assert len(drifting_aims) == 1 + 200_000 // 50_100
    phases_near_period = record_aims(7_000_000, 8_990_000)
    assert len(phases_near_period) == 1


@given(st.integers(0, 10**15), st.integers(100_000, 10**9), st.integers(0, 10**15))
def test_its_first_measurement_is_soon_and_not_already_missed(anchor_ns: int, period_ns: int, now_ns: int) -> None:
    first_ns = first_wake_ns(anchor_ns, period_ns, now_ns)
    assert period_ns < first_ns - now_ns <= 2 * period_ns
    assert (first_ns - anchor_ns) % period_ns == 0


def test_a_sentinel_that_is_aimed_elsewhere_continues_and_reports_its_measurements() -> None:
    with Sentinels([0], None, priority=0) as sentinels:
        sentinels.aim(0, 0, 2_000_000)
        sentinels.aim(5, 0, 2_000_000)  # there is no receiver
        sentinels.clear_aim(0)
        (record,) = sentinels.records()
    assert (record.kind, record.cpu) == ("timer", 0)
    assert sum(record.counts) >= 1
    assert max(woken_ns - due_ns for due_ns, woken_ns in [*record.stalls, (0, 0)]) <= record.max_ns
