from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig import hw
from onrig.hw import messages as m
from onrig.hw.messages import Capability, Fault, MessageType, Op, Result, Status
from onrig.sim.plants import Magman, Pendulum
from onrig.sim.plants.integrate import SCALAR, advance
from onrig.sim.twin.channels import DelayLine
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.faults import FaultPlan
from onrig.sim.twin.options import TwinOptions, draw_options, twin_problems
from tests.sim.twin.bench import AT_REST, PERIOD_US, RESOLUTION, RIG, Bench

PLANT = Pendulum()


def test_the_hello_describes_the_device() -> None:
    bench = Bench(TwinOptions(plant=PLANT, boot_id=77, period_min_us=500, lease_max=9), time_scale=10.0)
    (reply,) = bench.device.handle(bytes([MessageType.HELLO_REQUEST]))
    assert m.decode_hello(reply) == m.Hello(
        m.PROTOCOL_VERSION, 2, 1, "pendulum", Capability.RESET, 77, 500, 1_000_000, 9, 10.0
    )


def test_describe_lists_sensors_then_actuators() -> None:
    bench = Bench()
    channels = [m.decode_channel(bench.request(Op.DESCRIBE, bytes([i])).payload) for i in range(3)]
    assert channels == [
        m.Channel(False, True, "angle", "rad", RESOLUTION, -8192, 8191, 0),
        m.Channel(False, False, "velocity", "rad/s", 1e-3, -(2**31), 2**31 - 1, 0),
        m.Channel(True, False, "voltage", "V", 1e-4, -30000, 30000, 0),
    ]
    assert bench.request(Op.DESCRIBE, bytes([3])).result == Result.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("op", "payload", "result"),
    [
        (99, b"", Result.UNKNOWN_OP),
        (0, b"", Result.UNKNOWN_OP),
        (Op.DESCRIBE, b"", Result.BAD_LENGTH),
        (Op.CONFIGURE, bytes(4), Result.BAD_LENGTH),
        (Op.LIMITS, bytes(10), Result.BAD_LENGTH),
        (Op.ARM, bytes(1), Result.BAD_LENGTH),
        (Op.DISARM, bytes(1), Result.BAD_LENGTH),
        (Op.CLEAR_FAULT, bytes(1), Result.BAD_LENGTH),
        (Op.RESET, bytes(7), Result.BAD_LENGTH),
    ],
)
def test_malformed_requests_get_a_result_code(op: int, payload: bytes, result: Result) -> None:
    assert Bench().request(op, payload).result == result


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff\x01",
        bytes([MessageType.HELLO_REQUEST, 0]),
        bytes([MessageType.REQUEST]),
        bytes([MessageType.STATE]),
    ],
)
def test_invalid_messages_are_ignored(body: bytes) -> None:
    assert Bench().device.handle(body) == []


@pytest.mark.parametrize(
    ("period_us", "lease", "result"),
    [
        (1000, 1, Result.OK),
        (50_000, 10, Result.OK),
        (999, 5, Result.OUT_OF_RANGE),
        (50_001, 5, Result.OUT_OF_RANGE),
        (20_000, 0, Result.OUT_OF_RANGE),
        (20_000, 11, Result.OUT_OF_RANGE),
    ],
)
def test_configure_enforces_the_devices_ranges(period_us: int, lease: int, result: Result) -> None:
    bench = Bench(TwinOptions(plant=PLANT, period_min_us=1000, period_max_us=50_000, lease_max=10))
    assert bench.configure(period_us, lease) == result
    assert bench.device.period_us == (period_us if result == Result.OK else 0)


def test_an_unconfigured_device_neither_samples_nor_arms_nor_resets() -> None:
    bench = Bench()
    with pytest.raises(RuntimeError, match="not configured"):
        bench.device.sample()
    assert bench.request(Op.ARM).result == Result.NOT_NOW
    assert bench.request(Op.RESET, bytes(8)).result == Result.NOT_NOW


def test_frames_count_from_1_and_device_time_advances_by_exact_periods() -> None:
    bench = Bench()
    bench.configure()
    states = [bench.sample() for _ in range(3)]
    assert [s.frame for s in states] == [1, 2, 3]
    assert [s.t_us for s in states] == [PERIOD_US, 2 * PERIOD_US, 3 * PERIOD_US]


def test_frame_numbers_wrap_from_the_highest_to_1() -> None:
    bench = Bench().ready()
    bench.device.frame = 2**32 - 2
    assert bench.sample().frame == 2**32 - 1
    bench.command(10_000)
    s = bench.sample()
    assert (s.frame, s.answers, s.u_end) == (1, 2**32 - 1, (10_000,))


def test_a_disarmed_device_reports_the_safe_output_and_ignores_commands() -> None:
    bench = Bench()
    bench.configure()
    bench.sample()
    bench.command(10_000)
    s = bench.sample()
    assert s.status == Status.SAFE
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (0, PERIOD_US, (0,), (0,))


