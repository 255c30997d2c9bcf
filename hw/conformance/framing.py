"""Framing in both directions (``hw/PROTOCOL.md`` §1)."""

from __future__ import annotations

import re

from onrig.hw.conformance.check import cases, rules
from onrig.hw.conformance.host import Host
from onrig.hw.conformance.page import refused_chunks
from onrig.hw.framing import MAX_BODY_BYTES, encode_frame
from onrig.hw.messages import CommandLayout, MessageType, Op, Result, Status


class FramingConformance:
    """Checks with garbage, corrupted and incomplete frames."""

    period_us: int

    @rules("P101", "P106", "P108")
    @cases(
        "garbage",
        [
            b"\xff",
            b"\x05\x01\x02",
            bytes(range(1, 256)) * 3,
            b"\x00" * 50,
            encode_frame(bytes([MessageType.REQUEST, 1, 0, Op.DISARM]))[:-3],
            encode_frame(bytes([MessageType.HELLO_REQUEST]))[:-1],
        ],
        ids=["byte", "short", "long", "zeros", "cut-off request", "cut-off hello"],
    )
    def test_garbage_before_a_frame_is_skipped(self, host: Host, garbage: bytes) -> None:
        host.send_raw(garbage)
        assert host.result(Op.DESCRIBE, b"\0") == Result.OK

    @rules("P106")
    def test_a_single_zero_between_two_frames_suffices(self, host: Host) -> None:
        request_frames = [encode_frame(host.request(Op.DESCRIBE, b"\0")) for _ in range(2)]
        host.send_raw(request_frames[0] + request_frames[1][1:])
        assert len(host.replies()) == 2

    @rules("P107")
    def test_frames_in_pieces_are_reassembled(self, host: Host) -> None:
        wire = encode_frame(host.request(Op.DESCRIBE, b"\0"))
        for byte in wire:
            host.send_raw(bytes([byte]))
        assert len(host.replies()) == 1

    @rules("P109", "P110")
    def test_a_corrupted_frame_is_neither_executed_nor_answered(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease, arm=False)
        wire = encode_frame(host.request(Op.ARM))
        for index in range(1, len(wire) - 1):
            for bit in (0x01, 0x80):
                damaged_frame = bytearray(wire)
                damaged_frame[index] ^= bit
                host.send_raw(bytes(damaged_frame))
        assert host.replies() == []
        assert not host.sample().status & Status.ARMED

    @rules("P102", "P104", "P107")
    def test_the_longest_body_is_accepted_and_an_overlong_run_is_discarded(self, host: Host) -> None:
        longest_body = host.request(99, bytes(MAX_BODY_BYTES - 4))
        assert len(longest_body) == MAX_BODY_BYTES
        assert host.exchange(longest_body).result == Result.UNKNOWN_OP
        for size in (255, 256, 1000):
            host.send_raw(b"\0" + b"\x02" * size + b"\0")
            assert host.replies() == []
        # An overlong run is discarded up to its terminating zero; the frame after that zero is received.
        frame = encode_frame(host.request(Op.DESCRIBE, b"\0"))
        host.send_raw(b"\x07" * 300 + frame[1:])
        assert host.replies() == []
        host.send_raw(b"\x07" * 300 + frame)
        assert len(host.replies()) == 1

    @rules("P103", "P104", "P109")
    def test_the_invalid_chunks_of_the_page_are_refused(self, host: Host) -> None:
        for chunk in refused_chunks():
            host.send_raw(b"\0" + chunk + b"\0")
        assert host.replies() == []

    @rules("P105", "P111", "P701")
    def test_every_frame_is_enclosed_in_two_zeros(self, armed: Host) -> None:
        start = len(armed.wire.raw)
        for _ in range(5):
            armed.act(armed.latest_state(), armed.setpoint(2))
            assert armed.replies() == []
        # The first frame, and the last chunk read, may be incomplete.
        stream = bytes(armed.wire.raw[start:])
        complete_frames = re.findall(rb"\0([^\0]+)\0", stream)
        assert len(complete_frames) >= 10
        assert sum(len(chunk) + 2 for chunk in complete_frames) >= len(stream) - 256
        s, a = armed.hello.n_sensors, armed.hello.n_actuators
        states = {len(chunk) + 2 for chunk in complete_frames if chunk[1:2] == bytes([MessageType.STATE])}
        assert states == {32 + 4 * s + 8 * a}
        assert len(encode_frame(bytes(CommandLayout(a).size))) == 12 + 4 * a
