"""Handling of learners' requests, which read the memory, or deliver feedback and policies.

This module uses no sockets; ``onrig.runtime.link.server`` transfers the messages.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from onrig.runtime.link.messages import (
    LEASE,
    LINK_VERSION,
    UNKNOWN,
    VERSION,
    Accepted,
    Ancestor,
    Attach,
    Attached,
    Confirm,
    Done,
    Feedback,
    Leave,
    Offer,
    Pull,
    Refused,
    RequestMessage,
)
from onrig.runtime.link.server import Reply, Ticket
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.feed import Feed
from onrig.runtime.replay.learners.feedback import FeedbackIntake
from onrig.runtime.replay.learners.peers import Peers
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.succession import Succession
from onrig.runtime.run_config import RunConfig

_MAX_ANCESTORS: Final = 64
"""Maximum number of ancestors kept in the lineage."""


class RunIdentity(NamedTuple):
    """Information for a learner about the run that it attaches to."""

    run: str
    """Identity of the run."""
    run_id: str
    """Name by which the run's policies refer to it; see the function `run_id`."""
    config_text: bytes
    """Configuration, as in ``config.yaml``."""


class LearnerRequests:
    """Answers each request once; a waiting Pull is answered by ``feed.take_due_replies``."""

    def __init__(
        self,
        memory: Memory,
        policies: PolicyAdmission,
        identity: RunIdentity,
        succession: Succession,
        event: Callable[..., None],
        is_gone: Callable[[bytes], bool] = lambda peer: False,
    ) -> None:
        self._memory, self._policies, self._event = memory, policies, event
        self._identity = identity
        self.peers: Final = Peers(is_gone)
        self.feed: Final = Feed(memory)
        self.feedback: Final = FeedbackIntake(memory)
        self.succession: Final = succession
        self.memory_name: Final = os.urandom(16)
        self.lineage: tuple[Ancestor, ...] = ()
        """Memories from which this one was restored, most recent last."""
        self._n_restored = memory.storage.inserted
        self.last_done_episode = -1
        """Last training episode for which the learner has finished its work (0: it has attached and started)."""
        self.learner_state_saved = True
        """Whether the learner has saved its state after ``last_done_episode`` (lockstep)."""
        self.mismatches = 0
        """Number of comparisons in which a mirror differed from the memory (lockstep)."""
        self.updates = 0
        self.updates_per_s = 0.0

    def set_lineage(self, memory: bytes, lineage: Sequence[Ancestor]) -> None:
        """Record the ``memory`` from whose checkpoint this one was restored, and the lineage of that memory."""
        ancestors = [Ancestor(ancestor.memory, min(ancestor.writes, self._n_restored)) for ancestor in lineage]
        self.lineage = (*ancestors, Ancestor(memory, self._n_restored))[-_MAX_ANCESTORS:]

    def handle(self, ticket: Ticket, request: RequestMessage, payloads: Sequence[bytes]) -> Reply | None:
        """Answer one request; return None if there is no answer yet."""
        now_s = time.monotonic()
        if isinstance(request, Attach):
            return self._attach(ticket, request, now_s)
        if not self.peers.on_message(ticket, now_s):
            return Reply(Refused("attach first: this connection or this memory is new", UNKNOWN))
        lease = self.peers.lease
        if not isinstance(request, Pull | Leave) and not lease.held_by(ticket.peer):
            holder = lease.holder
            reason = (
                f"another learner pushes ({holder})" if holder else "no learner holds the push role; attach to take it"
            )
            return Reply(Refused(reason, LEASE))
        match request:
            case Leave():
                self.peers.leave(ticket.peer)
                self.feed.forget(ticket.peer)
                return Reply(Accepted())
            case Pull():
                return self.feed.pull(ticket, request)
            case Confirm():
                return self._confirm(request)
            case Feedback():
                return self._feedback(request, payloads)
            case Offer():
                return self._offer(ticket, payloads)
            case Done():
                return self._done(request)

    def add_ruling(self, policy_id: int, verdict: Literal["passed", "rolled_back", "failed"], reason: str) -> None:
        """Record the probation result of an admitted policy; learners receive it with their next rows."""
        self.feed.add_ruling(policy_id, verdict, reason)
        if verdict == "rolled_back":
            self._policies.note_rollback(policy_id, reason)

    def updates_behind(self, policy_id: int) -> int | None:
        """Return by how many of the learner's updates a policy is out of date; None if the policy is unknown."""
        step = self._policies.training_step(policy_id)
        return None if step is None else max(0, self.updates - step)

    def note_checkpoint(self, episode: int) -> None:
        """Record that a lockstep run can now return to a checkpoint after this training episode."""
        self.feed.last_checkpoint_episode = episode
        self.succession.note_checkpoint()

    def admit_replacement(self) -> None:
        """Let a different learner continue from the current state, although the run is then no longer reproducible."""
        self.succession.admit_replacement()
        self.feedback.last_batch = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def _attach(self, ticket: Ticket, request: Attach, now_s: float) -> Reply | None:
        if request.version != LINK_VERSION:
            description = f"the learner uses version {request.version} of the link, the rig version {LINK_VERSION}"
            return Reply(Refused(f"{description}; install the same Onrig at both ends", VERSION))
        session = request.session or ticket.peer[:16]
        was_attached = self.peers.enter(ticket, session, now_s)
        holds_lease = self.peers.lease.belongs_to(session, ticket.key)
        pushes = request.role == "push"
        reason = self.peers.request_lease(ticket, session, now_s) if pushes else "the learner only reads"
        if reason is None and not holds_lease and not self.succession.is_current(session):
            updates = self.updates if self.last_done_episode >= 0 or self._n_restored else None
            if not self.succession.admits(session, updates, is_ending=self.feed.is_ending):
                return None  # the learner retries until it can continue the run
            self.feedback.last_batch = 0  # a new session numbers its batches from the beginning
        if request.memory not in (b"", self.memory_name):
            pass  # its mirror is of a different memory, as the answer shows: it will attach again without one
        elif not was_attached:
            has_reconnected = request.memory == self.memory_name
            self._event(
                "learner_resumed" if has_reconnected else "learner_attached", learner=ticket.key, pushes=reason is None
            )
        elif reason is None and not holds_lease:
            self._event("push_passed", learner=ticket.key)
        return Reply(self._attached(reason))

    def _attached(self, reason: str | None) -> Attached:
        """Return the answer to an Attach; ``reason``: reason for refusing the push role, None if it is granted."""
        storage = self._memory.storage
        return Attached(
            run=self._identity.run,
            run_id=self._identity.run_id,
            config=self._identity.config_text,
            capacity=storage.capacity,
            cyclic=storage.cyclic,
            inserted=storage.inserted,
            closed=self.feed.last_closed_episode,
            next_policy_id=self._policies.next_id,
            lockstep=self.succession.lockstep,
            memory=self.memory_name,
            restored=self._n_restored,
            lineage=self.lineage,
            done=self.last_done_episode,
            pushes=reason is None,
            why=reason or "",
            behaviour=storage.layout.behaviour,
        )

    def _confirm(self, request: Confirm) -> Reply:
        if request.digest == self._memory.storage.digest():
            return Reply(Accepted())
        self.mismatches += 1
        self._event("mirror_differs", episode=request.episode)
        return Reply(Refused(f"the mirror differs from the memory after episode {request.episode}"))

    def _feedback(self, request: Feedback, payloads: Sequence[bytes]) -> Reply:
        if self.feedback.is_known(request):
            return Reply(Accepted())
        refusal = self.feedback.apply(request, payloads)
        if refusal is None:
            self.succession.note_change()
        return Reply(refusal or Accepted())

    def _offer(self, ticket: Ticket, payloads: Sequence[bytes]) -> Reply:
        if len(payloads) != 1:
            return Reply(Refused("an offer carries one payload"))
        self.succession.note_change()
        observations = self._sample_observations()
        return Reply(
            self._policies.admit(
                payloads[0], observations, learner=ticket.key, closed_episode=self.feed.last_closed_episode
            )
        )

    def _sample_observations(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return a sample of observations, evenly spaced over the memory."""
        storage = self._memory.storage
        slots = np.linspace(0, max(storage.stored - 1, 0), min(storage.stored, 64)).astype(np.int64)
        return storage.observation[slots]

    def _done(self, request: Done) -> Reply:
        if (deviation := self.succession.deviation(request.updates)) is not None:
            self._event("not_reproducible", reason=deviation)
        episode = min(request.episode, self.feed.last_closed_episode)
        if episode > self.last_done_episode:
            self.last_done_episode, self.learner_state_saved = episode, request.kept
            self.succession.note_change()
        self.updates, self.updates_per_s = request.updates, request.updates_per_s
        return Reply(Accepted())


def run_id(config: RunConfig, run_folder: Path, config_text: bytes) -> str:
    """Return the name by which a run's policies refer to it.

    This is the name of its folder; in lockstep, where equal runs must give equal policies, it is the rig's name with a
    digest of the configuration.
    """
    if not config.lockstep:
        return run_folder.name
    return f"{config.rig.name}-{hashlib.blake2b(config_text, digest_size=8).hexdigest()}"
