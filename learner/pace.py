"""Pace of a learner: how it keeps step with its rig, in real time and in lockstep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from onrig.learner.agent import Agent
from onrig.learner.attachment import Attachment, Offering
from onrig.learner.backlog import Backlog
from onrig.learner.states import States
from onrig.runtime.link.messages import Attached, Confirm
from onrig.runtime.replay.checkpoint.upkeep import is_due


class Pace(Protocol):
    """What a learner does at which time; ``handled`` and ``closed`` count training episodes."""

    uses_clock: bool
    """Whether what it sends, and when, may depend on the clock."""

    def finished(self, attached: Attached) -> int:
        """Last training episode that a learner need not work on when it attaches."""

    def restored_upto(self, attached: Attached) -> int | None:
        """Last episode whose saved state fits the rig's run; None if all do."""

    def join(self, agent: Agent) -> bool:
        """Prepare an agent to push; returns whether it is to be notified of every write."""

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """Bring mirror and agent to where the updates after this episode begin."""

    def affordable(self, updates: int, behind: int) -> int:
        """Number of the ``updates`` after an episode that are done, with ``behind`` later episodes waiting."""

    def portion(self, updates: int) -> int:
        """Number of the next ``updates`` whose feedback is sent together."""

    def offers(self, behind: int) -> bool:
        """Whether to offer the policy after an episode, with ``behind`` later ones waiting."""

    def ends(self, handled: int, closed: int) -> Sequence[int]:
        """Episodes after each of which the complete batches are learned from."""

    def conclude(self, agent: Agent, settled: int) -> None:
        """Save what the rig may depend on; ``settled``: episode of the newest checkpoint to which it may return."""

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        """Save the agent's state if it has not been saved for so long."""


class RealTime:
    """The rig waits for nothing: learning overlaps the next episode, and what is not done in time is dropped."""

    uses_clock: bool = True

    def __init__(self, states: States, backlog: Backlog, offering: Offering, most_behind: int) -> None:
        """``most_behind``: updates in whole episodes beyond which those of an episode are dropped."""
        self._states, self._backlog, self._offering, self._most_behind = states, backlog, offering, most_behind
        self._saved_s = time.monotonic()

    def finished(self, attached: Attached) -> int:
        """As Pace."""
        return attached.closed

    def restored_upto(self, attached: Attached) -> int | None:
        """As Pace; None."""
        return None

    def join(self, agent: Agent) -> bool:
        """As Pace; true."""
        agent.catch_up()
        return True

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """As Pace; the agent is notified of every write."""

    def affordable(self, updates: int, behind: int) -> int:
        """As Pace."""
        if behind * updates <= self._most_behind:
            return updates
        self._backlog.drop(updates)
        return 0

    def portion(self, updates: int) -> int:
        """As Pace; bounded in time, so that heartbeats are sent in between."""
        return self._backlog.portion(updates)

    def offers(self, behind: int) -> bool:
        """As Pace."""
        return not behind or self._offering.retry_interval_passed

    def ends(self, handled: int, closed: int) -> Sequence[int]:
        """As Pace; at once."""
        return (closed,)

    def conclude(self, agent: Agent, settled: int) -> None:
        """As Pace; nothing."""

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        """As Pace."""
        if time.monotonic() - self._saved_s >= at_most_every_s:
            self._saved_s = time.monotonic()
            self._states.save(agent)


class Lockstep:
    """The rig waits at the end of each episode, so nothing depends on the clock, and an interrupted one is repeated."""

    uses_clock: bool = False

    def __init__(self, link: Attachment, states: States) -> None:
        self._link, self._states = link, states

    def finished(self, attached: Attached) -> int:
        """As Pace."""
        return attached.done

    def restored_upto(self, attached: Attached) -> int | None:
        """As Pace."""
        return attached.done

    def join(self, agent: Agent) -> bool:
        """As Pace; false: it catches up once an episode, since the content of a pull depends on the clock."""
        return False

    def begin_episode(self, agent: Agent, episode: int) -> None:
        """As Pace; the rig compares the mirror with its memory."""
        assert self._link.mirror is not None
        self._link.ask(Confirm(episode, self._link.mirror.storage.digest()))
        agent.catch_up()

    def affordable(self, updates: int, behind: int) -> int:
        """As Pace; all of them."""
        return updates

    def portion(self, updates: int) -> int:
        """As Pace; all of them."""
        return updates

    def offers(self, behind: int) -> bool:
        """As Pace; true."""
        return True

    def ends(self, handled: int, closed: int) -> Sequence[int]:
        """As Pace; each one, because policies change there."""
        return range(handled + 1, closed + 1)

    def conclude(self, agent: Agent, settled: int) -> None:
        """As Pace; where the rig writes a checkpoint."""
        if is_due(self._link.config, agent.handled):
            self._states.save(agent, settled)

    def save(self, agent: Agent, at_most_every_s: float) -> None:
        """As Pace; nothing: only ``conclude`` saves."""
