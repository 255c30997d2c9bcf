from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.shm.frame_log import (
    FRAME_LOG_SCHEMA,
    RETENTION_S,
    FrameLogReader,
    FrameLogWriter,
    LoggedFrame,
    frame_log_bytes,
    frame_tap,
)
from onrig.runtime.shm.segment import Segment

ENDLESS_WRITER = """
import sys
from pathlib import Path
from onrig.runtime.shm.segment import Segment
from onrig.runtime.shm.frame_log import FRAME_LOG_SCHEMA, FrameLogWriter
tape = FrameLogWriter(Segment.attach(Path(sys.argv[1]), FRAME_LOG_SCHEMA))
n = 0
while True:
    tape.write(n, n.to_bytes(8, "little") * (1 + n % 31))
    n += 1
    if n == 5000:
        print("going", flush=True)
"""


def make_frame_log(path: Path) -> tuple[FrameLogWriter, FrameLogReader]:
    path.unlink(missing_ok=True)
    return (
        FrameLogWriter(Segment.create(path, frame_log_bytes(50), FRAME_LOG_SCHEMA)),
        FrameLogReader(Segment.attach(path, FRAME_LOG_SCHEMA)),
    )


@settings(max_examples=25)
@given(
    st.lists(st.binary(min_size=1, max_size=249), max_size=40),
    st.integers(0, 50),
    st.one_of(st.none(), st.integers(0, 50)),
)
def test_written_frames_are_read_back_from_a_given_time(
    tmp_path: Path, bodies: list[bytes], since_ns: int, limit: int | None
) -> None:
    writer, reader = make_frame_log(tmp_path / "frames")
    for t, body in enumerate(bodies):
        writer.write(t, body)
    expected = [LoggedFrame(t, body) for t, body in enumerate(bodies) if t >= since_ns]
    if limit is not None:
        expected = expected[len(expected) - min(limit, len(expected)) :]
        newest_frames = [LoggedFrame(t, body) for t, body in enumerate(bodies)][-limit:] if limit else []
        expected = [frame for frame in newest_frames if frame.t_ns >= since_ns]
    assert reader.frames_since(since_ns, limit) == expected


def test_the_oldest_frames_are_dropped_and_the_newest_kept(tmp_path: Path) -> None:
    writer, reader = make_frame_log(tmp_path / "frames")
    n = 3 * writer.capacity + 7
    for t in range(n):
        writer.write(t, t.to_bytes(4, "little"))
    frames = reader.frames_since(0)
    assert [f.t_ns for f in frames] == list(range(n - writer.capacity, n))
    assert all(int.from_bytes(f.body, "little") == f.t_ns for f in frames)
    assert reader.n_written == n


@pytest.mark.parametrize("rate_hz", [50, 1000, 2000])
def test_both_directions_are_kept_for_the_stated_time(tmp_path: Path, rate_hz: float) -> None:
    segment = Segment.create(tmp_path / "frames", frame_log_bytes(rate_hz), FRAME_LOG_SCHEMA)
    assert FrameLogWriter(segment).capacity >= 2 * RETENTION_S * rate_hz


def test_a_frame_being_overwritten_is_left_out_with_all_before_it(tmp_path: Path) -> None:
    writer, reader = make_frame_log(tmp_path / "frames")
    for t in range(10):
        writer.write(t, b"x")
    slot = 64 + 6 * 272
    segment = Segment.attach(tmp_path / "frames", FRAME_LOG_SCHEMA)
    segment.body[slot : slot + 8] = (6 + writer.capacity).to_bytes(8, "little")
    assert [f.t_ns for f in reader.frames_since(0)] == [7, 8, 9]


def test_it_is_readable_after_its_writer_was_killed(tmp_path: Path) -> None:
    _, reader = make_frame_log(tmp_path / "frames")
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path / "frames")], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"going\n"
        for _ in range(20):  # while it writes
            assert_complete(reader.frames_since(0))
        os.kill(writer.pid, signal.SIGKILL)
    frames = reader.frames_since(0)
    assert_complete(frames)
    assert frames[-1].t_ns == reader.n_written - 1
    assert len(frames) >= reader.capacity - 1


def assert_complete(frames: list[LoggedFrame]) -> None:
    times = [f.t_ns for f in frames]
    assert times == list(range(times[0], times[0] + len(times))) if times else True
    assert all(f.body == f.t_ns.to_bytes(8, "little") * (1 + f.t_ns % 31) for f in frames)


def test_a_session_is_tapped_only_if_frames_are_recorded(tmp_path: Path) -> None:
    assert frame_tap(tmp_path) is None
    _, reader = make_frame_log(tmp_path / "frames")
    record_frame = frame_tap(tmp_path)
    assert record_frame is not None
    record_frame(7, b"\x11\x22")
    assert reader.frames_since(0) == [LoggedFrame(7, b"\x11\x22")]


@pytest.mark.parametrize("torn_index", [0, 6, 9])
def test_a_body_that_does_not_match_its_header_is_left_out(tmp_path: Path, torn_index: int) -> None:
    """As may be visible for a moment in a weakly ordered memory."""
    writer, reader = make_frame_log(tmp_path / "frames")
    for t in range(10):
        writer.write(t, b"abc")
    segment = Segment.attach(tmp_path / "frames", FRAME_LOG_SCHEMA)
    body = 64 + torn_index * 272 + 22
    assert bytes(segment.body[body : body + 3]) == b"abc"
    segment.body[body] ^= 1
    assert [f.t_ns for f in reader.frames_since(0)] == [t for t in range(10) if t != torn_index]