def test_an_armed_device_stays_safe_until_its_first_command() -> None:
    bench = Bench().ready()
    assert bench.sample().status == Status.ARMED | Status.SAFE
    bench.command(10_000)
    assert bench.sample().status == Status.ARMED


def test_a_command_switches_at_its_offset_and_holds_until_the_next() -> None:
    bench = Bench().ready()
    bench.command(10_000, offset_us=4_000)
    s = bench.sample()
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (1, 4_000, (0,), (10_000,))
    s = bench.sample()
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (1, PERIOD_US, (10_000,), (10_000,))
    bench.command(-5_000, offset_us=1)
    s = bench.sample()
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (3, 1, (10_000,), (-5_000,))


def test_the_plant_is_integrated_in_two_pieces_around_the_switch() -> None:
    bench = Bench(TwinOptions(plant=PLANT, substeps=4), start={"angle": 1.0, "velocity": -2.0}).ready()
    bench.command(30_000)
    bench.sample()
    before = bench.device.plant_state
    bench.command(-30_000, offset_us=5_000)
    bench.sample()
    expected = advance(PLANT, advance(PLANT, before, (3.0,), 0.005, 1), (-3.0,), 0.015, 3)
    assert bench.device.plant_state == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("answers", [0, 1, 3, 2**32 - 1])
def test_a_command_that_does_not_answer_the_latest_frame_is_dropped(answers: int) -> None:
    bench = Bench().ready()
    bench.sample()
    bench.command(10_000, answers=answers)
    assert bench.sample().u_end == (0,)
    assert bench.device.frame == 3


def test_only_the_first_command_for_a_frame_counts() -> None:
    bench = Bench().ready()
    bench.command(10_000, offset_us=1_000)
    bench.command(20_000, offset_us=2_000)
    s = bench.sample()
    assert (s.tau_us, s.u_end) == (1_000, (10_000,))


def test_before_the_first_frame_there_is_nothing_to_answer() -> None:
    bench = Bench()
    bench.configure()
    bench.request(Op.ARM)
    bench.command(10_000, answers=0)
    assert bench.sample().u_end == (0,)


@pytest.mark.parametrize("size", [0, 4, 12])
def test_a_command_of_the_wrong_length_is_dropped(size: int) -> None:
    bench = Bench().ready()
    assert bench.device.handle(bytes([MessageType.COMMAND]) + bytes(size)) == []
    assert bench.sample().u_end == (0,)


@pytest.mark.parametrize(
    ("wished", "applied", "clamped"), [(30_000, 30_000, False), (30_001, 30_000, True), (-(2**31), -30_000, True)]
)
def test_commands_are_clamped_to_the_devices_limits(wished: int, applied: int, clamped: bool) -> None:
    bench = Bench().ready()
    bench.command(wished)
    s = bench.sample()
    assert s.u_end == (applied,)
    assert bool(s.status & Status.CLAMPED) is clamped
    bench.command(0)
    assert not bench.sample().status & Status.CLAMPED


@pytest.mark.parametrize(
    ("low", "high", "index", "result"),
    [
        (-10_000, 10_000, 0, Result.OK),
        (-30_000, 30_000, 0, Result.OK),
        (0, 0, 0, Result.OK),
        (-30_001, 0, 0, Result.OUT_OF_RANGE),
        (0, 30_001, 0, Result.OUT_OF_RANGE),
        (1, -1, 0, Result.OUT_OF_RANGE),
        (0, 0, 1, Result.OUT_OF_RANGE),
    ],
)
def test_limits_are_never_wider_than_the_devices_own(low: int, high: int, index: int, result: Result) -> None:
    assert Bench().limit(low, high, index) == result


def test_limits_clamp_commands_and_can_be_widened_up_to_the_devices_own() -> None:
    bench = Bench().ready()
    bench.limit(-5_000, 10_000)
    bench.command(20_000)
    s = bench.sample()
    assert s.u_end == (10_000,)
    assert s.status & Status.CLAMPED
    assert bench.limit(-30_000, 30_000) == Result.OK
    bench.command(20_000)
    assert bench.sample().u_end == (20_000,)


def test_a_refused_limit_leaves_the_old_one() -> None:
    bench = Bench().ready()
    bench.limit(-5_000, 10_000)
    bench.limit(-5_000, 40_000)
    bench.command(20_000)
    assert bench.sample().u_end == (10_000,)


def test_after_the_lease_in_silent_periods_the_output_becomes_safe_and_the_fault_latches() -> None:
    bench = Bench().ready(lease=3)
    bench.command(10_000)
    states = [bench.sample() for _ in range(5)]
    assert [s.lease_left for s in states] == [3, 2, 1, 0, 0]
    assert [s.u_end for s in states] == [(10_000,)] * 4 + [(0,)]
    assert [s.status for s in states[:3]] == [Status.ARMED] * 3
    assert [s.status for s in states[3:]] == [Status.FAULT | Status.SAFE] * 2
    assert [s.fault for s in states] == [0, 0, 0, Fault.LEASE, Fault.LEASE]
    assert (states[4].u_start, states[4].answers) == ((0,), 0)


