"""Replies to Pulls: writes to the memory, closed episodes, and probation results of policies."""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Literal

from onrig.runtime.link.messages import (
    MAX_CLOSED_EPISODES,
    MAX_PAYLOAD_BYTES,
    MAX_REASON,
    MAX_ROWS,
    MAX_RULINGS,
    ClosedEpisode,
    Pull,
    Refused,
    Rows,
    Ruling,
)
from onrig.runtime.link.server import Reply, Ticket
from onrig.runtime.memory.storage import STAMP_WORDS
from onrig.runtime.replay.experiences import Memory

_WAIT_LIMIT_MS: Final = 2000
_MAX_STORED_RULINGS: Final = 64
"""Maximum number of probation results kept for learners."""


class Feed:
    """Answers each Pull once: immediately, or through `take_due_replies` once there is news or its wait is over."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._pending_pulls: list[tuple[float, Ticket, Pull]] = []
        self._returns: dict[int, float] = {}
        """Returns of the latest closed episodes."""
        self._rulings: deque[Ruling] = deque(maxlen=_MAX_STORED_RULINGS)
        self._n_rulings = 0
        self.last_closed_episode = 0
        """Last training episode whose transitions are complete in the memory."""
        self.last_checkpoint_episode = -1
        """Training episode of the newest checkpoint on disk (lockstep)."""
        self.is_ending = False
        """Whether the run is over."""

    def close(self, episode: int, episode_return: float) -> None:
        """Record a training episode whose transitions are all in the memory, and its undiscounted return in raw
        units."""
        self.last_closed_episode = episode
        self._returns[episode] = episode_return
        for old_episode in sorted(self._returns)[:-MAX_CLOSED_EPISODES]:
            del self._returns[old_episode]

    def add_ruling(self, policy_id: int, verdict: Literal["passed", "rolled_back", "failed"], reason: str) -> None:
        """Add the probation result of an admitted policy; learners receive it with their next rows."""
        self._n_rulings += 1
        self._rulings.append(Ruling(self._n_rulings, policy_id, verdict, reason[:MAX_REASON]))

    def pull(self, ticket: Ticket, pull: Pull) -> Reply | None:
        """Answer a Pull; return None if it has to wait for news."""
        inserted = self._memory.storage.inserted
        if not 0 <= pull.since <= inserted:
            return Reply(Refused(f"the mirror claims {pull.since} writes, but the memory has had only {inserted}"))
        if pull.wait_ms <= 0 or self._has_news(pull):
            return self._rows(pull)
        self.forget(ticket.peer)  # a peer has at most one pending Pull, so it has abandoned the earlier one
        self._pending_pulls.append((time.monotonic() + min(pull.wait_ms, _WAIT_LIMIT_MS) / 1000, ticket, pull))
        return None

    def take_due_replies(self) -> list[tuple[Ticket, Reply]]:
        """Return replies to waiting Pulls that have news or whose wait is over."""
        if not self._pending_pulls:
            return []
        now_s = time.monotonic()
        due_replies = [
            (t, self._rows(p)) for deadline_s, t, p in self._pending_pulls if self._has_news(p) or now_s >= deadline_s
        ]
        answered_tickets = {t for t, _ in due_replies}
        self._pending_pulls = [w for w in self._pending_pulls if w[1] not in answered_tickets]
        return due_replies

    def forget(self, peer: bytes) -> None:
        """Drop the pending Pull of a peer."""
        self._pending_pulls = [w for w in self._pending_pulls if w[1].peer != peer]

    def _has_news(self, pull: Pull) -> bool:
        return self._memory.storage.inserted > pull.since or self.last_closed_episode > pull.closed or self.is_ending

    def _rows(self, pull: Pull) -> Reply:
        storage = self._memory.storage
        max_fitting_rows = MAX_PAYLOAD_BYTES // (4 * STAMP_WORDS + storage.layout.row_bytes)
        slots = storage.changed_since(pull.since, max(1, min(pull.max_rows, MAX_ROWS, max_fitting_rows)))
        rows = storage.rows(slots)
        last_number = int(storage.number(slots[-1:])[0]) if len(slots) else storage.inserted
        rulings = [ruling for ruling in self._rulings if ruling.number > pull.heard][:MAX_RULINGS]
        closed_episodes = tuple(
            ClosedEpisode(e, total)
            for e, total in sorted(self._returns.items())
            if pull.closed < e <= self.last_closed_episode
        )
        message = Rows(
            last_number,
            storage.inserted,
            self.last_closed_episode,
            self.is_ending,
            tuple(rulings),
            self.last_checkpoint_episode,
            closed_episodes,
        )
        return Reply(message, (rows.astype("<u4", copy=False).tobytes(),), storage.scanned_bytes(pull.since))
