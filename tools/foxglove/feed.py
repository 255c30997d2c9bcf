"""Messages of a run as they come: the channels of its log that are for viewers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.log import messages, wire
from onrig.runtime.log.companions import Companions
from onrig.runtime.log.messages import EPISODES, EVENTS, LINES, LOOP, POLICIES, STEPS, ActingPolicy, Channel, channels
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.running import SegmentError
from onrig.runtime.view.reader import ViewReader
from onrig.runtime.view.run_view import RunView

AT_ONCE: Final = 256
"""Messages of each kind per turn at most, the newest: 2560 steps a second.  A server holds 1024 messages per client."""
_FILES_S: Final = 0.5


class Timed(NamedTuple):
    """One message."""

    topic: str
    t_ns: int
    """Time of the log: the host's monotonic time, or virtual time in lockstep."""
    data: bytes


class Feed:
    """Reader of one run, of a resumed one too; never waits."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._view = RunView(folder, config)
        self._steps = StepMessages(config.rig, behaviour=config.stochastic, inputs=config.input_names)
        self._companions = Companions(config, self._view.folder, lambda: None)
        self._files_s = -1e9
        self._seen = self._t_ns = 0
        self._policies = ActingPolicy()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels that it has: those of the log, without the loop's state, which only replays use."""
        return tuple(channel for channel in channels(self._steps) if channel.topic != LOOP)

    def turn(self, now_s: float) -> Iterator[Timed]:
        """Yield what has come since the last call (``now_s``: host monotonic)."""
        if self._view.live is not None:
            yield from self._records(self._view.live)
        if now_s - self._files_s >= _FILES_S:
            self._files_s = now_s
            self._find()
            yield from self._lines()

    def _lines(self) -> Iterator[Timed]:
        for row in self._view.episodes()[-AT_ONCE:]:
            yield Timed(EPISODES, row.t_mono_ns, messages.encode_episode(row))
        for t_ns, event in [*self._companions.events(self._t_ns)][-AT_ONCE:]:
            yield Timed(EVENTS, max(t_ns, 0), wire.encode(messages.EVENT, event.fields))
            yield Timed(LINES, max(t_ns, 0), wire.encode(messages.LOG, event.line(max(t_ns, 0))))

    def _records(self, live: ViewReader) -> Iterator[Timed]:
        self._seen, records = live.records(self._seen, AT_ONCE)
        if not len(records):
            return
        times, encoded, size = records["t_mono_ns"].tolist(), self._steps.encode(records), self._steps.size
        self._t_ns = max(times[-1], 0)
        for t_ns, change in self._policies.changes(records):
            yield Timed(POLICIES, max(t_ns, 0), wire.encode(messages.POLICY, change))
        for i, t_ns in enumerate(times):
            yield Timed(STEPS, max(t_ns, 0), encoded[i * size : (i + 1) * size])

    def _find(self) -> None:
        """Attach to the run's present session, whose ring counts from 0 and whose files may have been cut."""
        found = self._view.find_running()
        if found == self._view.running:
            return
        self._view.detach()
        if found is not None:
            with contextlib.suppress(SegmentError):
                self._view.attach(found)
                self._view.rewind()
                self._seen, self._policies = 0, ActingPolicy()

    def close(self) -> None:
        """Release the run's memory."""
        self._view.detach()
