"""Pace of a learner: synchronisation with its rig, in real time and in lockstep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment, PolicyOffers
from onrig.learner.backlog import Backlog
from onrig.learner.states import States
from onrig.runtime.link.messages import Attached, Confirm
from onrig.runtime.replay.checkpoint.upkeep import is_due


class Pace(Protocol):
    """Schedule of a learner's work; ``handled`` and ``closed`` count training episodes."""

    uses_clock: bool
    """Whether the content and time of its messages may depend on the clock."""

    def last_finished_episode(self, attached: Attached) -> int:
        """Return the last training episode that needs no work when a learner attaches."""

    def last_restorable_episode(self, attached: Attached) -> int | None:
        """Return the last episode whose saved state fits the rig's run; None if all do."""

    def join(self, agent: Agent) -> bool:
        """Prepare an agent to push; returns whether it is notified of every write."""

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Prepare mirror and agent for the updates after this episode."""

    def affordable(self, updates: int, behind: int) -> int:
        """Return how many of the ``updates`` after an episode to run, with ``behind`` later episodes waiting."""

    def portion(self, updates: int) -> int:
        """Return how many of the next ``updates`` share one feedback message."""

    def offers_policy(self, behind: int) -> bool:
        """Return whether to offer the policy after an episode, with ``behind`` later ones waiting."""

    def episodes_to_learn_after(self, handled: int, closed: int) -> Sequence[int]:
        """Return the episodes after each of which to learn from the complete batches."""

    def conclude(self, agent: Agent, settled: int) -> None:
        """Save what the rig may depend on; ``settled``: episode of the newest checkpoint to which it may return."""

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        """Save the agent's state if the last save is at least this old."""


class RealTime:
    """Learning overlaps the next episode: the rig never waits, and late updates are dropped."""

    uses_clock: bool = True

    def __init__(self, states: States, backlog: Backlog, offers: PolicyOffers, max_behind: int) -> None:
        """``max_behind``: maximum number of updates in waiting episodes, beyond which more are dropped."""
        self._states, self._backlog, self._offers, self._max_behind = states, backlog, offers, max_behind
        self._saved_s = time.monotonic()

    def last_finished_episode(self, attached: Attached) -> int:
        return attached.closed

    def last_restorable_episode(self, attached: Attached) -> int | None:
        return None  # every saved state fits

    def join(self, agent: Agent) -> bool:
        """Bring the agent up to date; from here on it is notified of every write."""
        agent.catch_up()
        return True

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Do nothing: the agent is notified of every write."""

    def affordable(self, updates: int, behind: int) -> int:
        if behind * updates <= self._max_behind:
            return updates
        self._backlog.drop(updates)
        return 0

    def portion(self, updates: int) -> int:
        """Return a number of updates limited in time, so that heartbeats are sent in between."""
        return self._backlog.portion(updates)

    def offers_policy(self, behind: int) -> bool:
        return not behind or self._offers.retry_interval_passed

    def episodes_to_learn_after(self, handled: int, closed: int) -> Sequence[int]:
        """Return only the last episode: batches are learned from immediately."""
        return (closed,)

    def conclude(self, agent: Agent, settled: int) -> None:
        """Do nothing: ``save`` is called at intervals."""

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        if time.monotonic() - self._saved_s >= at_most_every_s:
            self._saved_s = time.monotonic()
            self._states.save(agent)


class Lockstep:
    """The rig waits at the end of each episode, so nothing depends on the clock; an interrupted episode is repeated."""

    uses_clock: bool = False

    def __init__(self, link: Attachment, states: States) -> None:
        self._link, self._states = link, states

    def last_finished_episode(self, attached: Attached) -> int:
        return attached.done

    def last_restorable_episode(self, attached: Attached) -> int | None:
        return attached.done

    def join(self, agent: Agent) -> bool:
        return False  # it catches up once per episode, because the content of a pull depends on the clock

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Catch up with the mirror, which the rig compares with its memory."""
        assert self._link.mirror is not None
        self._link.ask(Confirm(episode, self._link.mirror.storage.digest()))
        agent.catch_up()

    def affordable(self, updates: int, behind: int) -> int:
        return updates

    def portion(self, updates: int) -> int:
        return updates

    def offers_policy(self, behind: int) -> bool:
        return True

    def episodes_to_learn_after(self, handled: int, closed: int) -> Sequence[int]:
        """Return each episode, because policies change between episodes."""
        return range(handled + 1, closed + 1)

    def conclude(self, agent: Agent, settled: int) -> None:
        """Save the state if the rig writes a checkpoint after this episode."""
        if is_due(self._link.config, agent.handled):
            self._states.save(agent, settled)

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        """Do nothing: only ``conclude`` saves."""
