"""Pace of a learner: how it stays synchronised with its rig, in real time and in lockstep."""

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
    """Schedule of a learner's work.

    ``last_completed_episode`` is the last training episode whose updates are complete, ``last_closed_episode`` the last
    one that the rig has closed.
    """

    uses_clock: bool
    """Whether the content and timing of the learner's messages may depend on the clock."""

    def last_finished_episode(self, attached: Attached) -> int:
        """Return the last training episode that requires no more work from a learner that has just attached."""

    def last_restorable_episode(self, attached: Attached) -> int | None:
        """Return the last episode whose saved state fits the rig's run; None if every saved state fits."""

    def prepare_agent(self, agent: Agent) -> bool:
        """Prepare an agent to push, and return whether it must be notified of every write from now on."""

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Prepare mirror and agent for the updates after this episode."""

    def limit_updates(self, updates: int, n_waiting: int) -> int:
        """Return how many of the ``updates`` that follow an episode to run while ``n_waiting`` later episodes are
        waiting."""

    def portion_size(self, updates: int) -> int:
        """Return how many of the next ``updates`` share one feedback message."""

    def offers_policy(self, n_waiting: int) -> bool:
        """Return whether to offer the policy after an episode while ``n_waiting`` later episodes are waiting."""

    def episodes_to_learn_after(self, last_completed_episode: int, last_closed_episode: int) -> Sequence[int]:
        """Return the episodes after which to learn from the complete batches."""

    def finish_episode(self, agent: Agent, checkpoint_episode: int) -> None:
        """Save the state if the rig may come to depend on it; ``checkpoint_episode``: episode of the rig's newest
        checkpoint."""

    def save(self, agent: Agent, min_interval_s: float) -> None:
        """Save the agent's state if the last save is at least ``min_interval_s`` old."""


class RealTime:
    """Pace in real time: learning overlaps with the next episode, the rig never waits, and late updates are dropped."""

    uses_clock: bool = True

    def __init__(self, states: States, backlog: Backlog, offers: PolicyOffers, max_waiting_updates: int) -> None:
        """``max_waiting_updates``: maximum number of updates that may be due for waiting episodes; while there are
        more, the updates of finished episodes are dropped."""
        self._states, self._backlog, self._offers, self._max_waiting_updates = (
            states,
            backlog,
            offers,
            max_waiting_updates,
        )
        self._last_save_s = time.monotonic()

    def last_finished_episode(self, attached: Attached) -> int:
        return attached.closed

    def last_restorable_episode(self, attached: Attached) -> int | None:
        return None  # every saved state fits

    def prepare_agent(self, agent: Agent) -> bool:
        """Bring the agent up to date; from here on it is notified of every write."""
        agent.catch_up()
        return True

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Do nothing: the agent has already been notified of every write."""

    def limit_updates(self, updates: int, n_waiting: int) -> int:
        if n_waiting * updates <= self._max_waiting_updates:
            return updates
        self._backlog.drop(updates)
        return 0

    def portion_size(self, updates: int) -> int:
        """Return a number of updates whose duration is limited, so that heartbeats can be sent in between."""
        return self._backlog.portion_size(updates)

    def offers_policy(self, n_waiting: int) -> bool:
        return not n_waiting or self._offers.has_retry_interval_passed

    def episodes_to_learn_after(self, last_completed_episode: int, last_closed_episode: int) -> Sequence[int]:
        """Return only the last episode, because complete batches are learned from immediately."""
        return (last_closed_episode,)

    def finish_episode(self, agent: Agent, checkpoint_episode: int) -> None:
        """Do nothing: ``save`` is called at intervals."""

    def save(self, agent: Agent, min_interval_s: float) -> None:
        if time.monotonic() - self._last_save_s >= min_interval_s:
            self._last_save_s = time.monotonic()
            self._states.save(agent)


class Lockstep:
    """Pace in lockstep: the rig waits at the end of each episode, so nothing depends on the clock, and an interrupted
    episode is repeated."""

    uses_clock: bool = False

    def __init__(self, link: Attachment, states: States) -> None:
        self._link, self._states = link, states

    def last_finished_episode(self, attached: Attached) -> int:
        return attached.done

    def last_restorable_episode(self, attached: Attached) -> int | None:
        return attached.done

    def prepare_agent(self, agent: Agent) -> bool:
        return False  # the agent catches up once per episode, because the content of a pull depends on the clock

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Have the rig compare the mirror with its memory, then let the agent catch up with the mirror."""
        assert self._link.mirror is not None
        self._link.ask(Confirm(episode, self._link.mirror.storage.digest()))
        agent.catch_up()

    def limit_updates(self, updates: int, n_waiting: int) -> int:
        return updates

    def portion_size(self, updates: int) -> int:
        return updates

    def offers_policy(self, n_waiting: int) -> bool:
        return True

    def episodes_to_learn_after(self, last_completed_episode: int, last_closed_episode: int) -> Sequence[int]:
        """Return every episode up to the last closed one, because policies change between episodes."""
        return range(last_completed_episode + 1, last_closed_episode + 1)

    def finish_episode(self, agent: Agent, checkpoint_episode: int) -> None:
        """Save the state if the rig writes a checkpoint after this episode."""
        if is_due(self._link.config, agent.last_completed_episode):
            self._states.save(agent, checkpoint_episode)

    def save(self, agent: Agent, min_interval_s: float) -> None:
        """Do nothing: only ``finish_episode`` saves."""
