"""CAN lines: payloads, ids, bounded waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.hw import can_bus
from onrig.hw.can_bus import Can, CanTransport, split_payloads
from onrig.hw.transport import LineClosed, LinkError

can = pytest.importorskip("can")
SECOND_NS = 1_000_000_000


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[CanTransport, CanTransport]]:
    """The host's bus and the device's."""
    line = Can(channel=request.node.name, interface="virtual")
    both = line.open_end(line.command_id, line.state_id), line.open_end(line.state_id, line.command_id)
    yield both
    for end in both:
        end.close()


@given(st.binary(max_size=400), st.booleans())
def test_bytes_are_split_into_payloads_that_can_carries_unchanged(data: bytes, fd: bool) -> None:
    cut = list(split_payloads(data, fd=fd))
    assert b"".join(cut) == data
    lengths = {*range(1, 9), 12, 16, 20, 24, 32, 48, 64} if fd else {*range(1, 9)}
    assert {len(piece) for piece in cut} <= lengths
    assert all(len(piece) == (64 if fd else 8) for piece in cut[: len(data) // (64 if fd else 8)])


def test_bytes_pass_in_both_directions_without_echo(ends: tuple[CanTransport, CanTransport]) -> None:
    host, device = ends
    assert host.write(bytes(range(50))) == 50
    assert host.read(0) == b""
    assert device.read(SECOND_NS) == bytes(range(50))
    device.write(b"answer of the device")
    assert host.read(SECOND_NS) == b"answer of the device"


def test_other_traffic_neither_disturbs_nor_hides_later_frames(
    ends: tuple[CanTransport, CanTransport], request: pytest.FixtureRequest
) -> None:
    host, device = ends
    with can.Bus(interface="virtual", channel=request.node.name) as other:
        for arbitration_id, extended in ((0x123, False), (0x101, True)):
            other.send(can.Message(arbitration_id=arbitration_id, is_extended_id=extended, data=b"other"))
        mine = {"arbitration_id": 0x101, "is_extended_id": False}
        other.send(can.Message(**mine, is_error_frame=True, data=b"\0" * 8))
        other.send(can.Message(**mine, is_remote_frame=True))
        device.write(b"mine")
        assert host.read(0) == b"mine"


def test_a_read_ends_at_its_deadline_whatever_else_is_on_the_bus(
    ends: tuple[CanTransport, CanTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = ends
    now, waits = [0], []

    def recv(timeout_s: float) -> object:
        waits.append(timeout_s)
        now[0] += 400_000
        return can.Message(arbitration_id=7, is_extended_id=False) if timeout_s else None

    monkeypatch.setattr(host._bus, "recv", recv)
    monkeypatch.setattr("onrig.hw.can_bus.time.monotonic_ns", lambda: now[0])
    assert host.read(1_000_000) == b""
    assert waits == pytest.approx([1e-3, 0.6e-3, 0.2e-3, 0.0])


def test_a_full_buffer_takes_what_fits_and_a_vanished_bus_closes_the_line(
    ends: tuple[CanTransport, CanTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = ends
    sent: list[object] = []

    def send(message: object, timeout: float) -> None:
        assert timeout == 0.0
        if len(sent) == 2:
            raise can.CanOperationError("Transmit buffer full")
        sent.append(message)

    monkeypatch.setattr(host._bus, "send", send)
    assert host.write(bytes(30)) == 16

    def gone(*arguments: object, **options: object) -> None:
        raise can.CanOperationError("Network is down")

    monkeypatch.setattr(host._bus, "send", gone)
    monkeypatch.setattr(host._bus, "recv", gone)
    with pytest.raises(LineClosed, match="Network is down; check the interface"):
        host.write(b"x")
    with pytest.raises(LineClosed, match="Network is down"):
        host.read(0)


def test_a_closed_line_reports_that_it_is_closed(ends: tuple[CanTransport, CanTransport]) -> None:
    host, _ = ends
    host.close()
    host.close()
    with pytest.raises(LinkError, match="closed by this process"):
        host.read(0)
    with pytest.raises(LinkError, match="closed by this process"):
        host.write(b"x")


def test_a_missing_bus_is_reported_in_one_line() -> None:
    with pytest.raises(LinkError, match="socketcan:nocan0: cannot be opened"):
        Can(channel="nocan0").open()
    with pytest.raises(LinkError, match="telepathy:x: cannot be opened"):
        Can(channel="x", interface="telepathy").open()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command_id": 5, "state_id": 5}, "command_id and state_id are both 0x5"),
        ({"command_id": 0x800}, "0x800 has more than 11 bits: set extended"),
    ],
)
def test_ids_that_the_bus_cannot_distinguish_are_refused(settings: dict[str, int], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert({"kind": "can", "channel": "can0", **settings}, Can)


def test_a_frame_takes_longest_with_all_stuff_bits() -> None:
    assert Can(channel="can0", bitrate=1_000_000).duration_us([48, 16]) == 8 * 135
    extended = Can(channel="can0", bitrate=1_000_000, extended=True)
    assert extended.duration_us([48, 16]) == 8 * 160
    assert Can(channel="can0").duration_us([48]) == 0.0


def test_interfaces_of_the_kernel_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("can0", 280), ("eth0", 1), ("vcan1", 280)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
    monkeypatch.setattr(can_bus, "_NETWORK_FOLDER", tmp_path)
    assert list(Can.find_addresses()) == ["socketcan:can0", "socketcan:vcan1"]