def test_a_command_in_time_restores_the_full_lease() -> None:
    bench = Bench().ready(lease=2)
    for _ in range(3):
        assert bench.sample().lease_left == 1
        bench.command(10_000)
        assert bench.sample().lease_left == 2


def test_a_dropped_command_does_not_restore_the_lease() -> None:
    bench = Bench().ready(lease=1)
    bench.command(10_000, answers=0)
    assert bench.sample().fault == Fault.LEASE


def test_the_period_in_which_the_device_is_armed_does_not_count() -> None:
    bench = Bench()
    bench.configure(lease=1)
    bench.request(Op.ARM, offset_us=15_000)
    assert bench.sample().status == Status.ARMED | Status.SAFE
    assert bench.sample().status == Status.FAULT | Status.SAFE


def test_a_disarmed_device_loses_no_lease() -> None:
    bench = Bench()
    bench.configure(lease=2)
    assert [bench.sample().lease_left for _ in range(4)] == [2] * 4


def test_a_faulted_device_arms_only_after_the_fault_is_cleared() -> None:
    bench = Bench().ready(lease=1)
    bench.sample()
    assert bench.request(Op.ARM).result == Result.NOT_NOW
    bench.command(10_000)
    assert bench.sample().u_end == (0,)
    assert bench.request(Op.CLEAR_FAULT).result == Result.OK
    s = bench.sample()
    assert (s.status, s.fault, s.lease_left) == (Status.SAFE, Fault.NONE, 1)
    assert bench.request(Op.ARM).result == Result.OK
    assert bench.sample().status == Status.ARMED | Status.SAFE


def test_clearing_a_fault_leaves_the_device_disarmed() -> None:
    bench = Bench().ready()
    bench.command(10_000)
    bench.request(Op.CLEAR_FAULT, offset_us=7_000)
    s = bench.sample()
    assert (s.status, s.u_end) == (Status.SAFE, (0,))


def test_disarm_acts_at_once() -> None:
    bench = Bench().ready()
    bench.command(10_000)
    bench.sample()
    assert bench.request(Op.DISARM, offset_us=3_000).result == Result.OK
    s = bench.sample()
    assert (s.status, s.answers, s.tau_us, s.u_start, s.u_end) == (Status.SAFE, 0, 3_000, (10_000,), (0,))


def test_disarm_after_a_command_in_the_same_period_is_integrated_as_it_happened() -> None:
    bench = Bench(TwinOptions(plant=PLANT, substeps=4)).ready()
    before = bench.device.plant_state
    bench.command(30_000, offset_us=5_000)
    bench.request(Op.DISARM, offset_us=10_000)
    s = bench.sample()
    assert (s.tau_us, s.u_end) == (10_000, (0,))
    expected = before
    for u, dt, n in ((0.0, 0.005, 1), (3.0, 0.005, 1), (0.0, 0.01, 2)):
        expected = advance(PLANT, expected, (u,), dt, n)
    assert bench.device.plant_state == pytest.approx(expected, rel=1e-12)


def test_arming_twice_keeps_the_output_and_renews_the_lease() -> None:
    bench = Bench().ready(lease=2)
    bench.command(10_000)
    bench.sample()
    bench.sample()
    bench.request(Op.ARM)
    s = bench.sample()
    assert (s.status, s.u_end, s.lease_left) == (Status.ARMED, (10_000,), 2)


RELEASING = msgspec.structs.replace(RIG, safe_output="released")
COASTING = Pendulum(torque_constant=0.0)
SWINGING = {"angle": 0.3, "velocity": 8.0}


def swung(plant: Pendulum, state: tuple[float, ...], duration_us: int, substeps: int = 2) -> tuple[float, ...]:
    return plant.constrain(SCALAR, advance(plant, state, (0.0,), duration_us * 1e-6, substeps))


def test_a_disarmed_device_that_releases_lets_its_motor_coast_and_reports_the_safe_value() -> None:
    bench = Bench(rig=RELEASING, start=SWINGING)
    assert bench.device.hello().capabilities & Capability.RELEASES
    bench.configure()
    state = bench.sample()
    assert bench.device.plant_state == swung(COASTING, tuple(SWINGING.values()), PERIOD_US)
    assert (state.u_start, state.u_end, state.tau_us) == ((0,), (0,), PERIOD_US)
    driven = Bench(start=SWINGING)
    assert not driven.device.hello().capabilities & Capability.RELEASES
    driven.configure()
    driven.sample()
    assert driven.device.plant_state == swung(Pendulum(), tuple(SWINGING.values()), PERIOD_US)


def test_an_armed_device_drives_its_motor_from_its_next_sample() -> None:
    bench = Bench(rig=RELEASING, start=SWINGING)
    bench.configure()
    assert bench.request(Op.ARM, offset_us=5000).result == Result.OK
    bench.sample()
    coasted = swung(COASTING, tuple(SWINGING.values()), PERIOD_US)
    assert bench.device.plant_state == coasted
    assert bench.sample().status == Status.ARMED | Status.SAFE
    assert bench.device.plant_state == swung(Pendulum(), coasted, PERIOD_US)


