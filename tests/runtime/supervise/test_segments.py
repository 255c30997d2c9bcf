"""Sizes of a run's shared memory."""

from __future__ import annotations

import pytest

from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.supervise.segments import ring_records


def _run(rate_hz: float, checkpoint_s: float) -> RunConfig:
    settings = [f"rate_hz={rate_hz:g}", f"checkpoint_s={checkpoint_s:g}", "limits.predicted.late_us=100"]
    return load_run("pendulum", ["device.pace=realtime", *settings])


@pytest.mark.parametrize("rate_hz", [50, 1000, 2000])
@pytest.mark.parametrize("checkpoint_s", [0.5, 5.0, 60.0])
def test_in_real_time_half_of_the_ring_outlasts_two_checkpoints(rate_hz: int, checkpoint_s: float) -> None:
    half_ring = ring_records(_run(rate_hz, checkpoint_s)) // 2
    assert half_ring >= max(8192, 2 * checkpoint_s * rate_hz)


def test_a_faster_twin_fills_the_ring_sooner_and_the_ring_has_a_limit() -> None:
    faster_config = load_run("pendulum", ["device.pace={scaled: 100}"])
    assert ring_records(faster_config) == 4 * 5 * 5000
    assert ring_records(_run(2000, 3600)) == 1 << 20
