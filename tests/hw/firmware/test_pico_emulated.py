"""The pins of the Pico, on its actual image in an emulator: drivers, encoder, converter, e-stop, watchdog."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from onrig.hw.conformance.faults import wait_for_fault
from onrig.hw.conformance.host import Host
from onrig.hw.messages import Capability, Fault, Op, Result
from onrig.hw.session import RequestRefused
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.hw.firmware.emulated import Pico, pico

PERIOD_US: Final = 10_000
LEVELS: Final = 6250
IN1, IN2, ENABLE, ESTOP, COILS, LED = 4, 5, 6, 7, (8, 9, 10, 11), 25
CONFIGS: Final = {"pendulum-hw": "pendulum-hardware", "magman": "magman"}


def connected(board: Pico, rig: str) -> Host:
    return Host(open_port(str(board.port)), load(CONFIGS[rig], []).rig, time)


@pytest.fixture
def pendulum(socket_folder: Path) -> Iterator[Pico]:
    with pico("pendulum-hw", socket_folder) as board:
        yield board


@pytest.fixture
def magman(socket_folder: Path) -> Iterator[Pico]:
    with pico("magman", socket_folder) as board:
        board.tell("adc 0 1800")
        yield board


def bridge(board: Pico) -> dict[int, int]:
    return {pin: level for pin, level in board.outputs().items() if pin != LED}


def asleep(board: Pico) -> bool:
    return bridge(board) == {IN1: 0, IN2: 0, ENABLE: 0}


def brakes(board: Pico) -> bool:
    """Both inputs high: the motor is shorted."""
    return bridge(board) == {IN1: LEVELS, IN2: LEVELS, ENABLE: 1}


def test_the_bus_reports_rig_and_serial_number(pendulum: Pico) -> None:
    assert re.fullmatch(r"ready pendulum-hw [0-9A-F]{16}", pendulum.ready)
    assert pendulum.ready[-16:] != 16 * "0"


def test_arming_wakes_the_bridge_and_every_end_of_arming_brakes(pendulum: Pico) -> None:
    assert asleep(pendulum)
    host = connected(pendulum, "pendulum-hw")
    host.begin(PERIOD_US, host.long_lease, arm=False)
    assert asleep(pendulum)
    assert not host.hello.capabilities & Capability.RELEASES
    for end in (lambda: host.result(Op.DISARM), lambda: pendulum.tell(f"pin {ESTOP} 1"), host.close):
        assert host.result(Op.ARM) == Result.OK
        assert pendulum.outputs()[ENABLE] == 1
        host.act(host.latest_state(), (15_000,))
        out = pendulum.outputs()
        assert (out[IN1], LEVELS - out[IN2], out[ENABLE]) == (LEVELS, round(1.5 / 12 * LEVELS), 1)
        host.act(host.latest_state(), (-15_000,))
        out = pendulum.outputs()
        assert (LEVELS - out[IN1], out[IN2], out[ENABLE]) == (round(1.5 / 12 * LEVELS), LEVELS, 1)
        end()
        until(lambda: brakes(pendulum))
        if end != host.close:
            pendulum.tell(f"pin {ESTOP} 0")
            host.fresh_state()
            assert host.result(Op.CLEAR_FAULT) == Result.OK


def until(true: object) -> None:
    """Poll until a condition holds."""
    for _ in range(1000):
        if true():  # type: ignore[operator]
            return
    raise AssertionError("never")


def test_the_decoders_counts_give_the_angle_and_their_slope_the_velocity(pendulum: Pico) -> None:
    host = connected(pendulum, "pendulum-hw")
    host.begin(PERIOD_US, host.long_lease)
    counted = 0
    for counts in (1, -3, 700, -1500, 20_000):
        pendulum.tell(f"turn {counts}")
        counted += counts
        host.fresh_state()
        for _ in range(3):  # the slope no longer includes the turning
            state = host.wait()
        assert state.sensors == ((counted + 8192) % 16384 - 8192, 0)
    for state in host.wire.states:
        assert abs(state.sensors[1]) <= 200_000
    host.close()


def test_too_much_current_stops_the_drive_until_it_is_restarted(pendulum: Pico) -> None:
    host = connected(pendulum, "pendulum-hw")
    host.begin(PERIOD_US, host.long_lease)
    pendulum.tell(f"adc 0 {int(1.4 / 3.3 * 4096)}")
    host.act(host.latest_state(), (15_000,))
    assert Fault(host.fresh_state().fault) is Fault.NONE
    pendulum.tell(f"adc 0 {int(1.6 / 3.3 * 4096)}")
    wait_for_fault(host, Fault.INTERNAL)
    assert asleep(pendulum)
    pendulum.tell("adc 0 0")
    host.fresh_state()
    assert host.result(Op.CLEAR_FAULT) == Result.NOT_NOW
    host.close()


def test_a_suspended_bus_is_a_closed_line(pendulum: Pico) -> None:
    """As if the cable were pulled from a board with its own power supply."""
    host = connected(pendulum, "pendulum-hw")
    host.begin(PERIOD_US, host.long_lease)
    host.act(host.latest_state(), (15_000,))
    pendulum.tell("suspend")
    until(lambda: brakes(pendulum))
    pendulum.tell("resume")
    wait_for_fault(host, Fault.LEASE)
    assert host.result(Op.CLEAR_FAULT) == Result.OK
    host.close()


def test_a_hung_board_is_restarted_with_its_pins_released_and_a_new_boot_id(pendulum: Pico) -> None:
    host = connected(pendulum, "pendulum-hw")
    host.begin(PERIOD_US, host.long_lease)
    host.act(host.latest_state(), (15_000,))
    pendulum.tell("hang")
    assert pendulum.hear() == "watchdog"
    assert pendulum.hear() == pendulum.ready
    assert asleep(pendulum)
    host.close()
    again = connected(pendulum, "pendulum-hw")
    assert again.hello.boot_id != host.hello.boot_id
    assert again.result(Op.ARM) == Result.NOT_NOW
    with pytest.raises(RequestRefused):
        again.session.clear_fault()
    again.session.configure(PERIOD_US, again.long_lease)
    assert again.wait().fault == Fault.INTERNAL  # the encoder's zero is the position in mid-swing
    assert again.result(Op.ARM) != Result.OK
    again.close()


def begin_at_rest(host: Host) -> None:
    """Arm once the slope no longer covers the ball's appearance at the sensor: such a jump counts as a dead sensor."""
    host.begin(PERIOD_US, host.long_lease, arm=False)
    for _ in range(5):
        host.wait()
    assert host.result(Op.CLEAR_FAULT) == Result.OK
    assert host.result(Op.ARM) == Result.OK


