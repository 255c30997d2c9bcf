"""`onrig check` compares units, roles and magnitudes wherever two names meet, for a twin and for a device on a port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.config.problem import ConfigError
from onrig.tools.load import load_for_rig

PORT = "device={port: {path: /dev/ttyACM77}}"
DERIVED = "rig.observations[1]={{name: velocity, unit: rad/s, low: -30, high: 30, derivative_of: angle, cutoff_hz: {}}}"
SENSOR_ERROR = "limits.predicted.sensor_error={{velocity: {}}}"
NO_PREDICTION = "limits.predicted=null"
FIFO = "selection.strategy='FIFO[Uniform]'"
FOUR_COILS = "{{current_1: {0}, current_2: {1}, current_3: {2}, current_4: {3}}}"
COILS_IN_MM = FOUR_COILS.format(25, 50, 75, 100)
ONE_COIL = "{current_1: 0.025}"

REFUSED: Final[dict[str, tuple[str, list[str], str]]] = {
    "one coil of four": (
        "magman",
        [f"limits.predicted.magnets={ONE_COIL}", f"limits.fallback.magnets={ONE_COIL}"],
        "'current_3' drives the plant as 'current_1' does, but the prediction omits it",
    ),
    "magnets in mm": (
        "magman",
        [f"limits.predicted.magnets={COILS_IN_MM}", f"limits.fallback.magnets={COILS_IN_MM}"],
        "25 lies far from the track of 'position', -0.035 to 0.105 m: give it in m at limits.predicted.magnets",
    ),
    "hold in mm": (
        "magman",
        [NO_PREDICTION, f"limits.fallback.magnets={COILS_IN_MM}"],
        "at limits.fallback.magnets.current_1",
    ),
    "reset in mm": ("magman", [f"task.reset.coils={COILS_IN_MM}"], "at task.reset.coils.current_4"),
    "reset elsewhere": (
        "magman",
        ["task.reset.coils.current_1=0.02"],
        "0.025 m in limits.predicted, but at 0.02 m here",
    ),
    "safe at 2.9 V": ("pendulum", ["rig.actuators[0].safe=2.9"], "at limits.predicted"),
    "safe at 3 V": ("pendulum", ["rig.actuators[0].safe=3"], "cannot brake in both directions"),
    "coil on when safe": ("magman", ["rig.actuators[0].safe=0.3"], "range from 0 or more, safe value 0"),
    "velocity of the angle's sensor": (
        "pendulum",
        ["rig.observations[1].sensor=angle"],
        "'velocity' is in 'rad/s', sensor 'angle' is in 'rad', and units are never converted",
    ),
    "degrees into rad": ("pendulum", ["rig.sensors[0]={name: angle, unit: deg, resolution: 0.01}"], "in 'deg'"),
    "wrapped degrees": (
        "pendulum",
        ["rig.sensors[0].unit=deg", "rig.observations[0].unit=deg"],
        "a wrapped angle must be in rad",
    ),
    "plants in degrees": (
        "pendulum",
        [
            "rig.sensors=[{name: angle, unit: deg, resolution: 0.01}, {name: velocity, unit: deg/s, resolution: 0.1}]",
            "rig.observations[0].unit=deg",
            "rig.observations[1].unit=deg/s",
        ],
        "these plants move in 'rad', but 'angle' is in 'deg' at limits.predicted",
    ),
    "exchanged in predicted": (
        "pendulum",
        ["limits.predicted.angle=velocity", "limits.predicted.velocity=angle"],
        "these plants move in 'rad', but 'velocity' is in 'rad/s' at limits.predicted",
    ),
    "twice the same": ("magman", ["limits.predicted.velocity=position"], "expected the velocity of 'position'"),
    "millivolts": ("pendulum", ["rig.actuators[0].unit=mV"], "driven in 'V', but 'voltage' is in 'mV'"),
    "filtered measurement": ("pendulum", ["rig.observations[1].cutoff_hz=0.001"], "only an estimate"),
    "filtered away": (
        "pendulum",
        [DERIVED.format(0.001), SENSOR_ERROR.format(500)],
        "a low-pass filter of 0.001 Hz delays by 159 s: at most 1 s is allowed at rig.observations[1].cutoff_hz",
    ),
    "filtered away without a prediction": (
        "pendulum",
        [DERIVED.format(0.001), NO_PREDICTION],
        "a low-pass filter of 0.001 Hz",
    ),
    "an estimate's error": (
        "pendulum",
        [DERIVED.format(10), SENSOR_ERROR.format(0.5)],
        "while frames are lost: these plants change it by up to 3.08 rad/s in that time, more than 0.5",
    ),
    "an estimate's sign": (
        "pendulum",
        [DERIVED.format(0), SENSOR_ERROR.format(3), "rig.lease_periods=11"],
        "a lease of 0.22 s, whose frames may be lost, so that the estimate has the wrong sign",
    ),
    "lease of minutes": ("magman", ["rig.lease_periods=255", "rate_hz=1"], "for 255 s; the maximum is 10 s"),
    "lease without a prediction": (
        "pendulum",
        ["rig.lease_periods=255", "rate_hz=1", NO_PREDICTION],
        "for 255 s; the maximum is 10 s",
    ),
    "boundless": (
        "pendulum",
        ["limits.envelope.velocity={low: -1e9, high: 1e9}"],
        "wider than the readings of 'velocity'",
    ),
    "wide": (
        "pendulum",
        [NO_PREDICTION, "limits.envelope.velocity={low: -31, high: 31}"],
        "[-30, 30], so it never acts",
    ),
    "beyond the sensor": (
        "magman",
        ["limits.envelope.velocity={low: -2.1, high: 2.1}"],
        "readings of 'velocity', [-2, 2]",
    ),
    "start outside": ("pendulum", ["limits.envelope.angle={low: 1, high: 3}"], "at task.start.angle"),
    "start too fast": ("pendulum", ["task.start.velocity=14.9"], "even the safe output may leave the envelope"),
    "reset too loose": ("magman", ["task.reset.within.velocity=1"], "at task.reset.within.velocity"),
    "damp the angle": (
        "pendulum",
        [NO_PREDICTION, "limits.fallback.observation=angle"],
        "expected a velocity, but 'angle' is",
    ),
    "full at 100": ("pendulum", [NO_PREDICTION, "limits.fallback.full_at=100"], "'velocity' reads at most 30 rad/s"),
    "hold exchanged": (
        "magman",
        [NO_PREDICTION, "limits.fallback.position=velocity", "limits.fallback.velocity=position"],
        "expected the velocity of 'velocity'",
    ),
    "hold in mm/s": ("magman", [NO_PREDICTION, "limits.fallback.brake_below=200"], "at limits.fallback.brake_below"),
    "settle the angle": ("pendulum", ["task.reset.velocity=angle"], "expected a velocity, but 'angle' is in 'rad'"),
    "settle at 100": (
        "pendulum",
        ["task.reset.full_at=100"],
        "reads at most 30 rad/s at task.reset.full_at",
    ),
    "draw exchanged": ("magman", ["task.reset.velocity=position"], "expected the velocity of 'position'"),
    "wall of a velocity": (
        "magman",
        ["task.reward.wall.observation=velocity"],
        "expected a position, but 'velocity' is",
    ),
}
WARNED: Final[dict[str, tuple[str, list[str], str]]] = {
    "brake at the edge": (
        "pendulum",
        [NO_PREDICTION, "limits.fallback.full_at=20"],
        "the fallback brakes with only 75% of full effort",
    ),
    "brake on noise": ("pendulum", [NO_PREDICTION, "limits.fallback.full_at=0.002"], "but one count is 0.001 rad/s"),
    "slow filter": ("pendulum", [DERIVED.format(1), NO_PREDICTION], "longer than the lease of 0.1 s: filter less"),
    "long lease": ("magman", ["rig.lease_periods=100"], "holds the last command of a dead host for 2 s"),
    "start in degrees": ("pendulum", ["task.start.angle=180"], "180 rad lies outside the readings of 'angle'"),
    "target in degrees": ("pendulum", ["task.reward.target.angle=180"], "check its unit, at task.reward.target.angle"),
    "coarse": ("pendulum", ["rig.sensors[0].resolution=0.2"], "is only 31 counts of 0.2 rad"),
    "range in degrees": (
        "pendulum",
        ["rig.observations[0]={name: angle, unit: rad, low: -180, high: 180}"],
        "is wrapped into one turn, 6.28 rad, but has a range of 360",
    ),
    "narrow": ("magman", ["rig.observations[1].low=-500"], "less than 1% of the range of 'velocity'"),
    "certain": ("pendulum", ["limits.predicted.spread=0.0001"], "a plant is rarely known to within 0.01%"),
    "light": ("pendulum", ["limits.predicted.gravity_per_s2=0.024", "limits.predicted.spread=0.3"], "gravity by 0.024"),
    "dead": ("magman", ["limits.predicted.dead_band=0.7"], "no command is certain to take effect: the largest is 0.6"),
    "strong coils": ("magman", ["task.reset.strength=1.7e-5"], "limits.predicted has 1.725e-08 for the same coils"),
    "late and unseen": (
        "pendulum",
        ["limits.predicted.late_us=15000"],
        "commands act up to 15 ms of a period of 20 ms after their sample, but the command",
    ),
}


def verdict(run: str, overrides: Sequence[str], *, is_on_port: bool = False) -> tuple[list[str], list[str]]:
    """Problems and warnings."""
    warnings: list[str] = []
    try:
        load_for_rig(
            run, [*overrides, *([PORT] if is_on_port else [])], on_warning=lambda problem: warnings.append(str(problem))
        )
    except ConfigError as error:
        return [str(problem) for problem in error.problems], warnings
    return [], warnings


@pytest.mark.parametrize("is_on_port", [False, True], ids=["twin", "port"])
@pytest.mark.parametrize("case", REFUSED)
def test_limits_that_guard_nothing_are_refused_on_twin_and_port(case: str, is_on_port: bool) -> None:
    run, overrides, message = REFUSED[case]
    problems, _ = verdict(run, overrides, is_on_port=is_on_port)
    assert any(message in p for p in problems), problems


@pytest.mark.parametrize("case", WARNED)
def test_possible_but_unlikely_values_are_advised_against(case: str) -> None:
    run, overrides, message = WARNED[case]
    problems, warnings = verdict(run, overrides, is_on_port=True)
    assert problems == []
    assert any(message in w for w in warnings), warnings


TWINS: Final[dict[str, tuple[list[str], str]]] = {
    "two periods late": (
        [NO_PREDICTION, "device.twin.latency_us=40000", "rig.previous_command=true"],
        "a command acts within one period at the latest (20000 us): set longer delays in the plant (plant.delay_s)",
    ),
    "unseen delay": (
        [NO_PREDICTION, "device.twin.plant.delay_s=0.015"],
        "the command in force is not a policy input: set rig.previous_command: true",
    ),
    "dead band beyond the range": (
        [NO_PREDICTION, "device.twin.plant.dead_band=3"],
        "no command moves this plant, since",
    ),
    "hardly ever written": (
        ["selection.write_probability=0.00001"],
        "stores about 1 experiences, fewer than a batch of 16",
    ),
    "fewer than learning starts with": (
        ["task.episode_s=1", "episodes=20", FIFO, "learner.learning_starts=1001"],
        "stores about 1e+03 experiences, fewer than learner.learning_starts (1001)",
    ),
    "hardly any steps": (
        ["task.episode_s=0.1", "episodes=2", FIFO],
        "stores about 10 experiences, fewer than a batch of 16",
    ),
}


@pytest.mark.parametrize("case", TWINS)
def test_a_twin_that_teaches_nothing_comes_with_advice(case: str) -> None:
    overrides, message = TWINS[case]
    problems, warnings = verdict("pendulum", overrides)
    assert problems == []
    assert any(message in w for w in warnings), warnings


def test_a_policy_that_sees_the_command_in_force_knows_the_delay() -> None:
    delayed_pendulum = [NO_PREDICTION, "device.twin.plant.delay_s=0.015", "rig.previous_command=true"]
    assert not any("is not a policy input" in w for w in verdict("pendulum", delayed_pendulum)[1])
    angle_inputs = "task.inputs=[{observation: angle, form: cos}, {observation: angle, form: sin}]"
    assert any("is not a policy input" in w for w in verdict("pendulum", [*delayed_pendulum, angle_inputs])[1])


def test_the_latency_of_a_twin_is_that_of_its_device_plus_its_plant() -> None:
    assert verdict("pendulum", ["device.twin.latency_us=1000"]) == ([], [])
    delays = ["device.twin.latency_us=800", "device.twin.plant.delay_s=0.0004", "limits.predicted.plant_delay_us=400"]
    for overrides in (["device.twin.latency_us=1200"], delays):
        (problem,) = verdict("pendulum", overrides)[0]
        assert "the twin acts 1200 us late, but the shield covers 1000 us (late_us) at limits.predicted" in problem


@pytest.mark.parametrize(("path", "is_warned"), [("/dev/ttyUSB0", True), ("/dev/ttyACM0", False)])
def test_a_slow_line_makes_commands_late(path: str, is_warned: bool) -> None:
    _, warnings = verdict("pendulum", [f"device={{port: {{path: {path}, baud: 115200}}}}"])
    assert any("take 5556 us on this connection, but the shield covers 1000 us" in w for w in warnings) == is_warned
    assert verdict("pendulum", [f"device={{port: {{path: {path}}}}}"]) == ([], [])


def test_a_port_on_the_command_line_is_refused_like_the_twin_in_the_file() -> None:
    with pytest.raises(ConfigError, match="the twin's plant has gain_per_v_s2"):
        load_for_rig("pendulum", ["device.twin.plant.inertia=hardware"], port="/dev/ttyACM77")
    assert load_for_rig("pendulum", port="/dev/ttyACM77").device.twin is None


@pytest.mark.parametrize("run", ["pendulum", "pendulum-hardware", "pendulum-hidden", "pendulum-overnight", "magman"])
@pytest.mark.parametrize("is_on_port", [False, True], ids=["twin", "port"])
def test_shipped_configurations_need_no_advice(run: str, is_on_port: bool) -> None:
    assert verdict(run, ["device.pace=realtime"], is_on_port=is_on_port) == ([], [])


UNITS: Final[dict[str, list[str]]] = {
    "rad": ["deg", "mrad", "rad/s"],
    "rad/s": ["rad", "deg/s", "rpm", "rad/s^2"],
    "V": ["mV", "A"],
    "m": ["mm", "cm", "m/s"],
    "m/s": ["mm/s", "m", "m/s^2"],
    "A^2": ["A", "mA^2"],
}
UNCHANGED_KEYS: Final = ("resolution", "release", "fallback_dwell_s", "slow")
"""Magnitudes on which no promise depends: the device's own, compared with its hello, and those that delay a release."""
UNCHECKED_KEYS: Final = ("damping_per_s", "friction_per_s")
"""Parameters of plants that are given only once: compared with a twin, which a port does not have."""