def test_disarming_within_a_period_releases_from_that_moment() -> None:
    bench = Bench(rig=RELEASING, start=SWINGING).ready()
    bench.sample()  # driven, not yet commanded
    before = bench.device.plant_state
    bench.request(Op.DISARM, offset_us=5000)
    state = bench.sample()
    assert bench.device.plant_state == swung(COASTING, swung(Pendulum(), before, 5000, 1), PERIOD_US - 5000)
    assert state.tau_us == PERIOD_US, "the value that is reported did not change"


def test_configure_disarms_resets_the_limits_and_keeps_frames_and_faults() -> None:
    bench = Bench().ready(lease=1)
    bench.limit(-1, 1)
    bench.sample()
    assert bench.device.fault == Fault.LEASE
    bench.configure(10_000, 4, offset_us=5_000)
    s = bench.sample()
    assert s.frame == 3
    assert s.t_us == 2 * PERIOD_US + 5_000 + 10_000
    assert (s.status, s.lease_left) == (Status.FAULT | Status.SAFE, 4)
    bench.request(Op.CLEAR_FAULT)
    bench.request(Op.ARM)
    bench.command(20_000)
    assert bench.sample().u_end == (20_000,)


def test_configure_takes_an_armed_device_to_its_safe_output() -> None:
    bench = Bench().ready()
    bench.command(10_000)
    bench.sample()
    configurations = bench.device.configurations
    bench.configure()
    assert bench.device.configurations == configurations + 1
    s = bench.sample()
    assert (s.status, s.u_start, s.u_end) == (Status.SAFE, (0,), (0,))


def test_a_refused_configure_changes_nothing() -> None:
    bench = Bench().ready()
    bench.command(10_000)
    assert bench.configure(0, 3) == Result.OUT_OF_RANGE
    s = bench.sample()
    assert (s.status, s.u_end) == (Status.ARMED, (10_000,))


def test_reset_samples_the_start_state_itself_and_keeps_arming_limits_and_frame_numbers() -> None:
    bench = Bench(start={"angle": 1.0, "velocity": -2.0}).ready()
    bench.limit(-5_000, 5_000)
    bench.command(10_000)
    bench.sample()
    assert bench.reset(seed=5) == 3
    s = bench.sample()
    assert (s.frame, s.t_us) == (3, 3 * PERIOD_US)
    assert s.status == Status.ARMED | Status.SAFE | Status.FIRST
    assert s.sensors == (round(1.0 / RESOLUTION), -2_000)
    assert bench.device.plant_state == (1.0, -2.0)
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (0, PERIOD_US, (0,), (0,))
    bench.command(20_000)
    s = bench.sample()
    assert s.status == Status.ARMED | Status.CLAMPED
    assert s.u_end == (5_000,)


def test_reset_drops_a_command_meant_for_the_previous_episode() -> None:
    bench = Bench().ready()
    bench.reset()
    bench.command(10_000)
    assert bench.sample().u_end == (0,)
    assert bench.sample().u_end == (0,)


def test_reset_clears_the_count_of_the_lease_but_no_fault() -> None:
    bench = Bench().ready(lease=2)
    assert bench.sample().lease_left == 1
    bench.reset()
    assert bench.sample().lease_left == 2
    for _ in range(2):
        bench.sample()
    bench.reset()
    s = bench.sample()
    assert (s.status, s.fault) == (Status.FAULT | Status.SAFE | Status.FIRST, Fault.LEASE)


def test_a_repeated_request_gets_the_same_answer_and_acts_once() -> None:
    bench = Bench().ready()
    body = m.encode_request(m.Request(500, Op.RESET, m.RESET_LAYOUT.pack(1)))
    first = bench.device.handle(body)
    bench.sample()
    assert bench.device.handle(body) == first
    assert not bench.sample().status & Status.FIRST
    other = m.encode_request(m.Request(501, Op.RESET, m.RESET_LAYOUT.pack(1)))
    assert bench.device.handle(other) != first
    assert bench.sample().status & Status.FIRST


def test_after_a_hello_the_same_request_acts_again() -> None:
    bench = Bench().ready()
    body = m.encode_request(m.Request(1, Op.ARM))
    bench.device.handle(body)
    bench.device.handle(m.encode_request(m.Request(2, Op.DISARM)))
    bench.device.handle(body)
    assert bench.device.armed
    bench.device.on_link_loss()
    bench.device.handle(bytes([MessageType.HELLO_REQUEST]))
    (reply,) = bench.device.handle(body)
    assert m.decode_response(reply).result == Result.NOT_NOW


def test_a_lost_link_is_a_fault_at_once() -> None:
    bench = Bench().ready(lease=3)
    bench.command(10_000)
    bench.sample()
    bench.device.on_link_loss(6_000)
    s = bench.sample()
    assert (s.status, s.fault) == (Status.FAULT | Status.SAFE, Fault.LEASE)
    assert (s.tau_us, s.u_end) == (6_000, (0,))


def test_a_lost_link_means_nothing_to_a_disarmed_device() -> None:
    bench = Bench()
    bench.configure()
    bench.device.on_link_loss()
    assert bench.sample().fault == Fault.NONE


