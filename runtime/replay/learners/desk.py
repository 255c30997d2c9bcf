"""Request handling for learners: memory contents for them, and feedback and policies from them.

No sockets here; ``onrig.runtime.link.server`` carries the messages.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from onrig.runtime.link.messages import (
    LEASE,
    LINK_VERSION,
    MAX_CLOSED,
    MAX_PAYLOAD_BYTES,
    MAX_REASON,
    MAX_REPLAYED,
    MAX_ROWS,
    MAX_RULINGS,
    UNKNOWN,
    VERSION,
    Accepted,
    Ancestor,
    Attach,
    Attached,
    Closed,
    Confirm,
    Done,
    Feedback,
    Leave,
    Offer,
    Pull,
    Refused,
    RequestMessage,
    Rows,
    Ruling,
)
from onrig.runtime.link.server import Answer, Ticket
from onrig.runtime.memory.keepers.keeper import FEEDBACK
from onrig.runtime.memory.storage import STAMP_WORDS
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.lease import Lease
from onrig.runtime.replay.learners.policy_desk import PolicyDesk
from onrig.runtime.run_config import RunConfig

_WAIT_LIMIT_MS: Final = 2000
_MAX_PEERS: Final = 64
"""Connections remembered; beyond that, the one silent for longest must attach again."""
_KEPT_RULINGS: Final = 64
"""Number of latest rulings on policies kept for learners."""
_ANCESTORS: Final = 64
"""Memories before this one that are remembered."""
_SILENT_S: Final = 5.0
"""Silence after which a learner is not waited for at the end."""


@dataclass
class _Peer:
    session: bytes
    key: str
    heard_s: float


class LearnerDesk:
    """Answers each request once; a Pull that waits for news is answered by ``due``."""

    def __init__(
        self,
        memory: Memory,
        policies: PolicyDesk,
        *,
        run: str,
        run_id: str,
        config_text: bytes,
        lockstep: bool,
        event: Callable[..., None],
        is_gone: Callable[[bytes], bool] = lambda peer: False,
    ) -> None:
        self._memory, self._policies, self._event = memory, policies, event
        self._run, self._run_id, self._config_text, self._lockstep = run, run_id, config_text, lockstep
        self._waiting: list[tuple[float, Ticket, Pull]] = []
        self._peers: dict[bytes, _Peer] = {}
        self._is_gone = is_gone
        self._lease = Lease(is_gone)
        self._pusher = self._newcomer = b""
        self._touched = False
        """Whether the pushing learner has changed anything since the last checkpoint (lockstep)."""
        self._settled = -1
        """Training episode of the newest checkpoint on disk (lockstep)."""
        self._expected_updates: int | None = None
        """Updates that a learner must report when it continues a lockstep run; None once it has."""
        self.memory_name: Final = os.urandom(16)
        self.lineage: tuple[Ancestor, ...] = ()
        """Memories that this one was restored of, the last one at the end."""
        self._restored = memory.storage.inserted
        self.closed = 0
        """Last training episode whose transitions are complete in the memory."""
        self.done = -1
        """Last training episode after which the learner has finished its work (0: it has attached and begun)."""
        self.learner_kept = True
        """Whether the learner has saved its state after ``done`` (lockstep)."""
        self.replaced = False
        """Whether a learner wants to push that is not the one that worked on the last episodes (lockstep)."""
        self.departures = 0
        """Number of deviations of a lockstep run from its undisturbed course."""
        self.ending = False
        self.mismatches = 0
        """Number of comparisons in which a mirror differed from the memory (lockstep)."""
        self.updates = 0
        self.updates_per_s = 0.0
        self.error_batch = 0
        """Last batch of feedback applied; repeated batches are skipped."""
        self.error_batches = 0
        """Number of batches of feedback applied."""
        self.heard_ns = 0
        """Monotonic time of the pushing learner's last message; 0 before the first."""
        self._returns: dict[int, float] = {}
        """Of the latest closed episodes."""
        self._rulings: deque[Ruling] = deque(maxlen=_KEPT_RULINGS)
        self._ruled = 0

    def descend(self, memory: bytes, lineage: Sequence[Ancestor]) -> None:
        """Note the memory of whose checkpoint this one was restored, and the lineage of that."""
        before = [Ancestor(one.memory, min(one.writes, self._restored)) for one in lineage]
        self.lineage = (*before, Ancestor(memory, self._restored))[-_ANCESTORS:]

    def handle(self, ticket: Ticket, request: RequestMessage, payloads: Sequence[bytes]) -> Answer | None:
        """Answer one request; None if the answer comes later."""
        now_s = time.monotonic()
        if isinstance(request, Attach):
            return self._attach(ticket, request, now_s)
        peer = self._peers.get(ticket.peer)
        if peer is None:
            return Answer(Refused("attach first: this connection, or this memory, is a new one", UNKNOWN))
        peer.heard_s = now_s
        self._lease.heard(ticket.peer, now_s)
        if self._lease.held_by(ticket.peer):
            self.heard_ns = round(now_s * 1e9)
        if not isinstance(request, Pull | Leave) and not self._lease.held_by(ticket.peer):
            who = self._lease.holder
            return Answer(Refused(f"another learner pushes ({who})" if who else "nobody pushes; attach to", LEASE))
        match request:
            case Leave():
                self._forget(ticket.peer)
                return Answer(Accepted())
            case Pull():
                return self._pull(ticket, request)
            case Confirm():
                return self._confirm(request)
            case Feedback():
                return self._feedback(request, payloads)
            case Offer():
                if len(payloads) != 1:
                    return Answer(Refused("an offer carries one payload"))
                self._touched = True
                model = payloads[0]
                return Answer(self._policies.judge(model, self._recorded(), learner=ticket.key, closed=self.closed))
            case Done():
                return self._done(request)

    def close(self, episode: int, episode_return: float) -> None:
        """Note a training episode whose transitions are all in the memory, and its undiscounted return in raw units."""
        self.closed = episode
        self._returns[episode] = episode_return
        for old in sorted(self._returns)[:-MAX_CLOSED]:
            del self._returns[old]

    def due(self) -> list[tuple[Ticket, Answer]]:
        """Answers to waiting Pulls for which there is news or whose wait is over."""
        if not self._waiting:
            return []
        now = time.monotonic()
        ready = [(t, self._rows(p)) for limit, t, p in self._waiting if self._has_news(p) or now >= limit]
        answered = {t for t, _ in ready}
        self._waiting = [w for w in self._waiting if w[1] not in answered]
        return ready

    def rule(self, policy_id: int, verdict: Literal["passed", "rolled_back", "failed"], reason: str) -> None:
        """Record a ruling on an admitted policy; learners receive it with their next rows."""
        self._ruled += 1
        self._rulings.append(Ruling(self._ruled, policy_id, verdict, reason[:MAX_REASON]))
        if verdict == "rolled_back":
            self._policies.take_back(policy_id, reason)

    def updates_behind(self, policy_id: int) -> int | None:
        """Updates that the learner has reported beyond those in a policy; None for an unknown policy."""
        step = self._policies.training_step(policy_id)
        return None if step is None else max(0, self.updates - step)

    @property
    def expects_somebody(self) -> bool:
        """Whether a learner heard from recently is still connected; it disconnects when told that the run is over."""
        now_s = time.monotonic()
        late = [name for name, peer in self._peers.items() if peer.heard_s > now_s - _SILENT_S]
        return any(not self._is_gone(name) for name in late)

    def settle(self, episode: int) -> None:
        """Note that a checkpoint was written after this training episode, to which a lockstep run can return."""
        self._settled, self._touched = episode, False

    def admit_replacement(self) -> None:
        """Let another learner continue from here, although the run cannot return to a state that it could reproduce."""
        self._pusher, self.error_batch = self._newcomer, 0
        self._touched, self.departures = False, self.departures + 1

    def _done(self, request: Done) -> Answer:
        if self._lockstep and self._expected_updates not in (None, request.updates):
            self.departures += 1
            self._event(
                "not_reproducible",
                reason=(
                    f"the learner continues after {request.updates} updates, the run was at {self._expected_updates}"
                ),
            )
        self._expected_updates = None
        episode = min(request.episode, self.closed)
        if episode > self.done:
            self.done, self.learner_kept, self._touched = episode, request.kept, True
        self.updates, self.updates_per_s = request.updates, request.updates_per_s
        return Answer(Accepted())

    def _forget(self, peer: bytes) -> None:
        self._peers.pop(peer, None)
        self._waiting = [w for w in self._waiting if w[1].peer != peer]
        self._lease.give_up(peer)

    def _recorded(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Sample of observations, evenly spaced over the memory."""
        storage = self._memory.storage
        at = np.linspace(0, max(storage.stored - 1, 0), min(storage.stored, 64)).astype(np.int64)
        return storage.observation[at]

    def _attach(self, ticket: Ticket, request: Attach, now_s: float) -> Answer | None:
        if request.version != LINK_VERSION:
            versions = f"the learner speaks version {request.version} of the link, the rig {LINK_VERSION}"
            return Answer(Refused(f"{versions}; install the same Onrig at both ends", VERSION))
        session = request.session or ticket.peer[:16]
        known = self._peers.get(ticket.peer)
        if known is None and len(self._peers) >= _MAX_PEERS:
            self._peers.pop(min(self._peers, key=lambda p: self._peers[p].heard_s))
        self._peers[ticket.peer] = _Peer(session, ticket.key, now_s)
        held = self._lease.belongs_to(session, ticket.key)
        why: str | None = "it only watches"
        if request.role == "push":
            why = self._lease.ask(session, ticket.key, ticket.peer, now_s)
            if why is None:
                self.heard_ns = round(now_s * 1e9)
        if why is None and not held and session != self._pusher:
            if self._lockstep and self._pusher and self._touched and not self.ending:
                self.replaced, self._newcomer = True, session
                return None  # it asks again when the run can be continued
            if self._lockstep:
                self._expected_updates = self.updates if self.done >= 0 or self._restored else None
            self._pusher = session
            self.error_batch = 0  # a new session numbers its batches from its own start
        if request.memory not in (b"", self.memory_name):
            pass  # a mirror of another memory: the answer says so, and the learner attaches again without it
        elif known is None:
            came_back = request.memory == self.memory_name
            self._event("learner_resumed" if came_back else "learner_attached", learner=ticket.key, pushes=why is None)
        elif why is None and not held:
            self._event("push_passed", learner=ticket.key)
        storage = self._memory.storage
        return Answer(
            Attached(
                run=self._run,
                run_id=self._run_id,
                config=self._config_text,
                capacity=storage.capacity,
                cyclic=storage.cyclic,
                inserted=storage.inserted,
                closed=self.closed,
                next_policy_id=self._policies.next_id,
                lockstep=self._lockstep,
                memory=self.memory_name,
                restored=self._restored,
                lineage=self.lineage,
                done=self.done,
                pushes=why is None,
                why=why or "",
                behaviour=storage.layout.behaviour,
            )
        )

    def _has_news(self, pull: Pull) -> bool:
        return self._memory.storage.inserted > pull.since or self.closed > pull.closed or self.ending

    def _pull(self, ticket: Ticket, pull: Pull) -> Answer | None:
        if not 0 <= pull.since <= self._memory.storage.inserted:
            return Answer(Refused(f"{pull.since} writes seen, there have been {self._memory.storage.inserted}"))
        if pull.wait_ms <= 0 or self._has_news(pull):
            return self._rows(pull)
        # A peer has one pending Pull; it has given up the earlier one.
        self._waiting = [w for w in self._waiting if w[1].peer != ticket.peer]
        self._waiting.append((time.monotonic() + min(pull.wait_ms, _WAIT_LIMIT_MS) / 1000, ticket, pull))
        return None

    def _rows(self, pull: Pull) -> Answer:
        storage = self._memory.storage
        fit = MAX_PAYLOAD_BYTES // (4 * STAMP_WORDS + storage.layout.row_bytes)
        slots = storage.changed_since(pull.since, max(1, min(pull.max_rows, MAX_ROWS, fit)))
        rows = storage.rows(slots)
        upto = int(storage.number(slots[-1:])[0]) if len(slots) else storage.inserted
        rulings = [ruling for ruling in self._rulings if ruling.number > pull.heard][:MAX_RULINGS]
        ended = tuple(Closed(e, total) for e, total in sorted(self._returns.items()) if pull.closed < e <= self.closed)
        message = Rows(upto, storage.inserted, self.closed, self.ending, tuple(rulings), self._settled, ended)
        return Answer(message, (rows.astype("<u4", copy=False).tobytes(),), storage.scanned_bytes(pull.since))

    def _confirm(self, request: Confirm) -> Answer:
        if request.digest == self._memory.storage.digest():
            return Answer(Accepted())
        self.mismatches += 1
        self._event("mirror_differs", episode=request.episode)
        return Answer(Refused(f"the mirror differs from the memory after episode {request.episode}"))

    def _feedback(self, request: Feedback, payloads: Sequence[bytes]) -> Answer:
        if request.batch <= self.error_batch:
            return Answer(Accepted())  # repeated, already applied
        try:
            slots, generations, values = (
                np.frombuffer(data, dtype) for data, dtype in zip(payloads, ("<i8", "<u4", "<f4"), strict=True)
            )
            if len(slots) > MAX_REPLAYED or len(generations) != len(slots):
                raise ValueError(f"unequal lengths, or more than {MAX_REPLAYED} experiences")
            values = values.reshape(len(request.kinds), len(slots))
            signals = [FEEDBACK[kind] for kind in request.kinds]
        except ValueError as error:
            return Answer(Refused(f"malformed feedback: {error}"))
        except KeyError as unknown:
            return Answer(Refused(f"feedback of unknown kind {unknown}; there are {', '.join(FEEDBACK)}"))
        self.error_batch = request.batch
        self.error_batches += 1
        self._touched = True
        slots, generations = slots.astype(np.int64), generations.astype(np.uint32)
        for signal, told in zip(signals, np.abs(values).astype(np.float32), strict=True):
            self._memory.take_feedback(signal, slots, generations, told)
        return Answer(Accepted())


def run_id(config: RunConfig, run_folder: Path, config_text: bytes) -> str:
    """Name of the run in its policies: its folder; in lockstep, where equal runs give equal policies, a digest."""
    if not config.lockstep:
        return run_folder.name
    return f"{config.rig.name}-{hashlib.blake2b(config_text, digest_size=8).hexdigest()}"
