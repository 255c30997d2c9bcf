"""The host's session, against a device in the same process and in virtual time."""

import os
import struct
import time

import pytest
from msgspec.structs import replace

from onrig.hw.clock import VirtualClock
from onrig.hw.framing import encode_frame
from onrig.hw.identity import DeviceMismatch
from onrig.hw.messages import Command, Fault, Op, Response, Result, encode_hello, encode_response
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import READ_BYTES, LinkError, LoopbackTransport, open_port
from tests.hw.fake_device import FakeDevice, state_of
from tests.hw.rigs import PENDULUM

MS = 1_000_000


class Bench:
    """A device, a session with it and the clock they share."""

    def __init__(self) -> None:
        self.clock = VirtualClock(5_000 * MS)
        self.device = FakeDevice(PENDULUM, self.clock)
        self.session = DeviceSession(self.device.line, PENDULUM, self.clock)

    def deadline(self, after_ms: int = 20) -> int:
        return self.clock.monotonic_ns() + after_ms * MS


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def connected(bench: Bench) -> Bench:
    bench.session.connect()
    bench.device.acted.clear()
    return bench


def test_connecting_yields_the_hello_and_the_channels(bench: Bench) -> None:
    assert bench.session.connect() == bench.device.hello
    assert bench.session.channels == bench.device.channels


@pytest.mark.rules("H601")
def test_connecting_retries_until_the_device_has_started(bench: Bench) -> None:
    bench.device.deaf_for = 7
    began_ns = bench.clock.monotonic_ns()
    bench.session.connect(timeout_s=5.0)
    assert bench.clock.monotonic_ns() - began_ns == 700 * MS


def test_connecting_without_a_device_times_out_and_names_the_port(bench: Bench) -> None:
    bench.device.deaf_for = 1000
    began_ns = bench.clock.monotonic_ns()
    with pytest.raises(LinkError, match=r"^fake: no device answered within 2 s; check its power"):
        bench.session.connect(timeout_s=2.0)
    assert bench.clock.monotonic_ns() - began_ns == 2000 * MS


def test_connecting_at_the_wrong_baud_rate_reports_that_something_was_received(bench: Bench) -> None:
    bench.device.deaf_for = 1000
    bench.device.send_raw(b"\x00\x83\x91\x00")
    with pytest.raises(LinkError, match=r"2 bytes received without a valid frame: wrong baud rate"):
        bench.session.connect(timeout_s=1.0)


@pytest.mark.rules("H602")
def test_connecting_to_another_rig_is_refused_with_both_names(bench: Bench) -> None:
    bench.device.hello = bench.device.hello._replace(rig="magman")
    with pytest.raises(DeviceMismatch, match="the device has magman, the configuration pendulum"):
        bench.session.connect()


def test_connecting_to_another_protocol_version_is_refused_even_if_the_rest_is_unreadable() -> None:
    line = LoopbackTransport(lambda data: encode_frame(b"\x02\x07\x00?"))
    with pytest.raises(DeviceMismatch, match="protocol version: the device has 7"):
        DeviceSession(line, PENDULUM, VirtualClock()).connect()


def test_connecting_to_a_device_with_narrower_limits_is_refused(bench: Bench) -> None:
    *sensors, voltage = bench.device.channels
    bench.device.channels = (*sensors, voltage._replace(high=10_000))
    with pytest.raises(DeviceMismatch, match="high limit of actuator 'voltage': the device has 1 V"):
        bench.session.connect()


def test_frames_of_an_earlier_session_do_not_survive_connecting(bench: Bench) -> None:
    bench.device.before_response = [state_of(77)]
    bench.session.connect()
    assert bench.session.wait_state(bench.deadline()) is None


@pytest.mark.rules("H204", "H205")
def test_a_frame_from_before_a_restart_caused_by_opening_the_port_does_not_outlast_the_hello(bench: Bench) -> None:
    bench.device.deaf_for = 2
    bench.device.send(state_of(1_000_000))
    bench.session.connect()
    bench.device.send(state_of(1))
    state = bench.session.wait_state(bench.deadline())
    assert state is not None
    assert state.frame == 1


def test_a_lost_response_is_fetched_with_the_same_id_and_the_device_acts_once(connected: Bench) -> None:
    connected.device.mute_for = 2
    connected.session.arm()
    assert connected.device.acted == [(Op.ARM, b"")]
    assert len(set(connected.device.request_ids[-3:])) == 1
    assert connected.session.counters.retries == 2


