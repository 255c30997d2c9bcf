from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.limits import Limits, limit_findings
from tests.runtime.samples import MAGMAN, PENDULUM
from tests.runtime.spoiled import collect_problems

SPOILED = {
    "observation": ("pendulum", "limits.predicted.angle=angel", "no observation 'angel' (did you mean 'angle'"),
    "actuator": ("pendulum", "limits.predicted.actuator=volts", "no actuator 'volts' (did you mean 'voltage'"),
    "gain": ("pendulum", "limits.predicted.gain_per_v_s2=0", "expected at least 1e-18, got 0"),
    "damping": ("pendulum", "limits.predicted.damping_per_s=-1", "expected 0 or more, got -1"),
    "dead band": ("pendulum", "limits.predicted.dead_band=-1", "expected 0 or more, got -1"),
    "wide dead band": ("pendulum", "limits.predicted.dead_band=2.9", "allow no velocity"),
    "spread": ("pendulum", "limits.predicted.spread=1", "expected 0 to less than 1, got 1"),
    "late": ("pendulum", "limits.predicted.late_us=20001", "expected 0 to one period (20000 us), got 20001"),
    "late plant": (
        "pendulum",
        "limits.predicted.plant_delay_us=40001",
        "expected 0 to 2 periods (40000 us), got 40001",
    ),
    "delay not in late_us": (
        "pendulum",
        "limits.predicted.plant_delay_us=3000",
        "expected 3000 to 23000 us, the plant's delay and a period, got 1000",
    ),
    "error": (
        "pendulum",
        "limits.predicted.sensor_error={speed: 1}",
        "for angle or velocity at limits.predicted",
    ),
    "no envelope": ("pendulum", "limits.envelope={}", "expected an envelope of 'velocity' that contains 0"),
    "one-sided": (
        "pendulum",
        "limits.envelope={velocity: {low: 1, high: 15}}",
        "an envelope of 'velocity' that contains 0",
    ),
    "too narrow": ("pendulum", "limits.envelope.velocity.high=8", "falling from the upright under 0 V exceeds 8 rad/s"),
    "no brake left": (
        "pendulum",
        "limits.predicted.dead_band=3",
        "shorten the lease (rig.lease_periods) or the spread, or the dead band",
    ),
    "too late": ("pendulum", "rig.lease_periods=40", "shorten the lease (rig.lease_periods) or the spread"),
    "far too late": ("pendulum", "rig.lease_periods=255", "the maximum is 5 s"),
    "no brake": ("pendulum", "limits.fallback={kind: safe}", "expected the fallback to damp velocity with voltage"),
    "jerk name": ("pendulum", "limits.jerk_per_s2={torque: 1}", "no actuator 'torque'"),
    "jerk sign": ("pendulum", "limits.jerk_per_s2={voltage: 0}", "expected a positive jerk, got 0"),
    "small jerk": ("pendulum", "limits.jerk_per_s2={voltage: 0.01}", "0.01 V/s^2 at 50 Hz is less than one count"),
    "magnet": ("magman", "limits.fallback.magnets={current_5: 0.125}", "no actuator 'current_5'"),
    "other magnets": ("magman", "limits.fallback.magnets.current_1=0.02", "the same magnets as in limits.predicted"),
    "one place": ("magman", "limits.predicted.magnets.current_1=0.05", "magnets at different positions"),
    "no magnets": ("magman", "limits.fallback.magnets={}", "expected 1 to 4 magnets"),
    "slow": ("magman", "limits.fallback.slow=0.3", "expected 0 < slow <= brake_below, got 0.3, 0.2"),
    "fast hold": ("magman", "limits.fallback.brake_below=0.5", "the envelope allows 0.6"),
    "coil at rest": ("magman", "rig.actuators[0].safe=0.1", "range from 0 or more, safe value 0"),
    "brake": (
        "magman",
        "limits.fallback={kind: damp, actuator: current_1, observation: velocity, full_at: 1}",
        "'current_1' cannot brake in both directions: its safe output 0 A^2",
    ),
    "half a range": ("pendulum", "limits.range={voltage: [-3, 0]}", "is at an end of its range [-3, 0]"),
}


