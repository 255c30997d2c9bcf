"""A device written in Python, in device time."""

from __future__ import annotations

import pytest

from onrig.hw import messages as m
from onrig.hw.clock import VirtualClock
from onrig.hw.device.driven import DrivenDevice, DriverError
from onrig.hw.messages import Fault, MessageType, Op, Result, State, Status
from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from tests.hw.device.drivers import BenchDriver, driven

PERIOD_US = 10_000
RIG = Rig(
    name="bench",
    sensors=(Sensor("place", "m", 0.001, low=-1.0, high=1.0), Sensor("angle", "rad", 0.01, wrap=True)),
    actuators=(Actuator("force", "N", 0.01, -2.0, 2.0, 0.5),),
    observations=(Observation("place", "m", -1.0, 1.0),),
)
STATES = m.StateLayout(2, 1)
COMMANDS = m.CommandLayout(1)


def ask(device: DrivenDevice, op: Op, payload: bytes = b"", *, number: int = 0) -> Result:
    body = m.encode_request(m.Request(number or int(op), op, payload))
    (answer,) = device.handle(body, 0)
    return Result(m.decode_response(answer).result)


def sample(device: DrivenDevice) -> State:
    return STATES.decode(device.sample())


@pytest.fixture
def bench() -> tuple[DrivenDevice, BenchDriver]:
    """Configured and armed, at its first sample."""
    device, driver = driven(RIG)
    assert ask(device, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 3)) == Result.OK
    assert ask(device, Op.ARM) == Result.OK
    sample(device)
    driver.calls.clear()
    return device, driver


def command(device: DrivenDevice, counts: int) -> None:
    assert device.handle(COMMANDS.encode(device.frame, (counts,)), 1_000) == []


def test_the_device_is_safe_from_the_start(bench: tuple[DrivenDevice, BenchDriver]) -> None:
    device, driver = driven(RIG)
    assert driver.calls == ["safe"]
    assert not device.armed


def test_commands_reach_the_driver_clamped_and_in_si_units(bench: tuple[DrivenDevice, BenchDriver]) -> None:
    device, driver = bench
    command(device, 100)
    sample(device)
    command(device, 1000)
    assert driver.calls == ["apply 1", "sample", "feed", "apply 2"]
    state = sample(device)
    assert (state.u_end, bool(state.status & Status.CLAMPED)) == ((200,), True)


def test_samples_are_counts_and_a_reading_beyond_the_sensors_range_is_a_dead_sensor(
    bench: tuple[DrivenDevice, BenchDriver],
) -> None:
    device, driver = bench
    driver.values = [0.1234, 3.2]
    assert sample(device).sensors == (123, round(3.2 / 0.01) - 628)
    for values in ([1.2, 0.0], [float("nan"), 0.0], [0.0, float("inf")]):
        ask(device, Op.CLEAR_FAULT, number=100 + round(values[1] == 0.0))
        device.handle(bytes([MessageType.HELLO_REQUEST]))
        driver.values = values
        assert Fault(sample(device).fault) is Fault.SENSOR
    assert driver.output is None


def test_a_lost_sensor_latches_and_can_be_cleared_once_it_is_back(bench: tuple[DrivenDevice, BenchDriver]) -> None:
    device, driver = bench
    command(device, 100)
    driver.lost = True
    assert Fault(sample(device).fault) is Fault.SENSOR
    assert driver.output is None
    driver.lost = False
    assert ask(device, Op.CLEAR_FAULT) == Result.OK
    assert not sample(device).fault


@pytest.mark.parametrize("call", ["sample", "apply", "feed"])
def test_an_exception_applies_the_safe_output_and_latches_until_the_process_is_restarted(
    bench: tuple[DrivenDevice, BenchDriver], call: str
) -> None:
    device, driver = bench
    command(device, 100)
    driver.broken = {call}
    command(device, 120)
    sample(device)
    command(device, 150)
    state = sample(device)
    assert Fault(state.fault) is Fault.INTERNAL
    assert not state.status & Status.ARMED
    assert driver.output is None
    assert "bus error" in str(device.failure)
    driver.broken = set()
    assert ask(device, Op.CLEAR_FAULT) == Result.NOT_NOW
    assert ask(device, Op.ARM, number=9) == Result.NOT_NOW
    driver.calls.clear()
    sample(device)
    assert driver.calls == [], "neither sampled nor fed, so the controller's watchdog acts"