@pytest.mark.parametrize(
    ("latency_us", "offset_us", "tau_us"), [(3_000, 1_000, 4_000), (0, 19_999, 19_999), (3_000, 16_999, 19_999)]
)
def test_latency_moves_the_switch(latency_us: int, offset_us: int, tau_us: int) -> None:
    bench = Bench(TwinOptions(plant=PLANT, latency_us=latency_us)).ready()
    bench.command(10_000, offset_us=offset_us)
    s = bench.sample()
    assert (s.tau_us, s.u_end) == (tau_us, (10_000,))


@pytest.mark.parametrize(("latency_us", "offset_us"), [(0, 20_000), (0, 10**9), (15_000, 5_000), (60_000, 0)])
def test_a_command_that_acts_after_the_sample_is_in_force_from_it_and_the_frame_reports_it(
    latency_us: int, offset_us: int
) -> None:
    bench = Bench(TwinOptions(plant=PLANT, latency_us=latency_us)).ready(lease=1)
    bench.command(10_000, offset_us=offset_us)
    s = bench.sample()
    assert (s.status, s.answers, s.tau_us, s.u_start, s.u_end) == (Status.ARMED, 1, PERIOD_US, (0,), (10_000,))
    bench.command(0, answers=0)
    s = bench.sample()
    assert (s.answers, s.tau_us, s.u_start, s.u_end) == (1, PERIOD_US, (10_000,), (10_000,))


def test_disarm_overtakes_a_command_in_transit() -> None:
    for latency_us in (5_000, 60_000):
        bench = Bench(TwinOptions(plant=PLANT, latency_us=latency_us)).ready()
        bench.command(10_000, offset_us=1_000)
        bench.request(Op.DISARM, offset_us=2_000)
        for _ in range(2):
            s = bench.sample()
            assert (s.answers, s.tau_us, s.u_start, s.u_end) == (0, PERIOD_US, (0,), (0,))


def lockstep(options: TwinOptions | None = None) -> Bench:
    bench = Bench(options, time_scale=0.0)
    bench.configure()
    bench.request(Op.ARM)
    return bench


def test_in_lockstep_a_sample_is_due_only_after_a_reset_or_an_accepted_command() -> None:
    bench = lockstep()
    assert not bench.device.sample_due
    bench.reset()
    assert bench.device.sample_due
    bench.sample()
    assert not bench.device.sample_due
    bench.command(10_000, answers=7)
    assert not bench.device.sample_due
    bench.command(10_000)
    assert bench.device.sample_due


def test_in_lockstep_the_command_acts_for_the_complete_period_and_no_lease_runs() -> None:
    bench = lockstep(TwinOptions(plant=PLANT, latency_us=7_000))
    bench.reset()
    bench.sample()
    for n in range(20):
        bench.command(1_000 * n, offset_us=12_345)
        s = bench.sample()
        assert (s.tau_us, s.u_end, s.lease_left, s.fault) == (0, (1_000 * n,), 3, 0)
    assert bench.device.plant_state != (0.0, 0.0)


NOISY = TwinOptions(plant=PLANT, sensor_noise=0.02, actuator_noise=0.05)


def noisy_run(seed: int, bench: Bench) -> list[m.State]:
    bench.reset(seed)
    states = [bench.sample()]
    for n in range(10):
        bench.command(1_000 * n)
        states.append(bench.sample())
    return states


def test_the_seed_of_the_reset_determines_all_noise() -> None:
    bench = lockstep(NOISY)
    first = noisy_run(2**64 - 1, bench)
    other = noisy_run(1, bench)
    again = noisy_run(2**64 - 1, bench)
    assert [s.sensors for s in first] == [s.sensors for s in again]
    assert [s.sensors for s in first] != [s.sensors for s in other]


@pytest.mark.parametrize(
    ("noise", "angle", "velocity"),
    [(0.02, 0.02, 0.02), ({"angle": 0.02, "velocity": 0.01}, 0.02, 0.01), ({"velocity": 0.01}, 0.0, 0.01)],
)
def test_sensor_noise_is_scaled_per_normalised_unit_and_does_not_affect_the_plant(
    noise: float | dict[str, float], angle: float, velocity: float
) -> None:
    bench = lockstep(TwinOptions(plant=PLANT, sensor_noise=noise))
    readings = []
    for seed in range(400):
        bench.reset(seed)
        readings.append(bench.sample().sensors)
    assert bench.device.plant_state == (0.0, 0.0)
    sigma = np.std(np.array(readings) * [RESOLUTION, 1e-3], axis=0)
    # Five standard errors of a standard deviation over 400 draws.
    assert sigma == pytest.approx([angle * math.pi, velocity * 30.0], rel=5 / math.sqrt(800))


def test_equal_noise_given_by_name_is_identical_bit_for_bit() -> None:
    by_name = TwinOptions(plant=PLANT, sensor_noise={"velocity": 0.02, "angle": 0.02}, actuator_noise=0.05)
    assert [s.sensors for s in noisy_run(3, lockstep(by_name))] == [s.sensors for s in noisy_run(3, lockstep(NOISY))]


