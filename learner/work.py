"""A learner's gradient updates, with feedback to the rig and heartbeats in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from onrig.learner.agent import MAX_CHUNK_EXPERIENCES, Agent, ReplayedChunk
from onrig.learner.attachment import Attachment, LeaseLost, MemoryChanged
from onrig.learner.backlog import Backlog
from onrig.learner.pace import Pace
from onrig.runtime.link.messages import Feedback
from onrig.runtime.run_state.report import send_heartbeat

_HEARTBEAT_INTERVAL_S: Final = 1.0
"""Interval between heartbeats to the supervisor, and in real time to the rig."""


class Heartbeat:
    """Heartbeats of the process ``name``, without which the supervisor restarts it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last_beat_s = 0.0

    def send_if_due(self) -> bool:
        """Send a heartbeat unless one was sent recently, and return whether it was sent."""
        now_s = time.monotonic()
        is_due = now_s - self._last_beat_s > _HEARTBEAT_INTERVAL_S
        if is_due:
            self._last_beat_s = now_s
            send_heartbeat(self._name)
        return is_due


class UpdateRunner:
    """Runs the updates of the agent attached through ``link``."""

    def __init__(self, link: Attachment, backlog: Backlog, heartbeat: Heartbeat) -> None:
        self._link, self._backlog, self._heartbeat = link, backlog, heartbeat
        self._busy_s = 0.0
        self._updates = 0
        self._feedback_batch = time.time_ns()
        self.feedback_accepted = False
        """Whether the rig has accepted any feedback."""

    @property
    def updates_per_s(self) -> float:
        """Updates per second of learning; 0 before the first."""
        return self._updates / self._busy_s if self._busy_s else 0.0

    def update(self, agent: Agent, updates: int, pace: Pace) -> None:
        """Run updates and send their feedback, in portions that the pace determines."""
        while updates > 0:
            portion = pace.portion_size(updates)
            updates -= portion
            previous_busy_s = self._busy_s
            self._update_portion(agent, portion, pace)
            self._backlog.record_duration(portion, self._busy_s - previous_busy_s)

    def learn_from_batches(self, agent: Agent, pace: Pace, report: Callable[[], object]) -> bool:
        """Learn from the complete batches, and return whether there were any.

        In real time, ``report`` is called at intervals; if it raises an error of the link, the error is re-raised once
        the batches are done.
        """
        errors: list[LeaseLost | MemoryChanged] = []

        def report_if_due() -> None:
            if self._heartbeat.send_if_due() and pace.uses_clock and not errors:
                try:
                    report()
                except (LeaseLost, MemoryChanged) as error:
                    errors.append(error)

        previous_updates, start_s = agent.updates, time.perf_counter()
        agent.learn_from_batches(report_if_due)
        if agent.updates > previous_updates:
            self._busy_s += time.perf_counter() - start_s
            self._updates += agent.updates - previous_updates
        if errors:
            raise errors[0]
        return agent.updates > previous_updates

    def _update_portion(self, agent: Agent, updates: int, pace: Pace) -> None:
        pending_chunks: list[ReplayedChunk] = []
        n_experiences = 0
        start_s = time.perf_counter()
        for chunk in agent.learn(updates):
            is_due = self._heartbeat.send_if_due() and pace.uses_clock
            pending_chunks.append(chunk)
            n_experiences += len(chunk.slots)
            if is_due or n_experiences >= MAX_CHUNK_EXPERIENCES:
                self._busy_s += time.perf_counter() - start_s
                self._send_feedback(agent, pending_chunks)
                pending_chunks, n_experiences = [], 0
                start_s = time.perf_counter()
        self._busy_s += time.perf_counter() - start_s
        self._updates += updates
        self._send_feedback(agent, pending_chunks)

    def _send_feedback(self, agent: Agent, chunks: list[ReplayedChunk]) -> None:
        """Send feedback to the rig, at most 1 MB per message; it also serves as a heartbeat during long updates."""
        if not chunks:
            return
        self._feedback_batch += 1
        self._link.ask(
            Feedback(self._feedback_batch, tuple(agent.feedback)),
            np.concatenate([p.slots for p in chunks]).astype("<i8").tobytes(),
            np.concatenate([p.generations for p in chunks]).astype("<u4").tobytes(),
            np.concatenate([p.values for p in chunks], axis=1).astype("<f4").tobytes(),
        )
        self.feedback_accepted = True
