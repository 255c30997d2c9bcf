"""What a resumed run repeats of that which came after its checkpoint: nothing in real time, everything in lockstep."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.control.loop_state import decode_state
from onrig.runtime.replay.checkpoint.upkeep import is_due
from onrig.runtime.replay.summary import Parts
from onrig.runtime.run_config import RunConfig


class Repetition(Protocol):
    """Rule of a run on where it can be continued."""

    relies_on: tuple[str, ...]
    """Files that a checkpoint relies on, in addition to the rows of the episodes and the policies."""

    @property
    def is_at_rest(self) -> bool:
        """Whether the run can be continued from a checkpoint written now."""

    @property
    def replaces_newest(self) -> bool:
        """Whether a resumed run would make again all that the newest checkpoint lacks."""

    def resume(self, episode: int) -> int:
        """Continue after this episode from its checkpoint; returns the episode of that, or -1 if it names none."""


class NoRepetition:
    """Real time: any moment will do, and what is not in the checkpoint is lost."""

    relies_on: tuple[str, ...] = ("events.jsonl",)
    is_at_rest: bool = True
    replaces_newest: bool = False

    def resume(self, episode: int) -> int:
        """As Repetition."""
        return -1


class FullRepetition:
    """Lockstep: bit for bit the run can be continued only where everything that has happened belongs to episodes that
    are over, with all that follows from them, and where the learner, too, has kept its state.
    """

    relies_on: tuple[str, ...] = ()  # the loop waits for the checkpoint, and nothing relies on the events

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self._config, self._parts = config, parts

    @property
    def is_at_rest(self) -> bool:
        """As Repetition."""
        desk = self._parts.desk
        loop = decode_state(self._parts.loop_state.take())
        if not is_due(self._config, loop.episode):
            return False
        last = self._parts.rows.last
        kind = "eval" if loop.evaluated else "train"
        has_row = last is not None and (last.episode, last.kind) == (loop.episode, kind)
        done = desk.done == desk.feed.closed == loop.episode
        kept = desk.learner_kept or loop.episode >= self._config.episodes  # after the last one nothing is made again
        return self._parts.accounts.whole and has_row and done and kept

    @property
    def replaces_newest(self) -> bool:
        """As Repetition: between two checkpoints, but not at the end of the run."""
        loop = decode_state(self._parts.loop_state.take())
        return not self.is_at_rest and loop.episode < self._config.episodes

    def resume(self, episode: int) -> int:
        """As Repetition."""
        self._parts.desk.done = episode
        return episode


def repetition(config: RunConfig, parts: Parts) -> Repetition:
    """Return the rule of a run."""
    return FullRepetition(config, parts) if config.lockstep else NoRepetition()