def test_a_sensors_zero_is_added_to_its_reading() -> None:
    bench = lockstep(TwinOptions(plant=PLANT, sensor_zero={"angle": -3.0}))
    bench.reset()
    assert bench.sample().sensors == (round(-3.0 / RESOLUTION), 0)
    with pytest.raises(ValueError, match=r"sensor_zero\.angel: rig 'pendulum' has no sensor 'angel'"):
        lockstep(TwinOptions(plant=PLANT, sensor_zero={"angel": 0.1}))


def test_a_delay_below_a_microsecond_is_zero() -> None:
    bench = lockstep(TwinOptions(plant=msgspec.structs.replace(PLANT, delay_s=1e-7)))
    bench.reset()
    assert bench.sample().sensors == (0, 0)


def test_a_state_beyond_the_range_of_counts_is_a_fault_like_a_non_finite_one() -> None:
    bench = lockstep(TwinOptions(plant=PLANT))
    bench.reset()
    bench.sample()
    bench.device.plant_state = (0.0, 1e306)
    bench.command(0)
    assert bench.sample().fault == Fault.SENSOR


def test_actuator_noise_moves_the_plant_but_not_the_report() -> None:
    bench = lockstep(TwinOptions(plant=PLANT, actuator_noise=0.05))
    velocities = []
    for seed in range(400):
        bench.reset(seed)
        bench.sample()
        bench.command(0)
        assert bench.sample().u_end == (0,)
        velocities.append(bench.device.plant_state[1])
    per_volt = advance(PLANT, (0.0, 0.0), (1.0,), 0.02)[1]
    assert np.std(velocities) == pytest.approx(0.05 * 3.0 * per_volt, rel=5 / math.sqrt(800))


@settings(max_examples=50)
@given(angle=st.floats(-3.2, 3.2), velocity=st.floats(-60.0, 60.0))
def test_readings_are_within_half_a_count_of_the_state(angle: float, velocity: float) -> None:
    bench = Bench(start={"angle": angle, "velocity": velocity})
    bench.configure()
    bench.reset()
    counts = bench.sample().sensors
    turn = 16384
    assert -turn // 2 <= counts[0] < turn // 2
    error = (counts[0] - angle / RESOLUTION + turn / 2) % turn - turn / 2
    assert abs(error) <= 0.5 + 1e-6
    assert abs(counts[1] - velocity / 1e-3) <= 0.5 + 1e-6


def test_a_reading_beyond_the_range_of_the_wire_saturates() -> None:
    bench = Bench(start={"angle": 0.0, "velocity": 1e9})
    bench.configure()
    bench.reset()
    assert bench.sample().sensors[1] == 2**31 - 1


def test_a_plant_that_diverges_is_a_sensor_fault() -> None:
    bench = Bench(TwinOptions(plant=Pendulum(inertia=1e-30))).ready()
    bench.command(30_000)
    states = [bench.sample() for _ in range(3)]
    bench.command(30_000)
    s = bench.sample()
    assert any(state.fault == Fault.SENSOR for state in states)
    assert (s.status, s.fault, s.sensors, s.u_end) == (Status.FAULT | Status.SAFE, Fault.SENSOR, (0, 0), (0,))


def test_a_reboot_forgets_everything_but_the_physics() -> None:
    bench = Bench().ready()
    bench.command(30_000)
    bench.sample()
    where, boot_id = bench.device.plant_state, bench.device.boot_id
    bench.device.reboot()
    assert bench.device.boot_id == boot_id + 1
    assert not bench.device.armed
    assert bench.device.period_us == 0
    bench.configure()
    s = bench.sample()
    assert (s.frame, s.t_us, s.status) == (1, PERIOD_US, Status.SAFE)
    assert bench.device.plant_state == pytest.approx(advance(PLANT, where, (0.0,), 0.02))


REQUESTS = st.one_of(
    st.tuples(st.just("request"), st.sampled_from(list(Op)), st.binary(max_size=9)),
    st.tuples(st.just("command"), st.integers(-(2**31), 2**31 - 1), st.integers(-1, 0)),
    st.tuples(st.just("sample"), st.none(), st.none()),
    st.tuples(st.just("body"), st.none(), st.binary(max_size=30)),
)


@settings(max_examples=100)
@given(st.lists(st.tuples(REQUESTS, st.integers(0, 30_000)), max_size=40))
def test_whatever_arrives_the_output_is_within_limits_and_safe_without_arming(
    events: list[tuple[tuple[str, int | None, object], int]],
) -> None:
    bench = Bench()
    bench.configure()
    for (kind, a, b), offset_us in events:
        if kind == "request" and a is not None and isinstance(b, bytes):
            bench.request(a, b, offset_us=offset_us)
        elif kind == "command" and a is not None and isinstance(b, int):
            bench.command(a, offset_us=offset_us, answers=max(0, bench.device.frame + b))
        elif kind == "body" and isinstance(b, bytes):
            bench.device.handle(b, offset_us)
        s = bench.sample()
        assert all(-30_000 <= u <= 30_000 for u in (*s.u_start, *s.u_end))
        assert 0 <= s.tau_us <= bench.device.period_us
        if not s.status & Status.ARMED:
            assert s.status & Status.SAFE
        assert bool(s.status & Status.FAULT) == (s.fault != Fault.NONE)
        assert not (s.status & Status.FAULT and s.status & Status.ARMED)