def test_a_driver_that_cannot_apply_the_safe_output_is_not_reported_safe(
    bench: tuple[DrivenDevice, BenchDriver],
) -> None:
    device, driver = bench
    command(device, 100)
    driver.broken = {"sample", "safe"}
    with pytest.raises(DriverError, match="safe: bus error"):
        device.sample()


def test_the_lease_applies_the_safe_output_and_rearming_restarts_the_watchdog(
    bench: tuple[DrivenDevice, BenchDriver],
) -> None:
    device, driver = bench
    command(device, 100)
    for _ in range(4):
        state = sample(device)
    assert Fault(state.fault) is Fault.LEASE
    assert driver.output is None
    assert ask(device, Op.CLEAR_FAULT) == Result.OK
    driver.calls.clear()
    assert ask(device, Op.ARM, number=9) == Result.OK
    assert driver.calls == ["arm 0.1"]


def test_without_a_watchdog_none_is_armed_or_fed() -> None:
    device, driver = driven(RIG, watchdog_s=None)
    ask(device, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 3))
    ask(device, Op.ARM)
    sample(device)
    assert driver.calls == ["safe", "sample"]


def test_missed_samples_count_towards_the_lease_and_in_the_frame_numbers(
    bench: tuple[DrivenDevice, BenchDriver],
) -> None:
    device, driver = bench
    command(device, 100)
    before = sample(device)
    device.skip(1)
    state = sample(device)
    assert (state.frame, state.t_us) == (before.frame + 2, before.t_us + 2 * PERIOD_US)
    assert (state.lease_left, state.u_start, state.tau_us) == (1, (100,), PERIOD_US)
    device.skip(1)
    assert driver.output is None, "the lease ran out in the meantime"
    assert Fault(sample(device).fault) is Fault.LEASE


@pytest.mark.parametrize("way", ["late sample", "slow sample", "late command"])
def test_a_starved_watchdog_is_detected_by_the_clock(way: str) -> None:
    clock = VirtualClock()
    device, driver = driven(RIG, watchdog_s=0.025, clock=clock)
    ask(device, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 200))
    ask(device, Op.ARM)
    sample(device)
    command(device, 100)
    for pause_ms in (10, 24, 10):
        clock.advance(pause_ms * 1_000_000)
        assert not sample(device).fault
    command(device, 100)
    if way == "slow sample":
        driver.during_sample = lambda: clock.advance(25_000_000)
    else:
        clock.advance(25_000_000)
    if way == "late command":
        driver.calls.clear()
        command(device, 120)
        assert driver.calls == ["safe"], "no command is sent to a controller that has released its motor"
    state = sample(device)
    assert (Fault(state.fault), driver.output) == (Fault.LEASE, None)
    assert not state.status & Status.ARMED
    assert driver.calls[-1] != "feed"


def test_an_unreadable_estop_before_the_first_configuration_is_a_driver_failure() -> None:
    device, driver = driven(RIG)
    driver.broken = {"estop"}
    device.poll_estop()
    assert "estop" in str(device.failure)
    assert driver.calls == ["safe", "safe"]
    device.poll_estop()
    assert ask(device, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 3)) == Result.OK
    assert ask(device, Op.ARM) == Result.NOT_NOW


def test_the_estop_is_read_at_every_sample(bench: tuple[DrivenDevice, BenchDriver]) -> None:
    device, driver = bench
    command(device, 100)
    driver.pressed = True
    state = sample(device)
    assert (Fault(state.fault), driver.output) == (Fault.ESTOP, None)
    assert ask(device, Op.CLEAR_FAULT) == Result.NOT_NOW
    driver.pressed = False
    sample(device)
    device.handle(bytes([MessageType.HELLO_REQUEST]))
    assert ask(device, Op.CLEAR_FAULT) == Result.OK


def test_a_rig_that_releases_its_motor_is_driven_once_armed() -> None:
    rig = Rig(RIG.name, RIG.sensors, RIG.actuators, RIG.observations, safe_output="released")
    device, driver = driven(rig)
    ask(device, Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(PERIOD_US, 3))
    ask(device, Op.ARM)
    assert driver.output is None
    sample(device)
    assert driver.output == [0.5]
    ask(device, Op.DISARM)
    assert driver.output is None


def test_closing_applies_the_safe_output_and_closes_even_if_that_fails(bench: tuple[DrivenDevice, BenchDriver]) -> None:
    device, driver = bench
    command(device, 100)
    driver.broken = {"safe"}
    with pytest.raises(DriverError):
        device.close()
    assert driver.calls[-1] == "close"
