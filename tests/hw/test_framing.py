"""Frames, and the reader that finds them in a byte stream."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw.framing import (
    MAX_BODY_BYTES,
    MAX_CHUNK_BYTES,
    CobsError,
    CrcError,
    FrameError,
    FrameReader,
    FrameTooLongError,
    decode_frame,
    decode_in_python,
    encode_frame,
    encode_in_python,
)

bodies = st.binary(min_size=1, max_size=MAX_BODY_BYTES)
some_bodies = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in pairwise(edges)]


def read_all(pieces: list[bytes]) -> list[bytes]:
    reader = FrameReader()
    return [body for piece in pieces for body in reader.feed(piece)]


@settings(max_examples=60)
@given(bodies)
def test_every_body_survives_the_wire(body: bytes) -> None:
    wire = encode_frame(body)
    assert decode_frame(wire[1:-1]) == body


@settings(max_examples=60)
@given(bodies)
def test_zeros_occur_only_at_both_ends_of_a_frame(body: bytes) -> None:
    wire = encode_frame(body)
    assert wire[0] == wire[-1] == 0
    assert 0 not in wire[1:-1]
    assert len(wire) == len(body) + 7


@pytest.mark.parametrize("fill", [b"\x00", b"\x01", b"\xff"])
@pytest.mark.parametrize("size", [1, 2, MAX_BODY_BYTES - 1, MAX_BODY_BYTES])
def test_bodies_of_extreme_size_survive_the_wire(fill: bytes, size: int) -> None:
    wire = encode_frame(fill * size)
    assert FrameReader().feed(wire) == [fill * size]


def test_a_body_too_long_for_a_frame_is_refused() -> None:
    with pytest.raises(FrameTooLongError, match="250 bytes; at most 249"):
        encode_frame(bytes(MAX_BODY_BYTES + 1))


def test_an_empty_body_is_refused() -> None:
    with pytest.raises(FrameError, match="needs a body"):
        encode_frame(b"")


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (b"\x05\x01\x02", CobsError),
        (b"\xff" + b"\x01" * 200, CobsError),
        (b"\x01\x00\x02\x01", CobsError),
        (b"\x01", CrcError),
        (b"", CrcError),
        (encode_frame(b"\x11\x22")[1:-2] + b"\xee", CrcError),
        (b"\x02" * (MAX_CHUNK_BYTES + 1), FrameTooLongError),
    ],
)
def test_an_invalid_chunk_reports_the_reason(chunk: bytes, error: type[FrameError]) -> None:
    with pytest.raises(error):
        decode_frame(chunk)


@settings(max_examples=60)
@given(bodies, st.integers(0), st.integers(1, 255))
def test_any_altered_byte_of_a_frame_is_detected(body: bytes, where: int, bits: int) -> None:
    wire = bytearray(encode_frame(body))
    at = 1 + where % (len(wire) - 2)
    wire[at] ^= bits
    assert FrameReader().feed(bytes(wire)) == []


@settings(max_examples=60)
@given(some_bodies, st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_are_found_however_the_stream_is_split(sent: list[bytes], places: list[int]) -> None:
    stream = b"".join(encode_frame(body) for body in sent)
    assert read_all(cut(stream, places)) == sent


def test_frames_arriving_byte_by_byte_are_found() -> None:
    stream = encode_frame(b"\x11ab") + encode_frame(b"\x10\x00")
    assert read_all([bytes([byte]) for byte in stream]) == [b"\x11ab", b"\x10\x00"]


def test_a_single_delimiter_between_two_frames_is_enough() -> None:
    stream = encode_frame(b"\x11ab")[1:] + encode_frame(b"\x10\x00")[1:]
    assert read_all([stream]) == [b"\x11ab", b"\x10\x00"]


@settings(max_examples=60)
@given(some_bodies, st.lists(st.binary(max_size=700), min_size=7, max_size=7), st.lists(st.integers(0, 10_000)))
def test_garbage_between_frames_costs_no_frame(sent: list[bytes], garbage: list[bytes], places: list[int]) -> None:
    stream = garbage[0] + b"".join(
        encode_frame(body) + noise for body, noise in zip(sent, garbage[1 : 1 + len(sent)], strict=True)
    )
    assert read_all(cut(stream, places)) == sent


@settings(max_examples=60)
@given(some_bodies, st.binary(min_size=1, max_size=400), st.integers(0), st.lists(st.integers(0, 10_000)))
def test_garbage_within_a_frame_costs_at_most_that_frame(
    sent: list[bytes], garbage: bytes, where: int, places: list[int]
) -> None:
    wires = [encode_frame(body) for body in sent]
    hit = where % len(sent)
    at = where // len(sent) % (len(wires[hit]) + 1)
    wires[hit] = wires[hit][:at] + garbage + wires[hit][at:]
    received = read_all(cut(b"".join(wires), places))
    assert received in (sent, sent[:hit] + sent[hit + 1 :])


@settings(max_examples=60)
@given(some_bodies, st.integers(0), st.integers(1, 255))
def test_one_altered_byte_costs_at_most_one_frame(sent: list[bytes], where: int, bits: int) -> None:
    stream = bytearray(b"".join(encode_frame(body) for body in sent))
    stream[where % len(stream)] ^= bits
    received = read_all([bytes(stream)])
    assert received == sent or any(received == sent[:i] + sent[i + 1 :] for i in range(len(sent)))


@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6, unique=True), st.integers(0), st.integers(1)
)
def test_a_gap_in_the_stream_spares_every_untouched_frame(sent: list[bytes], where: int, size: int) -> None:
    stream = b"".join(encode_frame(body) for body in sent)
    start = where % len(stream)
    stop = start + size % 100
    untouched, begin = [], 0
    for body in sent:
        end = begin + len(encode_frame(body))
        if end <= start or begin >= stop:
            untouched.append(body)
        begin = end
    received = read_all([stream[:start] + stream[stop:]])
    assert [body for body in received if body in untouched] == untouched


def test_an_endless_run_without_a_delimiter_is_discarded() -> None:
    reader = FrameReader()
    for _ in range(1000):
        assert reader.feed(b"\x55" * 1000) == []
        held = sum(len(value) for value in vars(reader).values() if isinstance(value, bytes))
        assert held <= MAX_CHUNK_BYTES
    assert reader.counters.oversize == 1
    assert reader.counters.bytes_dropped == 1_000_000
    assert reader.feed(encode_frame(b"\x11")) == [b"\x11"]


def test_discarded_data_are_counted_by_kind() -> None:
    reader = FrameReader()
    good = encode_frame(b"\x11\x22\x33")
    reader.feed(good[:-2] + b"\x99\x00")
    reader.feed(b"\x00\x09\x01\x02\x00")
    reader.feed(b"\x00" + b"\x02" * 300 + b"\x00")
    counters = reader.counters
    assert (counters.bad_crc, counters.bad_cobs, counters.oversize) == (1, 1, 1)
    assert counters.bytes_dropped == len(good) - 2 + 3 + 300


def test_a_truncated_frame_is_dropped_when_the_next_one_begins() -> None:
    reader = FrameReader()
    wire = encode_frame(b"\x11\x22\x33")
    assert reader.feed(wire[:5]) == []
    assert reader.feed(wire) == [b"\x11\x22\x33"]
    assert reader.counters.bytes_dropped == 4
    assert reader.feed(wire[1:]) == [b"\x11\x22\x33"]


def test_a_reset_reader_forgets_the_frame_in_progress() -> None:
    reader = FrameReader()
    wire = encode_frame(b"\x11\x22\x33")
    reader.feed(wire[:5])
    reader.reset()
    assert reader.feed(wire[5:]) == []
    assert reader.feed(wire) == [b"\x11\x22\x33"]


@given(bodies)
def test_both_implementations_encode_alike(body: bytes) -> None:
    assert encode_frame(body) == encode_in_python(body)


def verdict(decode: Callable[[bytes], bytes], chunk: bytes) -> bytes | type[FrameError]:
    try:
        return decode(chunk)
    except FrameError as error:
        return type(error)


@settings(max_examples=500)
@given(st.one_of(st.binary(max_size=MAX_CHUNK_BYTES + 3), bodies), st.integers(0), st.integers(0, 255), st.booleans())
def test_both_implementations_judge_damaged_frames_alike(data: bytes, where: int, bits: int, encoded: bool) -> None:
    chunk = bytearray(encode_in_python(data)[1:-1] if encoded and 0 < len(data) <= MAX_BODY_BYTES else data)
    if chunk:
        chunk[where % len(chunk)] ^= bits
    assert verdict(decode_frame, bytes(chunk)) == verdict(decode_in_python, bytes(chunk))
