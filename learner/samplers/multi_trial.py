"""Learned samplers of S trials, whose networks run together; a rig has one trial.

They learn once per training episode, from the difference between its return and the previous episode's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, ReplayView, SamplerContext, State
from onrig.runtime.memory.keepers.keeper import Signal


class MultiTrialSampler:
    """Base class for samplers of S trials; a trial's draws are the same for any number of trials."""

    required_signals: ClassVar[frozenset[Signal]]

    def __init__(self, context: SamplerContext, streams: Sequence[np.random.Generator]) -> None:
        """Build the sampler with one trial for each of ``streams`` (PCG64).

        Raises ValueError if ``context`` has no view of experiences and policy.
        """
        if context.view is None:
            raise ValueError(f"{type(self).__name__.upper()} needs access to experiences and a policy")
        self._view: Final[ReplayView] = context.view
        self._batch: Final = context.batch
        self._trials: Final = len(streams)
        self._previous: NDArray[np.float64] = np.full(len(streams), np.nan)
        """(S,): return of the last episode; NaN before the first one, and if unknown."""

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> SingleTrialSampler:
        """Build the sampler of one trial; its settings determine whether draws have weights."""
        return SingleTrialSampler(cls(context, [stream]))

    def begin_episode(self, episode: int) -> None:
        """Set the training episode whose updates come next."""

    def on_write(self, slots: Sequence[NDArray[np.int64]]) -> None:
        """Record each trial's slots that have received new experiences, in order."""
        raise NotImplementedError

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch for each trial, slots (1, S, batch).

        Raises ValueError unless ``updates`` is 1, or if too few experiences are stored.
        """
        raise NotImplementedError

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        raise NotImplementedError

    def on_episode_end(self, returns: NDArray[np.float64], has_ended: NDArray[np.bool_]) -> None:
        """Learn from the returns (S,) of the trials whose training episode ``has_ended`` (S,)."""
        gain = np.where(has_ended, returns - self._previous, np.nan)
        self._previous = np.where(has_ended, returns, self._previous)
        is_eligible = np.isfinite(gain) & (gain != 0.0)
        self._learn(np.where(is_eligible, gain, 0.0), is_eligible)
        self._begin(has_ended)

    def _learn(self, gain: NDArray[np.float64], is_eligible: NDArray[np.bool_]) -> None:
        """Take a learning step for the trials in ``is_eligible`` (S,), from the ``gain`` in return (S,)."""
        raise NotImplementedError

    def _begin(self, has_ended: NDArray[np.bool_]) -> None:
        """Begin a new episode for the trials in ``has_ended`` (S,)."""
        raise NotImplementedError

    def state(self) -> State:
        return {"previous": self._previous.copy()}

    def learned_state(self) -> State:
        raise NotImplementedError

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        if state["previous"].shape != self._previous.shape:
            raise ValueError(f"state of {len(state['previous'])} trials, expected {self._trials}")
        self._previous = state["previous"].astype(np.float64)


class SingleTrialSampler:
    """Adapter that presents a sampler of S trials as the sampler of one."""

    def __init__(self, sampler: MultiTrialSampler) -> None:
        self.sampler: Final = sampler
        self.required_signals: Final = sampler.required_signals

    def begin_episode(self, episode: int) -> None:
        self.sampler.begin_episode(episode)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        self.sampler.on_write([slots])

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        fields = (None if field is None else field[None, None] for field in signals)
        self.sampler.on_update(slots[None, None], Signals(*fields))  # type: ignore[arg-type]

    def on_episode_end(self, episode_return: float) -> None:
        self.sampler.on_episode_end(np.array([episode_return]), np.ones(1, np.bool_))

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw one minibatch, slots (1, batch); raise ValueError unless ``updates`` is 1 and ``batch`` is the
        configured size."""
        draw = self.sampler.draw(updates)
        if draw.slots.shape[-1] != batch:
            raise ValueError(f"minibatches have {draw.slots.shape[-1]} experiences, not {batch}")
        return Draw(draw.slots[:, 0], None if draw.weights is None else draw.weights[:, 0])

    def state(self) -> State:
        return self.sampler.state()

    def learned_state(self) -> State:
        return self.sampler.learned_state()

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.sampler.restore(state)
