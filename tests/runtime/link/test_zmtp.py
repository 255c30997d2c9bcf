from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.link.zmtp import GREETING_BYTES, FrameMeter, ZmtpError
from tests.lab.mutants.peers import READY, frame, greeting

MAX_FRAME_BYTES = 100_000


@given(st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), max_size=6), st.lists(st.integers(1, 300), max_size=40))
def test_frames_are_measured_however_the_stream_is_split(sizes: list[int], chunk_sizes: list[int]) -> None:
    stream = greeting() + READY + b"".join(frame(bytes(size), more=True) for size in sizes)
    meter, sizes_found, position = FrameMeter(MAX_FRAME_BYTES), [], 0
    for chunk_size in [*chunk_sizes, len(stream)]:
        sizes_found += meter.feed(stream[position : position + chunk_size])
        position += chunk_size
    assert sizes_found == [len(READY) - 2, *sizes]
    assert meter.n_frames == len(sizes_found)


def test_a_stream_is_recognised_once_its_signature_is_complete() -> None:
    meter = FrameMeter(MAX_FRAME_BYTES)
    for byte in greeting()[:9]:
        meter.feed(bytes([byte]))
    assert not meter.greeting_received
    meter.feed(greeting()[9:10])
    assert meter.greeting_received
    assert meter.feed(greeting()[10:GREETING_BYTES]) == []


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x00",
        b"\xff" + bytes(9),
        greeting()[:10] + b"\x01",
        greeting() + b"\x80\x00",
        greeting() + b"\x02" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"),
        greeting() + b"\x02" + b"\xff" * 8,
    ],
    ids=["HTTP", "zero", "no end of the signature", "version 1", "unknown flags", "too long", "far too long"],
)
def test_data_that_cannot_come_from_a_learner_are_detected_at_once(stream: bytes) -> None:
    with pytest.raises(ZmtpError):
        FrameMeter(MAX_FRAME_BYTES).feed(stream)