def load_builtins(run: str) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(load_for_rig(run))
    return data


def leaves(tree: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{path}[{i}]")
    else:
        yield path, tree


def swap_overrides(run: str) -> Iterator[list[str]]:
    """Each unit of the rig replaced by another, and each observation's name in limits and reset by the other one."""
    data = load_builtins(run)
    names = [o["name"] for o in data["rig"]["observations"]]
    for path, value in leaves(data["rig"], "rig"):
        if path.endswith(".unit"):
            yield from ([f"{path}={other}"] for other in UNITS[str(value)])
    for section in (data["limits"], data["task"]["reset"]):
        for path, value in leaves(section, "limits" if section is data["limits"] else "task.reset"):
            if value in names:
                yield [f"{path}={names[1 - names.index(str(value))]}"]


def magnitude_overrides(run: str) -> Iterator[list[str]]:
    """Each limit and parameter of the shield multiplied by a thousand, and ranges of observations on both sides."""
    for path, value in leaves(load_builtins(run)["limits"], "limits"):
        if isinstance(value, float) and value and path.rpartition(".")[2] not in UNCHANGED_KEYS:
            yield [f"{path}={1e3 * value!r}"]
    for i, o in enumerate(load_builtins(run)["rig"]["observations"]):
        yield [f"rig.observations[{i}].{side}={1e3 * o[side]!r}" for side in ("low", "high")]


SWAP_CASES = [(run, overrides) for run in ("pendulum", "magman") for overrides in swap_overrides(run)]
MAGNITUDE_CASES = [(run, overrides) for run in ("pendulum", "magman") for overrides in magnitude_overrides(run)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SWAP_CASES), st.booleans())
def test_no_exchanged_unit_or_name_goes_undetected(altered_run: tuple[str, list[str]], is_on_port: bool) -> None:
    problems, _ = verdict(*altered_run, is_on_port=is_on_port)
    assert problems, altered_run


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MAGNITUDE_CASES), st.booleans())
def test_no_thousandfold_magnitude_goes_undetected(altered_run: tuple[str, list[str]], is_on_port: bool) -> None:
    if is_on_port and any(name in altered_run[1][0] for name in UNCHECKED_KEYS):
        return
    problems, warnings = verdict(*altered_run, is_on_port=is_on_port)
    assert problems or warnings, altered_run
