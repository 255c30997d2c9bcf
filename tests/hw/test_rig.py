"""Invalid rigs."""

import math

import pytest
from msgspec.structs import replace

from onrig.hw.rig import Actuator, Observation, Rig, Sensor, rig_problems
from tests.hw.rigs import PENDULUM

VOLTAGE = PENDULUM.actuators[0]


def test_a_valid_rig_has_no_problems() -> None:
    assert rig_problems(PENDULUM) == []


@pytest.mark.parametrize(
    ("rig", "path"),
    [
        (replace(PENDULUM, name=""), "name"),
        (replace(PENDULUM, name="a rig of a long name"), "name"),
        (replace(PENDULUM, lease_periods=0), "lease_periods"),
        (replace(PENDULUM, lease_periods=256), "lease_periods"),
        (replace(PENDULUM, sensors=(*PENDULUM.sensors, PENDULUM.sensors[0])), "sensors[2].name"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", math.nan), PENDULUM.sensors[1])), "sensors[0].resolution"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", 4096.0, wrap=True),)), "sensors[0].resolution"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", 1e-10, wrap=True),)), "sensors[0].resolution"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, name="seventeen letters"),)), "actuators[0].name"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, unit="thirteen long"),)), "actuators[0].unit"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, low=3.0),)), "actuators[0]"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, high=math.inf),)), "actuators[0]"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, safe=4.0),)), "actuators[0].safe"),
        (replace(PENDULUM, actuators=(replace(VOLTAGE, resolution=1e-12),)), "actuators[0].resolution"),
        (replace(PENDULUM, observations=(Observation("speed", "rad/s", -1.0, 1.0),)), "observations[0]"),
        (replace(PENDULUM, observations=(Observation("angle", "rad", 1.0, math.nan),)), "observations[0]"),
        (
            replace(PENDULUM, observations=(Observation("angle", "rad", -1.0, 1.0, cutoff_hz=-1.0),)),
            "observations[0].cutoff_hz",
        ),
        (
            replace(PENDULUM, observations=(Observation("angle", "rad", -1.0, 1.0, cutoff_hz=1.0),)),
            "observations[0].cutoff_hz",
        ),
        (replace(PENDULUM, observations=(Observation("angle", "deg", -1.0, 1.0),)), "observations[0].unit"),
        (
            replace(PENDULUM, observations=(Observation("w", "rad", -1.0, 1.0, derivative_of="angle"),)),
            "observations[0].unit",
        ),
        (replace(PENDULUM, sensors=(Sensor("angle", "deg", 0.1, wrap=True),)), "sensors[0].unit"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", 0.1, low=1.0),)), "sensors[0]"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", 0.1, low=1.0, high=1.0),)), "sensors[0]"),
        (replace(PENDULUM, sensors=(Sensor("angle", "rad", 1e-9, low=-9.0, high=9.0),)), "sensors[0]"),
    ],
)
def test_problems_of_an_invalid_rig_name_the_place(rig: Rig, path: str) -> None:
    assert path in [where for where, _ in rig_problems(rig)]


def test_more_channels_than_fit_in_a_frame_are_refused() -> None:
    actuators = tuple(Actuator(f"coil_{i}", "A", 0.01, 0.0, 1.0) for i in range(28))
    assert any("to fit into a frame" in text for _, text in rig_problems(replace(PENDULUM, actuators=actuators)))


def test_the_previous_command_is_a_signal_after_the_observations() -> None:
    rig = replace(PENDULUM, previous_command=True)
    assert [s.name for s in rig.signals] == ["angle", "velocity", "previous_voltage"]
    assert [s.name for s in PENDULUM.signals] == ["angle", "velocity"]
