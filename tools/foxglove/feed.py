"""Live messages of a run, on the channels of its log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.log import messages, wire
from onrig.runtime.log.companions import StateAndEventReader
from onrig.runtime.log.messages import EPISODES, EVENTS, LINES, LOOP, POLICIES, STEPS, Channel, PolicyTracker, channels
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.running import SegmentError
from onrig.runtime.view.reader import ViewReader
from onrig.runtime.view.run_view import RunView

MAX_MESSAGES: Final = 256
"""Maximum number of messages per kind and poll, of which the newest are kept: 2560 steps per second. The server queues
1024 messages per client.
"""
_FILE_INTERVAL_S: Final = 0.5


class TimedMessage(NamedTuple):
    """Encoded message on a channel."""

    topic: str
    t_ns: int
    """Time as in the log: the host's monotonic time, or virtual time in lockstep."""
    data: bytes


class Feed:
    """Non-blocking reader of one run, which continues across resumptions."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._view = RunView(folder, config)
        self._steps = StepMessages(config.rig, behaviour=config.stochastic, inputs=config.input_names)
        self._states_and_events = StateAndEventReader(config, self._view.folder, lambda: None)
        self._last_read_s = -1e9
        self._next_record = self._t_ns = 0
        self._policies = PolicyTracker()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Channels of the log, except for the loop's state, which only `onrig replay` uses."""
        return tuple(channel for channel in channels(self._steps) if channel.topic != LOOP)

    def poll(self, now_s: float) -> Iterator[TimedMessage]:
        """Yield the messages since the last call; ``now_s`` is the host's monotonic time."""
        if self._view.live is not None:
            yield from self._read_records(self._view.live)
        if now_s - self._last_read_s >= _FILE_INTERVAL_S:
            self._last_read_s = now_s
            self._attach()
            yield from self._read_files()

    def _read_files(self) -> Iterator[TimedMessage]:
        for row in self._view.episodes()[-MAX_MESSAGES:]:
            yield TimedMessage(EPISODES, row.t_mono_ns, messages.encode_episode(row))
        for t_ns, event in [*self._states_and_events.new_events(self._t_ns)][-MAX_MESSAGES:]:
            yield TimedMessage(EVENTS, max(t_ns, 0), wire.encode(messages.EVENT, event.fields))
            yield TimedMessage(LINES, max(t_ns, 0), wire.encode(messages.LOG, event.line(max(t_ns, 0))))

    def _read_records(self, live: ViewReader) -> Iterator[TimedMessage]:
        self._next_record, records = live.records(self._next_record, MAX_MESSAGES)
        if not len(records):
            return
        times_ns, data, size = records["t_mono_ns"].tolist(), self._steps.encode(records), self._steps.size
        self._t_ns = max(times_ns[-1], 0)
        for t_ns, change in self._policies.changes(records):
            yield TimedMessage(POLICIES, max(t_ns, 0), wire.encode(messages.POLICY, change))
        for i, t_ns in enumerate(times_ns):
            yield TimedMessage(STEPS, max(t_ns, 0), data[i * size : (i + 1) * size])

    def _attach(self) -> None:
        """Attach to the run's current session.

        The session's ring counts from 0, and its files may have been truncated to a checkpoint.
        """
        running = self._view.find_running()
        if running == self._view.running:
            return
        self._view.detach()
        if running is not None:
            with contextlib.suppress(SegmentError):
                self._view.attach(running)
                self._view.rewind()
                self._next_record, self._policies = 0, PolicyTracker()

    def close(self) -> None:
        """Release the run's shared memory."""
        self._view.detach()