def test_the_coils_get_the_duty_of_the_current_and_the_ball_is_where_the_sensor_reports_it(magman: Pico) -> None:
    host = connected(magman, "magman")
    begin_at_rest(host)
    host.act(host.latest_state(), (60_000, 25_000, 100, 0))
    out = magman.outputs()
    wanted = [(counts * 1e-5) ** 0.5 * 10.0 / 12.0 * LEVELS for counts in (60_000, 25_000, 100, 0)]
    assert [out[pin] for pin in COILS] == pytest.approx(wanted, abs=1.0)
    assert out[ENABLE] == 1
    for reading in (0, 1000, 3723):
        magman.tell(f"adc 0 {reading}")
        host.fresh_state()
        for _ in range(4):
            state = host.wait()
        assert state.sensors[0] == pytest.approx((-0.035 + 3.3 / 4096 * reading * 4.6667e-2) / 1e-6, abs=2)
        assert state.sensors[1] == 0
    host.close()


def test_a_severed_cable_of_the_position_sensor_is_a_dead_sensor(magman: Pico) -> None:
    host = connected(magman, "magman")
    begin_at_rest(host)
    host.act(host.latest_state(), (60_000, 60_000, 60_000, 60_000))
    magman.tell("adc 0 4095")
    wait_for_fault(host, Fault.SENSOR)
    out = magman.outputs()
    assert [out[pin] for pin in (*COILS, ENABLE)] == [0] * 5
    host.close()
