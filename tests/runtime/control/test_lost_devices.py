"""A device that falls silent, repeats frames, sends garbage or restarts: detected in time, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.messages import State
from onrig.hw.rig import Rig
from onrig.hw.transport import Transport
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.faults import FAULTS, FaultName, LinkFault, Rearm
from tests.hw.firmware.loop import FirmwareLoop
from tests.runtime.control.test_loop import Bench

LOSS_FRAME = 20
"""Frame after which the device is lost."""
LONG_EPISODE = ("task.episode_s=20", "limits.predicted=null", "rig.lease_periods=5")


def time_to_link_fault(bench: Bench) -> tuple[LinkFault, int]:
    """Run until a link is lost; returns its fault, and the time from the last frame to its detection."""
    source = bench.loop._frames
    wait, last_ns, fault_ns = source.next, 0, 0

    def next_and_record() -> State:
        nonlocal last_ns, fault_ns
        try:
            state = wait()
        except LinkFault:
            fault_ns = bench.clock.now_ns
            raise
        last_ns = bench.clock.now_ns
        return state

    source.next = next_and_record  # type: ignore[method-assign]
    with pytest.raises(LinkFault) as error:
        bench.loop.run()
    assert bench.transitions[-1] == "link_lost:disconnected"
    return error.value, fault_ns - last_ns


def send_nothing(data: bytes, last: bytes) -> bytes:
    return b""


def garble(data: bytes, last: bytes) -> bytes:
    return bytes(byte ^ 0x55 for byte in data)


def repeat_last(data: bytes, last: bytes) -> bytes:
    return last if data else b""


@pytest.mark.parametrize(("rate_hz", "limit_s"), [(50, 1.0), (5, 2.0)], ids=["a second", "ten periods"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        pytest.param(repeat_last, FaultName.LINK_FROZEN, marks=pytest.mark.rules("H627")),
        pytest.param(send_nothing, FaultName.LINK_SILENT, marks=pytest.mark.rules("H628")),
        pytest.param(garble, FaultName.LINK_GARBLED, marks=pytest.mark.rules("H628")),
    ],
    ids=["repeated", "silent", "garbled"],
)
def test_a_line_without_a_new_frame_is_lost_after_a_second_and_ten_periods(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: Callable[[bytes, bytes], bytes],
    name: FaultName,
    rate_hz: int,
    limit_s: float,
) -> None:
    bench = Bench(tmp_path, monkeypatch, *LONG_EPISODE, f"rate_hz={rate_hz}", lockstep=False)
    bench.wait_virtually(monkeypatch)
    port = bench.session._transport
    read, last = port.read, b""

    def read_lossy(timeout_ns: int) -> bytes:
        nonlocal last
        data = read(timeout_ns)
        if bench.device.frame > LOSS_FRAME:
            reply = line(data, last)
            if data and not reply:  # nothing wakes the waiting loop
                bench.clock.advance(max(timeout_ns, 0))
            return reply
        last = data or last
        return data

    monkeypatch.setattr(port, "read", read_lossy)
    fault, elapsed_ns = time_to_link_fault(bench)
    assert fault.fault is name
    assert (FAULTS[name].code, FAULTS[name].rearm) == (ExitCode.HARDWARE, Rearm.NEVER)
    assert limit_s * 1e9 <= elapsed_ns <= (limit_s + 0.2) * 1e9


@pytest.mark.rules("H607", "H613", "H626")
@pytest.mark.parametrize("rate_hz", [5, 50, 500, 1000])
@pytest.mark.parametrize("device", ["twin", "firmware"])
def test_a_restart_is_detected_within_three_periods_and_leaves_the_device_disarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, rate_hz: int
) -> None:
    boards: list[FirmwareLoop] = []

    def connect_firmware(rig: Rig, clock: VirtualClock) -> Transport:
        boards.append(FirmwareLoop(rig.name, clock))
        return boards[0].transport

    line = connect_firmware if device == "firmware" else None
    bench = Bench(tmp_path, monkeypatch, *LONG_EPISODE, f"rate_hz={rate_hz}", lockstep=False, line=line)
    bench.wait_virtually(monkeypatch)

    def restart(n_pushed: int) -> None:
        if n_pushed == LOSS_FRAME:
            boards[0].restart() if boards else bench.device.reboot()

    bench.ring.at_push = restart
    fault, elapsed_ns = time_to_link_fault(bench)
    assert fault.fault is FaultName.DEVICE_REBOOTED
    assert elapsed_ns <= 3 * bench.config.wall_period_ns
    if boards:
        assert boards[0].output(1) == (0.0,)
    else:
        assert not bench.device.armed
