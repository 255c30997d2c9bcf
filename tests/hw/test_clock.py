"""The map from device time to host time, on synthetic receive times."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.clock import ClockSync

BOOTED_NS = 7_000_000_000


def receipts(
    n: int, rate_hz: int, *, drift_ppm: float = 0.0, late: float = 0.0, time_scale: float = 1.0, seed: int = 1
) -> Iterator[tuple[int, int, float]]:
    """Yield (device time us, receive time ns, the same without delays): 100 us of jitter, ``late`` of them by ms."""
    rng = random.Random(seed)
    for k in range(1, n + 1):
        t_us = k * 1_000_000 // rate_hz
        best_ns = BOOTED_NS + t_us * 1000 / time_scale * (1 + drift_ppm * 1e-6)
        held_up_ns = rng.expovariate(1 / 100e3)
        if rng.random() < late:
            held_up_ns += rng.uniform(1e6, 50e6)
        yield t_us, round(best_ns + held_up_ns), best_ns


@pytest.mark.parametrize("time_scale", [0.5, 1.0, 10.0])
def test_without_jitter_the_map_is_exact_from_the_first_sample(time_scale: float) -> None:
    sync = ClockSync(time_scale)
    for k in range(1, 500):
        host_ns = BOOTED_NS + round(k * 20_000_000 / time_scale)
        sync.add(k * 20_000, host_ns)
        assert abs(sync.host_time_ns(k * 20_000) - host_ns) <= 1
    assert abs(sync.drift_ppm) < 0.01


@pytest.mark.parametrize("drift_ppm", [-200.0, 0.0, 80.0])
@pytest.mark.parametrize("rate_hz", [50, 500])
def test_drift_is_found_under_jitter(rate_hz: int, drift_ppm: float) -> None:
    sync = ClockSync()
    for t_us, received_ns, _ in receipts(10 * rate_hz, rate_hz, drift_ppm=drift_ppm):
        sync.add(t_us, received_ns)
    assert sync.drift_ppm == pytest.approx(drift_ppm, abs=0.5)


@pytest.mark.parametrize("late", [0.0, 0.05, 0.8])
def test_late_receipts_do_not_move_the_map(late: float) -> None:
    sync = ClockSync()
    worst_ns = 0.0
    for k, (t_us, received_ns, best_ns) in enumerate(receipts(5000, 500, drift_ppm=50.0, late=late)):
        sync.add(t_us, received_ns)
        if k > 1500:
            worst_ns = max(worst_ns, abs(sync.host_time_ns(t_us) - best_ns))
    assert worst_ns < 5_000


def test_a_scaled_twin_is_mapped_at_its_pace() -> None:
    sync = ClockSync(time_scale=10.0)
    for t_us, received_ns, _ in receipts(20_000, 50, drift_ppm=30.0, time_scale=10.0):
        sync.add(t_us, received_ns)
    assert sync.drift_ppm == pytest.approx(30.0, abs=0.5)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 3_000_000), st.integers(0, 40_000_000)), min_size=1, max_size=80),
    st.integers(2, 40),
)
def test_no_frame_in_the_window_is_ever_early(steps: list[tuple[int, int]], window: int) -> None:
    sync = ClockSync(window=window)
    t_us = 0
    seen: list[tuple[int, int]] = []
    for step_us, held_up_ns in steps:
        t_us += step_us
        seen.append((t_us, t_us * 1000 + held_up_ns))
        sync.add(*seen[-1])
        for device_us, received_ns in seen[-window:]:
            assert received_ns - sync.host_time_ns(device_us) >= -2


def test_a_drift_that_changes_is_followed_within_two_windows() -> None:
    sync = ClockSync(window=500)
    receipt_ns = 0.0
    rng = random.Random(2)
    for k in range(1, 4001):
        receipt_ns += 20e6 * (1 + (0.0 if k < 2000 else 100e-6))
        sync.add(k * 20_000, round(receipt_ns + rng.expovariate(1 / 50e3)))
    assert sync.drift_ppm == pytest.approx(100.0, abs=0.5)


def test_samples_whose_device_time_does_not_advance_are_ignored() -> None:
    sync = ClockSync()
    sync.add(1000, 5_000_000)
    sync.add(1000, 1)
    sync.add(900, 1)
    assert sync.host_time_ns(1000) == 5_000_000


def test_memory_stays_bounded_even_if_every_point_is_on_the_hull() -> None:
    sync = ClockSync(window=100)
    for k in range(1, 5000):
        sync.add(k * 1000, k * k * 100)
    assert len(sync._older_hull.xs) <= 200
    assert len(sync._younger_hull.xs) <= 200


def test_a_reset_map_starts_from_the_next_sample() -> None:
    sync = ClockSync()
    for t_us, received_ns, _ in receipts(500, 50, drift_ppm=90.0):
        sync.add(t_us, received_ns)
    sync.reset()
    assert not sync.is_ready
    sync.add(20_000, 42)
    assert sync.host_time_ns(20_000) == 42
    assert sync.drift_ppm == 0.0


def test_there_is_no_map_before_the_first_sample() -> None:
    with pytest.raises(ValueError, match="no sample"):
        ClockSync().host_time_ns(0)


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("nan")])
def test_lockstep_has_no_map(time_scale: float) -> None:
    with pytest.raises(ValueError, match="not related"):
        ClockSync(time_scale)
