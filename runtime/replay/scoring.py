"""Rewards from a task's terms, which the replay process adds to the records that it reads; the tick does not need
them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.record import CRC, Flag, RecordLayout, Step
from onrig.runtime.rewards import TermFailed, Transitions, build_term_reward
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.ring import RingReader
from onrig.runtime.shm.segment import Segment

Records = NDArray[np.void]
_UNSCORED: Final = int(Flag.INVALID | Flag.NO_ACTION)


class Terms:
    """Adds the reward terms of a task to the rewards of records."""

    def __init__(
        self, add: Callable[[Transitions, NDArray[np.float64]], NDArray[np.float64]], layout: RecordLayout, rig: Rig
    ) -> None:
        self._add_terms, self._layout = add, layout
        self._resolutions = np.array([a.resolution for a in rig.actuators])

    def score(self, records: Records) -> Records:
        """Return ``records`` with the terms added to the reward of each record whose transition the next one completes.

        Other rewards are unchanged.  Raises TermFailed, also for a non-finite reward.
        """
        first, second = records[:-1], records[1:]
        scored_indices = np.flatnonzero(
            (first["flags"] & _UNSCORED == 0)
            & (second["tick"] == first["tick"] + 1)
            & (second["episode"] == first["episode"])
            & (second["kind"] == first["kind"])
        )
        if not len(scored_indices):
            return records
        previous_action = (first["u_start"][scored_indices] * self._resolutions).astype(first["applied"].dtype)
        transitions = Transitions(
            second["observation"][scored_indices].astype(np.float64),
            first["applied"][scored_indices].astype(np.float64),
            previous_action.astype(np.float64),
            second["flags"][scored_indices] & Flag.TERMINATED != 0,
        )
        rewards = self._add_terms(transitions, first["reward"][scored_indices])
        for i in np.flatnonzero(~np.isfinite(rewards))[:1]:
            raise TermFailed(
                f"the reward terms give {rewards[i]} at the observation {transitions.observation[i].tolist()} after "
                f"the action {transitions.action[i].tolist()}"
            )
        records = records.copy()
        records["reward"][scored_indices] = rewards
        n_checked_bytes = self._layout.size - records.dtype[CRC.name].itemsize
        for i in scored_indices.tolist():
            records[CRC.name][i] = zlib.crc32(records[i].tobytes()[:n_checked_bytes])
        return records

    def complete(self, step: Step, next_step: Step) -> None:
        """Add the terms to the reward of one step, as ``score`` does for its record; raises TermFailed."""
        step.reward = float(self.score(self._layout.pack([step, next_step]))["reward"][0])


def terms_of(config: RunConfig, layout: RecordLayout) -> Terms | None:
    """Return the terms of a run's task; None if it has none.  Raises TermFailed."""
    add = build_term_reward(config.task.reward.terms, config.rig)
    return None if add is None else Terms(add, layout, config.rig)


class ScoredRingReader(RingReader):
    """The replay process's end of the ring, for a task with terms.

    A record can be read once the next one has been written, because its reward depends on it; the last record of an
    episode can be read at once.
    """

    def __init__(self, segment: Segment, layout: RecordLayout, terms: Terms, has_ended: Callable[[], bool]) -> None:
        """``has_ended``: whether the writer has ended, so that no record follows the last one."""
        super().__init__(segment, layout)
        self._terms, self._has_ended = terms, has_ended

    def peek(self, limit: int = 4096) -> Records:
        """Copy records like ``RingReader.peek``, with complete rewards; raises TermFailed."""
        if not limit:
            return super().peek(0)
        has_ended = self._has_ended()  # read before the ring, so that no record written before the end is missed
        records = super().peek(limit + 1)
        if not len(records):
            return records
        scored_records = self._terms.score(records)
        is_open = not (has_ended or int(records["flags"][-1]) & Flag.NO_ACTION)
        return scored_records[: min(limit, len(scored_records) - is_open)]

    def retained(self) -> Records:
        """Copy records like ``RingReader.retained``, with complete rewards; raises TermFailed."""
        n_retained = self.n_taken - self.tail
        return self._terms.score(self._copy_untorn(self.tail, n_retained + min(self.n_waiting, 1)))[:n_retained]


def ring_reader(config: RunConfig, segment: Segment, layout: RecordLayout, has_ended: Callable[[], bool]) -> RingReader:
    """Return the replay process's end of the ring; raises TermFailed."""
    terms = terms_of(config, layout)
    return RingReader(segment, layout) if terms is None else ScoredRingReader(segment, layout, terms, has_ended)
