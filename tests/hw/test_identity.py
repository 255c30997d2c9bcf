"""Detection of a device other than the configured one."""

import math

import pytest
from msgspec.structs import replace

from onrig.hw.identity import DeviceMismatch, check_channels, check_hello
from onrig.hw.messages import PROTOCOL_VERSION, Capability, Channel, Hello
from tests.hw.fake_device import channels_of, hello_of
from tests.hw.rigs import PENDULUM

HELLO = hello_of(PENDULUM)
ANGLE, VELOCITY, VOLTAGE = CHANNELS = channels_of(PENDULUM)


def test_the_configured_device_passes() -> None:
    check_hello(HELLO, PENDULUM)
    check_hello(HELLO._replace(capabilities=Capability.RELEASES), replace(PENDULUM, safe_output="released"))
    check_channels(CHANNELS, PENDULUM)


@pytest.mark.parametrize(
    ("hello", "both"),
    [
        (HELLO._replace(protocol=9), f"protocol version: the device has 9, the configuration {PROTOCOL_VERSION}"),
        (HELLO._replace(rig="magman"), "rig name: the device has magman, the configuration pendulum"),
        (HELLO._replace(n_sensors=3), "number of sensors: the device has 3, the configuration 2"),
        (HELLO._replace(n_actuators=0), "number of actuators: the device has 0, the configuration 1"),
        (
            HELLO._replace(capabilities=Capability.RELEASES),
            "safe output (rig.safe_output): the device has released, the configuration driven",
        ),
    ],
)
@pytest.mark.rules("H602")
def test_a_foreign_hello_is_refused_with_both_values(hello: Hello, both: str) -> None:
    with pytest.raises(DeviceMismatch) as caught:
        check_hello(hello, PENDULUM)
    assert str(caught.value) == both


@pytest.mark.parametrize(
    ("channels", "both"),
    [
        ((VELOCITY, ANGLE, VOLTAGE), "the device has velocity, angle, voltage, the configuration angle, velocity, v"),
        ((ANGLE._replace(name="theta"), VELOCITY, VOLTAGE), "the device has theta, velocity"),
        (
            (ANGLE, VELOCITY._replace(unit="deg/s"), VOLTAGE),
            "unit of sensor 'velocity': .* has deg/s, .* rad/s",
        ),
        ((ANGLE, VELOCITY._replace(resolution=1.00001e-3), VOLTAGE), "resolution of sensor 'velocity': .*0.00100001"),
        ((ANGLE, VELOCITY._replace(resolution=math.nan), VOLTAGE), "resolution of sensor 'velocity': .*nan"),
        ((ANGLE._replace(wrap=False), VELOCITY, VOLTAGE), "wrapping of sensor 'angle': the device has False, .* True"),
        ((ANGLE, VELOCITY, VOLTAGE._replace(low=-20_000)), "low limit of actuator 'voltage': .* -2 V, .* -3 V"),
        ((ANGLE, VELOCITY, VOLTAGE._replace(high=29_999)), "high limit of actuator 'voltage': .* 2.9999 V, .* 3 V"),
        ((ANGLE, VELOCITY, VOLTAGE._replace(safe=5_000)), "safe value of actuator 'voltage': .* 0.5 V, .* 0 V"),
        ((ANGLE, VELOCITY, VOLTAGE._replace(is_actuator=False)), "kind of 'voltage': the device has a sensor"),
    ],
)
@pytest.mark.rules("H602")
def test_a_foreign_channel_is_refused_with_both_values(channels: tuple[Channel, ...], both: str) -> None:
    with pytest.raises(DeviceMismatch, match=both):
        check_channels(channels, PENDULUM)


def test_resolutions_that_agree_to_a_millionth_pass() -> None:
    check_channels((ANGLE, VELOCITY._replace(resolution=1e-3 * (1 + 9e-7)), VOLTAGE), PENDULUM)


@pytest.mark.rules("H602")
def test_limits_tighter_than_those_of_the_device_pass() -> None:
    tight = replace(PENDULUM, actuators=(replace(PENDULUM.actuators[0], low=-1.0, high=2.0),))
    check_channels(CHANNELS, tight)


@pytest.mark.parametrize("resolution", [0.007, 0.0068])  # 3 V are 428.57 and 441.18 counts
def test_limits_that_round_to_the_device_counts_pass(resolution: float) -> None:
    rig = replace(PENDULUM, actuators=(replace(PENDULUM.actuators[0], resolution=resolution),))
    check_channels(channels_of(rig), rig)