@pytest.mark.parametrize(("run", "override", "message"), SPOILED.values(), ids=SPOILED.keys())
def test_contradictory_limits_are_reported_at_their_place(run: str, override: str, message: str) -> None:
    (problem,) = collect_problems(run, override)
    assert message in problem
    assert " at limits." in problem


def test_the_problem_is_reported_at_its_line_in_the_file() -> None:
    path, line, column, _ = collect_problems("pendulum", "rig.lease_periods=40")[0].split(":", 3)
    text = Path(path).read_text(encoding="utf-8").splitlines()
    assert text[int(line) - 1].strip().startswith(("predicted", "kind"))
    assert int(column) > 1


@pytest.mark.parametrize("changes", [{"rate_hz": 0.0}, {"rate_hz": -1.0}, {"rate_hz": 1e9}])
def test_a_nonsensical_rate_is_left_to_its_own_check(changes: dict[str, float]) -> None:
    assert list(limit_findings(msgspec.structs.replace(PENDULUM, **changes))) == []


def test_shipped_limits_do_not_contradict_each_other() -> None:
    for config in (PENDULUM, MAGMAN, load_run("pendulum-hardware")):
        assert list(limit_findings(config)) == []


@pytest.mark.parametrize(
    ("resolution", "limits", "counts"),
    [
        (0.5, (-1.3, 1.3), (-2, 2)),  # 3 counts would be 1.5 V
        (0.1, (-0.3, 0.3), (-3, 3)),  # 0.3 / 0.1 is a little less than 3
        (0.0001, (-3.0, 3.0), (-30_000, 30_000)),
        (0.5, (0.0, 0.4), (0, 0)),
    ],
)
def test_a_range_in_counts_lies_within_it(
    resolution: float, limits: tuple[float, float], counts: tuple[int, int]
) -> None:
    actuator = msgspec.structs.replace(PENDULUM.rig.actuators[0], resolution=resolution)
    rig = msgspec.structs.replace(PENDULUM.rig, actuators=(actuator,))
    assert Limits(range={actuator.name: limits}).count_ranges(rig) == (counts,)


def test_a_prediction_covers_what_integer_counts_can_reach() -> None:
    coarse_actuators = [msgspec.structs.replace(PENDULUM.rig.actuators[0], resolution=0.5)]
    rig = msgspec.structs.replace(PENDULUM.rig, actuators=tuple(coarse_actuators))
    limits = msgspec.structs.replace(PENDULUM.limits, range={"voltage": (-1.3, 1.3)})
    assert limits.context(rig, 0.02).ranges == {"voltage": (-1.0, 1.0)}
    assert PENDULUM.limits.context(PENDULUM.rig, 0.02).ranges == {"voltage": (-3.0, 3.0)}


def test_a_range_without_an_integer_count_is_refused() -> None:
    actuator = msgspec.structs.replace(PENDULUM.rig.actuators[0], resolution=0.5, safe=0.2)
    run = msgspec.structs.replace(
        PENDULUM,
        rig=msgspec.structs.replace(PENDULUM.rig, actuators=(actuator,)),
        limits=Limits(range={actuator.name: (0.1, 0.4)}),
    )
    assert any("contains no multiple of the resolution, 0.5 V" in message for _, message in limit_findings(run))


def test_a_brake_that_rests_at_an_end_of_its_range_is_refused_for_fallback_and_reset() -> None:
    problems = collect_problems("pendulum", "rig.actuators[0].low=0")
    message = "'voltage' cannot brake in both directions: its safe output 0 V is at an end of its range"
    assert [message in problem for problem in problems] == [True, True]
    assert ["limits.fallback.actuator" in p or "task.reset.actuator" in p for p in problems] == [True, True]