@pytest.mark.rules("H205")
def test_a_lost_request_is_sent_again(connected: Bench) -> None:
    connected.device.deaf_for = 3
    connected.session.disarm()
    assert connected.device.acted == [(Op.DISARM, b"")]


def test_each_request_has_its_own_id_across_the_wrap(connected: Bench) -> None:
    connected.session._request_id = 65_534
    for _ in range(3):
        connected.session.arm()
    assert connected.device.request_ids[-3:] == [65_535, 0, 1]
    assert len(connected.device.acted) == 3


@pytest.mark.rules("H205")
def test_an_unanswered_request_ends_after_ten_attempts(connected: Bench) -> None:
    connected.device.mute_for = 1000
    began_ns = connected.clock.monotonic_ns()
    with pytest.raises(LinkError, match=r"^fake: no answer to ARM in 10 attempts"):
        connected.session.arm()
    assert connected.clock.monotonic_ns() - began_ns == 1000 * MS


def test_a_late_response_to_an_earlier_request_is_not_taken_for_this_one(connected: Bench) -> None:
    connected.device.send_raw(encode_frame(encode_response(Response(9, Op.ARM, Result.OK))))
    connected.device.deaf_for = 1
    connected.session.arm()
    assert connected.device.acted == [(Op.ARM, b"")]
    assert connected.session.counters.unexpected == 1


@pytest.mark.parametrize("result", [Result.OUT_OF_RANGE, Result.NOT_NOW, Result.BAD_LENGTH, Result.UNKNOWN_OP, 77])
def test_a_refusal_names_operation_and_result(connected: Bench, result: int) -> None:
    connected.device.results[Op.LIMITS] = result  # type: ignore[assignment]
    name = result.name if isinstance(result, Result) else "77"
    with pytest.raises(RequestRefused, match=rf"refused LIMITS: {name} \(.*actuator 0: -5 to 5 counts\)") as caught:
        connected.session.limit(0, -5, 5)
    assert (caught.value.op, caught.value.result) == (Op.LIMITS, result)


def test_arming_a_faulted_device_reports_the_fault_and_the_remedy(connected: Bench) -> None:
    connected.device.results[Op.ARM] = Result.NOT_NOW
    connected.device.before_response = [state_of(3, fault=Fault.LEASE)]
    with pytest.raises(RequestRefused, match=r"fault LEASE: no command arrived during a complete lease") as caught:
        connected.session.arm()
    assert "\n" not in str(caught.value)


def test_the_operations_carry_their_arguments(connected: Bench) -> None:
    session = connected.session
    session.configure(20_000, 5)
    session.limit(0, -20_000, 20_000)
    session.clear_fault()
    session.reset(2**64 - 1)
    assert connected.device.acted == [
        (Op.CONFIGURE, struct.pack("<IB", 20_000, 5)),
        (Op.LIMITS, struct.pack("<Bii", 0, -20_000, 20_000)),
        (Op.CLEAR_FAULT, b""),
        (Op.RESET, b"\xff" * 8),
    ]


@pytest.mark.parametrize(("period_us", "lease"), [(999, 5), (1_000_001, 5), (2**40, 5), (20_000, 0), (20_000, 101)])
def test_a_period_or_lease_beyond_the_device_is_refused_with_its_range(
    connected: Bench, period_us: int, lease: int
) -> None:
    with pytest.raises(RequestRefused, match=r"1000 to 1000000 us and leases of 1 to 100"):
        connected.session.configure(period_us, lease)
    assert connected.device.acted == []


def test_a_device_that_cannot_reset_is_not_sent_a_reset(bench: Bench) -> None:
    bench.device.hello = bench.device.hello._replace(capabilities=0)
    bench.session.connect()
    bench.device.acted.clear()
    with pytest.raises(RequestRefused, match="does not advertise RESET"):
        bench.session.reset(1)
    assert bench.device.acted == []


def test_operations_that_need_the_hello_say_to_connect_first(bench: Bench) -> None:
    with pytest.raises(LinkError, match="not connected to a device yet"):
        bench.session.configure(20_000, 5)


def test_the_newest_state_received_with_a_response_is_kept(connected: Bench) -> None:
    connected.device.before_response = [state_of(1), state_of(2)]
    connected.session.arm()
    now_ns = connected.clock.monotonic_ns()
    assert connected.session.wait_state(connected.deadline()) == state_of(2)
    assert connected.clock.monotonic_ns() == now_ns
    assert connected.session.counters.skipped == 1


