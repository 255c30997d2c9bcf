"""Repetition of steps after the checkpoint by a resumed run: none of them in real time, all of them in lockstep."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.control.loop_state import decode_state
from onrig.runtime.replay.checkpoint.upkeep import is_due
from onrig.runtime.replay.summary import Parts
from onrig.runtime.run_config import RunConfig


class Repetition(Protocol):
    """Rule that determines at which points a run can be continued."""

    relies_on: tuple[str, ...]
    """Files that a checkpoint relies on, in addition to the episodes' rows and the policies."""

    @property
    def is_at_rest(self) -> bool:
        """Whether the run can be continued from a checkpoint written now."""

    @property
    def replaces_newest(self) -> bool:
        """Whether a resumed run would repeat everything missing from the newest checkpoint."""

    def resume(self, episode: int) -> int:
        """Continue after this episode from its checkpoint; return its episode, or -1 if checkpoints belong to none."""


class NoRepetition:
    """Real time: a run can be continued at any moment, and anything not in the checkpoint is lost."""

    relies_on: tuple[str, ...] = ("events.jsonl",)
    is_at_rest: bool = True
    replaces_newest: bool = False

    def resume(self, episode: int) -> int:
        return -1


class FullRepetition:
    """Lockstep: a run can be continued bit for bit only between episodes, once all work for the last one is done and
    the learner has saved its state.
    """

    relies_on: tuple[str, ...] = ()  # the loop waits for the checkpoint, and no file relies on the events

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self._config, self._parts = config, parts

    @property
    def is_at_rest(self) -> bool:
        requests = self._parts.requests
        loop = decode_state(self._parts.loop_state.take())
        if not is_due(self._config, loop.episode):
            return False
        last_row = self._parts.rows.last
        kind = "eval" if loop.evaluated else "train"
        has_row = last_row is not None and (last_row.episode, last_row.kind) == (loop.episode, kind)
        is_done = requests.last_done_episode == requests.feed.last_closed_episode == loop.episode
        is_saved = (
            requests.learner_state_saved or loop.episode >= self._config.episodes
        )  # after the last episode nothing is repeated
        return self._parts.accounts.is_between_episodes and has_row and is_done and is_saved

    @property
    def replaces_newest(self) -> bool:
        """Whether the run is between two checkpoints, but not at its end."""
        loop = decode_state(self._parts.loop_state.take())
        return not self.is_at_rest and loop.episode < self._config.episodes

    def resume(self, episode: int) -> int:
        self._parts.requests.last_done_episode = episode
        return episode


def repetition(config: RunConfig, parts: Parts) -> Repetition:
    """Return the repetition rule of a run."""
    return FullRepetition(config, parts) if config.lockstep else NoRepetition()
