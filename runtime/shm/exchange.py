"""Exchange of samples and actions between the loop and a trainer, the program that acts in place of a policy.

Each side writes its newest message into shared memory and one byte into a FIFO that wakes the other side up.  Neither
ever waits for the other to read: a message that was not read in time is replaced by the next one.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from pathlib import Path
from typing import Final, NamedTuple

from onrig.hw.transport import wait_readable
from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.latest import Latest, latest_bytes
from onrig.runtime.shm.segment import Segment

SEGMENT_NAME: Final = "actions"
_TO_LOOP, _TO_TRAINER = "to-loop", "to-trainer"
_SAMPLE_HEAD: Final = struct.Struct("<QQdq?")
_REQUEST_FORMAT: Final = "<Qqqq?"
_MAX_DRAIN_BYTES: Final = 65536
NO_SEED: Final = -1
NO_TICK: Final = -1


class TrainerRequest(NamedTuple):
    """Newest request of the trainer."""

    episodes: int
    """Number of episodes requested so far; an increase by one requests the next episode."""
    seed: int
    """Seed of the requested episode and of those after it; NO_SEED: the previous seed remains in force."""
    tick: int
    """Tick whose sample ``action`` answers, or NO_TICK."""
    sent_ns: int
    """Monotonic time at which it was sent."""
    is_closing: bool
    """Whether the trainer has finished."""
    action: tuple[float, ...] = ()
    """Action (m,), SI units, float32."""


class Sample(NamedTuple):
    """Newest sample of the loop."""

    episodes: int
    """Number of episodes started on request, including this one."""
    periods: int
    """Control periods since the start of the episode."""
    reward: float
    """Sum of the rewards of these periods."""
    sent_ns: int
    """Monotonic time at which it was sent."""
    is_over: bool
    """Whether the episode ended with this sample."""
    records: bytes
    """Step record of the period before the sample (zeros for the first sample), followed by that of the sample
    itself."""


def exchange_bytes(layout: RecordLayout) -> int:
    """Return the size of the segment's body."""
    return latest_bytes(_sample_bytes(layout)) + latest_bytes(_request_struct(layout).size)


def exchange_schema(layout: RecordLayout) -> str:
    """Return a description that changes with the layout of the messages."""
    return f"actions-1 {layout.schema}"


def make_fifos(folder: Path) -> None:
    """Create the FIFOs (mode 0600) next to the segment."""
    for name in (_TO_LOOP, _TO_TRAINER):
        os.mkfifo(folder / name, 0o600)


def _sample_bytes(layout: RecordLayout) -> int:
    return _SAMPLE_HEAD.size + 2 * layout.size


def _request_struct(layout: RecordLayout) -> struct.Struct:
    return struct.Struct(f"{_REQUEST_FORMAT}{layout.n_actions}f")


class _Side:
    """One side of the exchange; both map the same segment."""

    def __init__(self, folder: Path, layout: RecordLayout, *, receive_name: str, send_name: str) -> None:
        self._segment = Segment.attach(folder / SEGMENT_NAME, exchange_schema(layout))
        requests_offset = latest_bytes(_sample_bytes(layout))
        self._samples = Latest(self._segment.body[:requests_offset], _sample_bytes(layout))
        self._requests = Latest(self._segment.body[requests_offset:], _request_struct(layout).size)
        self._layout, self._request_struct = layout, _request_struct(layout)
        # Open for reading and writing: neither open nor write depends on the other side.
        self._receive_fd, self._send_fd = (
            os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in (receive_name, send_name)
        )
        self._poll = select.poll()
        self._poll.register(self._receive_fd, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the other side has sent a message."""
        return self._receive_fd

    def wait(self, timeout_ns: int) -> None:
        """Wait, for at most ``timeout_ns``, until the other side has sent a message since the last call."""
        wait_readable(self._poll, self._receive_fd, timeout_ns)
        with contextlib.suppress(BlockingIOError):
            os.read(self._receive_fd, _MAX_DRAIN_BYTES)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: unread bytes will wake the other side up anyway
            os.write(self._send_fd, b"\0")

    def close(self) -> None:
        """Release the segment and the FIFOs."""
        self._samples.close()
        self._requests.close()
        self._segment.close()
        os.close(self._receive_fd)
        os.close(self._send_fd)


class LoopSide(_Side):
    """The loop's side of the exchange."""

    def __init__(self, folder: Path, layout: RecordLayout) -> None:
        super().__init__(folder, layout, receive_name=_TO_LOOP, send_name=_TO_TRAINER)
        self._last_version = 0
        self._last_request: TrainerRequest | None = None

    def send(self, sample: Sample) -> None:
        """Publish a sample."""
        self._samples.put(_SAMPLE_HEAD.pack(*sample[:-1]) + sample.records)
        self._wake()

    @property
    def request(self) -> TrainerRequest | None:
        """Newest valid request; None before the first."""
        if self._requests.version != self._last_version:
            newest_value = self._requests.read()
            if newest_value is not None and len(newest_value.content) == self._request_struct.size:
                self._last_version = newest_value.version
                episodes, seed, tick, sent_ns, is_closing, *action = self._request_struct.unpack(newest_value.content)
                self._last_request = TrainerRequest(episodes, seed, tick, sent_ns, is_closing, tuple(action))
        return self._last_request


class TrainerSide(_Side):
    """The trainer's side of the exchange."""

    def __init__(self, folder: Path, layout: RecordLayout) -> None:
        super().__init__(folder, layout, receive_name=_TO_TRAINER, send_name=_TO_LOOP)

    def send(self, request: TrainerRequest) -> None:
        """Publish a request; a missing action is sent as zeros."""
        action = request.action or (0.0,) * self._layout.n_actions
        self._requests.put(self._request_struct.pack(*request[:-1], *action))
        self._wake()

    def sample(self) -> Sample | None:
        """Return the newest sample; None before the first."""
        content = self._samples.take()
        if content is None:
            return None
        episodes, periods, reward, sent_ns, is_over = _SAMPLE_HEAD.unpack_from(content)
        return Sample(episodes, periods, reward, sent_ns, is_over, content[_SAMPLE_HEAD.size :])