def test_states_of_the_old_period_do_not_survive_configuring(connected: Bench) -> None:
    connected.device.before_response = [state_of(1)]
    connected.session.configure(20_000, 5)
    assert connected.session.wait_state(connected.deadline()) is None


@pytest.mark.rules("H606")
def test_frames_from_before_a_reset_are_dropped(connected: Bench) -> None:
    connected.device.next_frame = 9
    connected.device.before_response = [state_of(7)]
    assert connected.session.reset(3) == 9
    connected.device.send(state_of(8), state_of(9))
    assert connected.session.wait_state(connected.deadline()) == state_of(9)
    assert connected.session.counters.stale == 2
    assert connected.session.counters.skipped == 0


def test_waiting_returns_the_frame_and_its_receive_time(connected: Bench) -> None:
    arrives_ns = connected.deadline(7)
    connected.device.arrivals.append((arrives_ns, connected.device.wire(state_of(1))))
    assert connected.session.wait_state(connected.deadline(20)) == state_of(1)
    assert connected.session.received_ns == connected.clock.monotonic_ns() == arrives_ns


def test_waiting_ends_at_the_deadline_without_a_frame(connected: Bench) -> None:
    deadline_ns = connected.deadline(20)
    assert connected.session.wait_state(deadline_ns) is None
    assert connected.clock.monotonic_ns() == deadline_ns


def test_a_deadline_in_the_past_still_returns_what_has_arrived(connected: Bench) -> None:
    connected.device.before_response = [state_of(1)]
    connected.session.arm()
    assert connected.session.wait_state(connected.clock.monotonic_ns() - MS) == state_of(1)
    assert connected.session.wait_state(connected.clock.monotonic_ns() - MS) is None


@pytest.mark.rules("H604")
def test_the_newest_of_several_waiting_frames_is_returned(connected: Bench) -> None:
    connected.device.send(state_of(1), state_of(2), state_of(3))
    assert connected.session.wait_state(connected.deadline()) == state_of(3)
    assert connected.session.counters.skipped == 2
    assert connected.session.wait_state(connected.deadline()) is None


def test_a_backlog_longer_than_one_read_is_drained_to_its_newest_frame() -> None:
    clock = VirtualClock()
    device = FakeDevice(PENDULUM, clock)
    backlog = b"".join(device.wire(state_of(k)) for k in range(1, 301))
    assert len(backlog) > 3 * READ_BYTES
    line = LoopbackTransport(lambda data: backlog)
    session = DeviceSession(line, PENDULUM, clock)
    line.write(b"")
    assert session.wait_state(clock.monotonic_ns() - MS) == state_of(300)
    assert session.counters.skipped == 299


def test_a_fragmented_frame_is_reassembled(connected: Bench) -> None:
    wire = connected.device.wire(state_of(1))
    for part in (wire[:1], wire[1:20], wire[20:]):
        connected.device.send_raw(part)
    assert connected.session.wait_state(connected.deadline()) == state_of(1)


@pytest.mark.rules("H605")
def test_duplicates_are_not_returned_again(connected: Bench) -> None:
    connected.device.send(state_of(1))
    connected.device.send(state_of(1))
    assert connected.session.wait_state(connected.deadline()) == state_of(1)
    assert connected.session.wait_state(connected.deadline()) is None
    assert connected.session.counters.not_advancing == 1


def test_unreadable_data_are_counted_and_the_next_frame_is_found(connected: Bench) -> None:
    wire = connected.device.wire(state_of(1))
    damaged = wire[:9] + bytes([wire[9] ^ 0x40]) + wire[10:]
    connected.device.send_raw(damaged + b"\x00noise\x00" + encode_frame(b"\x11\x01") + encode_frame(b"\x7f?"))
    connected.device.send_raw(encode_frame(b"\x02\x01\x00") + encode_frame(b"\x21"))
    connected.device.send(state_of(2))
    assert connected.session.wait_state(connected.deadline()) == state_of(2)
    counters = connected.session.counters
    assert counters.bad_crc + counters.bad_cobs == 2
    assert (counters.unreadable, counters.unexpected) == (2, 2)


def test_endless_garbage_does_not_delay_the_tick_past_its_deadline(connected: Bench) -> None:
    connected.device.babble = lambda: b"\x33" * READ_BYTES
    deadline_ns = connected.deadline(20)
    assert connected.session.wait_state(deadline_ns) is None
    assert connected.clock.monotonic_ns() == deadline_ns


