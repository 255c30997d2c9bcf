from __future__ import annotations

import msgspec
import pytest

from onrig.hw.messages import State, Status
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_loading import load_run
from onrig.sim.plants.registry import uncovered_deviations
from onrig.sim.twin.options import TwinOptions
from tests.lab.attacks.deaths import _PLANTS, after_death, plant_settings, pumping_policy
from tests.lab.rig.wire import TimedState
from tests.runtime.samples import PENDULUM

ACTING, FALLEN = Status.ARMED, Status.SAFE | Status.FAULT


def seen(*frames: tuple[int, int, Status, float]) -> list[TimedState]:
    """Frames of (number, number of the answered frame, status, velocity in rad/s)."""
    states = [
        State(k, k * 20_000, status, 0, 1, answers, 0, (0, round(velocity / 0.001)), (0,), (0,))
        for k, answers, status, velocity in frames
    ]
    return [TimedState(s.t_us * 1000, s) for s in states]


def test_a_device_that_becomes_safe_within_its_lease_passes() -> None:
    assert after_death(seen((6, 5, ACTING, 9.0), (11, 5, ACTING, 12.0), (12, 0, FALLEN, 14.9)), PENDULUM) == []


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([(12, 5, ACTING, 9.0), (13, 0, FALLEN, 9.0)], "acted for 7 periods without its host"),
        ([(6, 5, ACTING, 9.0)], "never fell safe"),
        ([], "never fell safe"),
        ([(6, 5, ACTING, 9.0), (12, 0, FALLEN, -15.3)], "102.0% of the envelope"),
    ],
)
def test_violations_after_a_host_death_are_found(frames: list[tuple[int, int, Status, float]], message: str) -> None:
    (line,) = after_death(seen(*frames), PENDULUM)
    assert message in line


@pytest.mark.parametrize("shares", _PLANTS)
def test_the_plants_are_corners_of_the_box(shares: tuple[float, float, float]) -> None:
    config = load_run("pendulum", plant_settings(shares))
    plant = msgspec.convert(config.device.twin, TwinOptions).plant
    box = config.limits.predicted
    assert box is not None
    assert list(uncovered_deviations(plant, box, config.rig)) == []
    for (name, value), share in zip(plant.lumped.items(), shares, strict=True):
        assert value == pytest.approx(box.nominal[name] * share)


def test_the_policy_pushes_fully_along_the_motion() -> None:
    policy = PolicySession(pumping_policy(PENDULUM))
    assert policy.act((0.3, 4.0))[0] == pytest.approx(3.0, abs=1e-3)
    assert policy.act((0.3, -4.0))[0] == pytest.approx(-3.0, abs=1e-3)
