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

from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.latest import Latest, latest_bytes
from onrig.runtime.shm.segment import Segment

NAME: Final = "actions"
_TO_LOOP, _TO_TRAINER = "to-loop", "to-trainer"
_SAMPLE: Final = struct.Struct("<QQdq?")
_ORDER: Final = "<Qqqq?"
_DRAINED: Final = 65536
NO_SEED: Final = -1
NO_TICK: Final = -1


class Order(NamedTuple):
    """Newest wish of the trainer."""

    episodes: int
    """Episodes requested so far; one more than before asks for the next one."""
    seed: int
    """Seed from which the requested episode and those after it are numbered; NO_SEED: as before."""
    tick: int
    """Tick whose sample ``action`` answers, or NO_TICK."""
    sent_ns: int
    """Monotonic time at which it was sent."""
    closes: bool
    """Whether the trainer has finished."""
    action: tuple[float, ...] = ()
    """(m,) in SI, float32."""


class Sample(NamedTuple):
    """Newest sample of the loop."""

    episodes: int
    """Episodes begun on request, this one included."""
    periods: int
    """Control periods since the start of the episode."""
    reward: float
    """Sum of the rewards of these periods."""
    sent_ns: int
    """Monotonic time at which it was sent."""
    over: bool
    """Whether the episode ended with it."""
    records: bytes
    """Step record of the period before the sample (zeros before the first), and that of the sample itself."""


def exchange_bytes(layout: RecordLayout) -> int:
    """Size of the body of the segment."""
    return latest_bytes(_sample_bytes(layout)) + latest_bytes(_order_struct(layout).size)


def exchange_schema(layout: RecordLayout) -> str:
    """Description that changes with the messages."""
    return f"actions-1 {layout.schema}"


def make_fifos(folder: Path) -> None:
    """Create the FIFOs (mode 0600) next to the segment."""
    for name in (_TO_LOOP, _TO_TRAINER):
        os.mkfifo(folder / name, 0o600)


def _sample_bytes(layout: RecordLayout) -> int:
    return _SAMPLE.size + 2 * layout.size


def _order_struct(layout: RecordLayout) -> struct.Struct:
    return struct.Struct(f"{_ORDER}{layout.n_actions}f")


class _End:
    """One end; both map the same segment."""

    def __init__(self, folder: Path, layout: RecordLayout, *, heard: str, told: str) -> None:
        self._segment = Segment.attach(folder / NAME, exchange_schema(layout))
        split = latest_bytes(_sample_bytes(layout))
        self._samples = Latest(self._segment.body[:split], _sample_bytes(layout))
        self._orders = Latest(self._segment.body[split:], _order_struct(layout).size)
        self._layout, self._order = layout, _order_struct(layout)
        # Open for reading and writing: neither open nor write depends on the other side.
        self._heard, self._told = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in (heard, told))
        self._poll = select.poll()
        self._poll.register(self._heard, select.POLLIN)

    def fileno(self) -> int:
        """Descriptor that becomes readable when the other side has sent something."""
        return self._heard

    def wait(self, timeout_ns: int) -> None:
        """Wait until the other side has sent something since the last call, at most ``timeout_ns``."""
        if self._poll.poll(max(timeout_ns, 0) / 1e6):
            with contextlib.suppress(BlockingIOError):
                os.read(self._heard, _DRAINED)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the other side has not read for long, and will wake up
            os.write(self._told, b"\0")

    def close(self) -> None:
        """Release the segment and the FIFOs."""
        self._samples.close()
        self._orders.close()
        self._segment.close()
        os.close(self._heard)
        os.close(self._told)


class LoopEnd(_End):
    """The loop's end."""

    def __init__(self, folder: Path, layout: RecordLayout) -> None:
        super().__init__(folder, layout, heard=_TO_LOOP, told=_TO_TRAINER)
        self._seen = 0
        self._last: Order | None = None

    def send(self, sample: Sample) -> None:
        """Publish a sample."""
        self._samples.put(_SAMPLE.pack(*sample[:-1]) + sample.records)
        self._wake()

    @property
    def order(self) -> Order | None:
        """Newest valid order; None before the first."""
        if self._orders.version != self._seen:
            found = self._orders.read()
            if found is not None and len(found.content) == self._order.size:
                self._seen = found.version
                episodes, seed, tick, sent_ns, closes, *action = self._order.unpack(found.content)
                self._last = Order(episodes, seed, tick, sent_ns, closes, tuple(action))
        return self._last


class TrainerEnd(_End):
    """The trainer's end."""

    def __init__(self, folder: Path, layout: RecordLayout) -> None:
        super().__init__(folder, layout, heard=_TO_TRAINER, told=_TO_LOOP)

    def send(self, order: Order) -> None:
        """Publish an order; without an action its place is zero."""
        action = order.action or (0.0,) * self._layout.n_actions
        self._orders.put(self._order.pack(*order[:-1], *action))
        self._wake()

    def sample(self) -> Sample | None:
        """Newest sample; None before the first."""
        content = self._samples.take()
        if content is None:
            return None
        episodes, periods, reward, sent_ns, over = _SAMPLE.unpack_from(content)
        return Sample(episodes, periods, reward, sent_ns, over, content[_SAMPLE.size :])
