"""The velocity reported by the Pico lags by no more than its README and that of `onrig init` state."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.safety.magman import MagmanBox, _max_acceleration
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.tools.first_rig import rig_files
from onrig.tools.load import load

RIGS = Path("hw/firmware/rigs")
README = Path("hw/firmware/README.md")


def hardest(config: str) -> float:
    """Largest acceleration of any plant covered by the shield, within its envelope."""
    run = load(config)
    box = run.limits.predicted
    more = 1.0 + box.spread if box is not None else 1.0
    most = [actuator.high for actuator in run.rig.actuators]
    if isinstance(box, MagmanBox):
        at = np.array(list(box.magnets.values()))
        fastest = run.limits.envelope[box.velocity].high
        return (
            _max_acceleration(at, np.array(most), more * box.pull_m6_per_a2_s2, box.c2_m2)
            + more * box.friction_per_s * fastest
        )
    assert isinstance(box, PendulumBox)
    fastest = run.limits.envelope[box.velocity].high
    return more * (box.gravity_per_s2 + box.gain_per_v_s2 * most[0] + box.damping_per_s * fastest)


@pytest.mark.parametrize(
    ("config", "header", "figure", "sentence"),
    [
        ("pendulum-hardware", "pendulum", 1.6, "1.6 rad/s (`pendulum-hw`)"),
        ("pendulum", "pendulum", 0.35, "0.35 rad/s (`pendulum`)"),
        ("magman", "magman", 0.085, "0.085 m/s"),
    ],
)
def test_the_velocity_lags_by_no_more_than_stated(config: str, header: str, figure: float, sentence: str) -> None:
    polls = re.search(r"_VELOCITY_POLLS (\d+)", (RIGS / f"{header}.h").read_text())
    assert polls is not None
    n, (place, velocity) = int(polls[1]), load(config).rig.sensors[:2]
    # A line through readings 1 ms apart, the last up to 1 ms old; each is off by half a count, the slope is rounded.
    behind = 1e-3 * ((n - 1) / 2 + 1) * hardest(config)
    weights = np.abs(2 * np.arange(n) - n + 1) * 6 / (n * (n * n - 1))
    counts = 0.5 * weights.sum() * 1e3 * place.resolution + velocity.resolution
    assert 0.9 * figure < behind + counts <= figure
    assert sentence in " ".join(README.read_text().split())
    if config != "pendulum":
        assert f"sensor_error: {{velocity: {figure}}}" in rig_files(header, "bench")["README.md"]
        load(config, [f"limits.predicted.sensor_error={{velocity: {figure}}}"])