@pytest.mark.parametrize(
    ("options", "rig", "start", "message"),
    [
        (TwinOptions(plant=Magman()), RIG, {"position": 0.0, "velocity": 0.0}, "has no state 'angle'"),
        (TwinOptions(plant=Magman()), RIG, {"position": 0.0, "velocity": 0.0}, "takes 4 actions"),
        (TwinOptions(plant=PLANT), RIG, {"angle": 0.0}, "no value for the plant's state 'velocity'"),
        (TwinOptions(plant=PLANT), RIG, {**AT_REST, "x": 0.0}, "no state 'x'"),
        (TwinOptions(plant=PLANT, actuator_noise=math.inf), RIG, AT_REST, "finite"),
        (TwinOptions(plant=PLANT, sensor_noise={"angle": math.inf}), RIG, AT_REST, "sensor_noise: must be a finite"),
        (TwinOptions(plant=PLANT, sensor_noise={"angel": 0.1}), RIG, AT_REST, "no sensor 'angel'"),
        (TwinOptions(plant=PLANT, period_min_us=9, period_max_us=8), RIG, AT_REST, "period_max_us"),
        (
            TwinOptions(plant=PLANT, sensor_noise=0.1),
            msgspec.structs.replace(RIG, observations=RIG.observations[:1]),
            AT_REST,
            "'velocity'",
        ),
    ],
)
def test_a_twin_that_cannot_represent_the_rig_is_refused(
    options: TwinOptions, rig: object, start: dict[str, float], message: str
) -> None:
    assert isinstance(rig, type(RIG))
    with pytest.raises(ValueError, match=message):
        TwinDevice(rig, options, start)


@pytest.mark.parametrize(
    "bad", [{}, {"plant": {"kind": "pendulum"}, "latency": 3}, {"plant": {"kind": "pendulum"}, "substeps": 0}]
)
def test_nonsensical_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, TwinOptions)


def test_the_twin_answers_the_requests_on_the_protocol_page_with_its_responses() -> None:
    page = (Path(hw.__file__).parent / "PROTOCOL.md").read_text()
    bodies = [
        bytes.fromhex(body)
        for _, body in re.findall(r"^(REQUEST|RESPONSE) .*\n  body ([0-9a-f ]+)$", page, flags=re.MULTILINE)
    ]
    exchanges = [(a, b) for a, b in itertools.pairwise(bodies) if (a[0], b[0]) == (0x20, 0x21)]
    assert len(exchanges) >= 5
    bench = Bench()
    for request, response in exchanges:
        answer = m.decode_response(response)
        if answer.op == Op.RESET:
            (next_frame,) = m.NEXT_FRAME_LAYOUT.unpack(answer.payload)
            bench.device.frame = next_frame - 1
        if answer.result == Result.NOT_NOW:
            bench.device.fault = Fault.LEASE
        assert bench.device.handle(request) == [response]


def test_a_pressed_estop_applies_the_safe_output_at_once_and_latches_until_released_and_cleared() -> None:
    bench = Bench().ready()
    bench.command(20_000, offset_us=1000)
    bench.device.press_estop(pressed=True, offset_us=5000)
    state = bench.sample()
    assert (Fault(state.fault), Status(state.status)) == (Fault.ESTOP, Status.FAULT | Status.SAFE)
    assert (state.tau_us, state.u_end) == (5000, (0,))
    assert bench.request(Op.CLEAR_FAULT).result == Result.NOT_NOW
    assert bench.request(Op.ARM).result == Result.NOT_NOW
    bench.device.press_estop(pressed=False)
    assert Fault(bench.sample().fault) is Fault.ESTOP
    assert bench.request(Op.CLEAR_FAULT).result == Result.OK
    assert bench.request(Op.ARM).result == Result.OK


def test_a_twin_without_reset_does_not_advertise_it_and_knows_no_such_operation() -> None:
    bench = Bench(TwinOptions(plant=Pendulum(), reset=False)).ready()
    (hello,) = bench.device.handle(bytes([m.MessageType.HELLO_REQUEST]))
    assert m.decode_hello(hello).capabilities == 0
    assert bench.request(Op.RESET, m.RESET_LAYOUT.pack(0)).result == Result.UNKNOWN_OP


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in Fault for b in Fault if a and b])
def test_of_two_latched_faults_the_more_severe_one_is_reported(first: Fault, second: Fault) -> None:
    bench = Bench().ready()
    for fault in (first, second):
        bench.device._latch(fault)
    assert Fault(bench.sample().fault) is max(first, second)
    assert bench.request(Op.CLEAR_FAULT).result == Result.OK
    assert Fault(bench.sample().fault) is Fault.NONE