def test_reading_from_a_line_that_is_never_silent_ends_after_a_bounded_number_of_reads() -> None:
    class Firehose(LoopbackTransport):
        reads = 0

        def read(self, timeout_ns: int) -> bytes:
            self.reads += 1
            return b"\x33" * READ_BYTES

    hose = Firehose(lambda data: b"")
    assert DeviceSession(hose, PENDULUM, VirtualClock(MS)).wait_state(0) is None
    assert hose.reads < 100


def test_a_command_is_sent_complete_and_names_the_frame_it_answers(connected: Bench) -> None:
    connected.session.send_command(12, (-29_999,))
    assert connected.device.commands == [Command(12, (-29_999,))]


def test_a_command_that_a_congested_line_does_not_accept_is_counted_and_not_repeated() -> None:
    class Clogged(LoopbackTransport):
        writes = 0

        def write(self, data: bytes) -> int:
            self.writes += 1
            return 3

    line = Clogged(lambda data: b"")
    session = DeviceSession(line, PENDULUM, VirtualClock())
    session.send_command(1, (0,))
    assert (session.counters.short_writes, line.writes) == (1, 1)


@pytest.mark.rules("H607")
def test_a_hello_with_another_boot_id_reveals_a_reboot(connected: Bench) -> None:
    connected.session.request_hello()
    connected.session.wait_state(connected.deadline())
    assert not connected.session.has_rebooted
    connected.device.hello = connected.device.hello._replace(boot_id=2)
    connected.session.request_hello()
    connected.session.wait_state(connected.deadline())
    assert connected.session.has_rebooted
    assert connected.session.counters.reboots == 1


def test_reconnecting_after_a_reboot_accepts_frames_from_number_one(connected: Bench) -> None:
    connected.device.send(state_of(500))
    connected.session.wait_state(connected.deadline())
    connected.device.hello = connected.device.hello._replace(boot_id=2)
    connected.session.request_hello()
    connected.session.wait_state(connected.deadline())
    assert connected.session.has_rebooted
    connected.session.connect()
    connected.device.send(state_of(1))
    assert connected.session.wait_state(connected.deadline()) == state_of(1)
    assert not connected.session.has_rebooted


def test_a_device_reports_when_asked_whether_it_was_restarted(connected: Bench) -> None:
    assert not connected.session.check_reboot()
    connected.device.hello = connected.device.hello._replace(boot_id=2)
    assert connected.session.check_reboot()


@pytest.mark.rules("H608")
def test_an_unsolicited_hello_before_connecting_is_not_a_reboot(bench: Bench) -> None:
    bench.device.send_raw(encode_frame(encode_hello(bench.device.hello)))
    bench.session.wait_state(bench.deadline())
    assert not bench.session.has_rebooted


def test_a_closed_line_is_an_error_everywhere(connected: Bench) -> None:
    connected.session.close()
    with pytest.raises(LinkError):
        connected.session.wait_state(connected.deadline())
    with pytest.raises(LinkError):
        connected.session.send_command(1, (0,))
    with pytest.raises(LinkError):
        connected.session.disarm()


def test_a_rig_with_several_actuators_uses_its_own_layouts() -> None:
    coils = tuple(replace(PENDULUM.actuators[0], name=f"coil_{i}") for i in range(4))
    rig = replace(PENDULUM, actuators=coils)
    clock = VirtualClock()
    device = FakeDevice(rig, clock)
    session = DeviceSession(device.line, rig, clock)
    session.connect()
    sent = state_of(1)._replace(u_start=(1, 2, 3, 4), u_end=(5, 6, 7, 8))
    device.send(sent)
    assert session.wait_state(clock.monotonic_ns() + MS) == sent
    session.send_command(1, (9, 8, 7, 6))
    assert device.commands == [Command(1, (9, 8, 7, 6))]


def test_states_and_commands_pass_a_real_pty() -> None:
    master, slave = os.openpty()
    path = os.ttyname(slave)
    os.close(slave)
    port = open_port(path)
    session = DeviceSession(port, PENDULUM, time)
    device = FakeDevice(PENDULUM, VirtualClock())
    os.write(master, device.wire(state_of(1)))
    assert session.wait_state(time.monotonic_ns() + 5_000 * MS) == state_of(1)
    session.send_command(1, (-29_999,))
    device.line.write(os.read(master, 100))
    assert device.commands == [Command(1, (-29_999,))]
    os.close(master)
    with pytest.raises(LinkError, match="hung up"):
        session.wait_state(time.monotonic_ns() + 5_000 * MS)
    session.close()