def test_a_reset_that_is_not_advertised_is_unknown_whatever_its_length() -> None:
    bench = Bench(TwinOptions(plant=Pendulum(), reset=False)).ready()
    assert bench.request(Op.RESET, b"").result == Result.UNKNOWN_OP


# -- faults on demand --------------------------------------------------------------------------------------------------


def test_stuck_sensors_repeat_their_last_reading_while_the_plant_moves_on() -> None:
    bench = Bench(start={"angle": 1.0, "velocity": 0.0}).ready()
    before = bench.sample()
    bench.device.are_sensors_stuck = True
    stuck = [bench.sample() for _ in range(3)]
    assert {s.sensors for s in stuck} == {before.sensors}
    assert [s.frame for s in stuck] == [before.frame + n for n in (1, 2, 3)]
    bench.device.are_sensors_stuck = False
    assert bench.sample().sensors != before.sensors


def test_a_fault_without_a_code_sets_only_the_bit_and_is_cleared_like_any_other() -> None:
    bench = Bench().ready()
    bench.device.latch_fault_without_code()
    state = bench.sample()
    assert (state.status, state.fault) == (Status.FAULT | Status.SAFE, 0)
    assert bench.request(Op.ARM).result == Result.NOT_NOW
    assert bench.request(Op.CLEAR_FAULT).result == Result.OK
    assert bench.request(Op.ARM).result == Result.OK


def test_a_device_at_another_rate_is_recognisable_by_its_clock() -> None:
    bench = Bench(TwinOptions(plant=Pendulum(), faults=FaultPlan(rate=2.0))).ready()
    first, second = bench.sample(), bench.sample()
    assert second.t_us - first.t_us == PERIOD_US // 2


# -- a plant with a delay ----------------------------------------------------------------------------------------------


def test_a_delay_longer_or_shorter_than_a_period_shifts_only_the_command() -> None:
    safe, a, b = (0,), (1,), (2,)
    line = DelayLine(1500, safe)
    assert line.shift([(1000, a)]) == [(1000, safe)]
    assert line.shift([(400, a), (600, b)]) == [(500, safe), (500, a)]
    assert line.shift([(1000, b)]) == [(500, a), (400, a), (100, b)]


def test_a_late_plant_does_not_move_until_its_command_arrives() -> None:
    bench = Bench(TwinOptions(plant=Pendulum(delay_s=2.5 * PERIOD_US * 1e-6)), time_scale=0.0).ready()
    angles = []
    for _ in range(5):
        bench.command(30_000)
        bench.sample()
        angles.append(bench.device.plant_state[0])
    assert angles[:2] == [0.0, 0.0]
    assert all(abs(angle) > 0 for angle in angles[2:])
    bench.reset()
    bench.sample()
    bench.command(30_000)
    bench.sample()
    assert bench.device.plant_state[0] == 0.0, "a reset drops commands in transit"


def test_each_reset_draws_a_sample_of_plant_sensors_and_delay_by_its_seed() -> None:
    lumped = {name: (value, 1.2 * value) for name, value in PLANT.lumped.items()}
    samples: dict[str, tuple[float, ...]] = {
        **lumped,
        "delay_s": (0.0, 0.01),
        "zero_angle": (0.0, 0.5),
        "noise_velocity": (0.0, 0.001),
    }
    options = TwinOptions(plant=PLANT, samples=samples)
    bench = Bench(options, time_scale=0.0)
    bench.configure()
    seen = set()
    for seed in (*range(8), 3):
        bench.reset(seed)
        drawn = draw_options(options, seed)
        assert bench.device.options == drawn
        second = drawn.plant.lumped["gain_per_v_s2"] > 1.1 * PLANT.lumped["gain_per_v_s2"]
        angle, _ = m.StateLayout(2, 1).decode(bench.device.sample()).sensors
        assert angle == (round(0.5 / RESOLUTION) if second else 0), "the zero in the drawn row"
        assert (drawn.plant.delay_s, drawn.noise_of("velocity")) == ((0.01, 0.001) if second else (0.0, 0.0))
        seen.add(second)
    assert seen == {False, True}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"gain_per_v_s2": (5.0, 6.0)}, "no values of gravity_per_s2, which is drawn together with the others"),
        ({"mass": (0.05,), "dead_band": (0.1, 0.2)}, "expected the same number of values for each"),
        ({"zero_angel": (0.1,)}, "the rig has no sensor 'angel' (did you mean 'angle'?)"),
        ({**{n: (v,) for n, v in PLANT.lumped.items()}, "mess": (1.0,)}, "the plant has no parameter 'mess'"),
        ({**{n: (v,) for n, v in PLANT.lumped.items()}, "dead_band": (-1.0,)}, "dead_band: expected 0 to"),
    ],
)
def test_impossible_samples_are_refused(samples: dict[str, tuple[float, ...]], message: str) -> None:
    found = twin_problems(TwinOptions(plant=PLANT, samples=samples), RIG, AT_REST)
    assert any(text.startswith(message) for _, text in found), found
