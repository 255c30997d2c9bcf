"""Learning of S trials from memories, or from batches of their own policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, UsesWholeMemory
from onrig.learner.algorithms.on_policy import OnPolicy, PolicyBatch
from onrig.learner.trials.exploration import ChosenActions
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.replay_measures import ReplayMeasures
from onrig.learner.trials.rows import AlteredEpisode, Columns, Rows
from onrig.learner.trials.worlds import Bools, StepResult, Values

UPDATES_PER_DRAW: Final = 100
"""Number of updates whose minibatches are drawn at once if draws do not depend on the previous update."""


class Learning(Protocol):
    """Storage of the steps of S trials with K training actors each, and learning from them."""

    def add_step(self, observation: Values, actions: ChosenActions, result: StepResult) -> None:
        """Add the result of a step from ``observation`` (S, E, n)."""
        ...

    def end_episodes(self, returns: NDArray[np.float64], has_ended: Bools) -> None:
        """Record which training episodes ended, ``has_ended`` (S, K); ``returns`` holds the return of every actor's
        episode in raw units."""
        ...

    def learn_if_due(self, steps: int) -> None:
        """Learn after training step number ``steps``, if updates are due."""
        ...

    def batch_noise(self) -> NDArray[np.float64] | None:
        """Return the mean |noise| (S, n + m) in the last minibatches; None without noise."""
        ...

    def replay_measures(self, steps: int) -> NDArray[np.float64] | None:
        """Return and reset the measures of replay (S, k) (``onrig.learner.trials.step_run.REPLAY_MEASURES``)."""
        ...


class Updates(NamedTuple):
    """Schedule of the updates of trials with replay, in environment steps."""

    n_consecutive: int
    """Number of consecutive updates."""
    interval: int
    """Number of steps between updates."""
    random_steps: int = 0
    """Number of initial steps without updates."""
    progress_steps: int = 1
    """Number of steps in one unit of the samplers' schedules: an episode's steps, or 1."""


class Replay:
    """Learning of trials from memories."""

    def __init__(
        self,
        algorithm: Algorithm,
        memories: Memories,
        updates: Updates,
        *,
        batch_steps: int = 1,
        alter_episode: Callable[[int, Rows, Columns], AlteredEpisode] | None = None,
        measures: ReplayMeasures | None = None,
    ) -> None:
        """``batch_steps``: number of steps passed to the memories at once, which is 1 or the number in an episode; in
        an episode, ``alter_episode`` may replace experiences."""
        self._algorithm, self.memories, self._updates = algorithm, memories, updates
        self._alter_episode, self._measures = alter_episode, measures
        if isinstance(algorithm, UsesWholeMemory):
            algorithm.bind_memory(memories.memory_access())
        self.n_consecutive_updates = updates.n_consecutive
        """Number of consecutive updates."""
        self._batch_steps = batch_steps
        self._gathered_steps: list[tuple[NDArray[Any], ...]] = []
        self._noise: NDArray[np.float64] | None = None

    def add_step(self, observation: Values, actions: ChosenActions, result: StepResult) -> None:
        """Add a step of the first actors, and pass complete batches of steps to the memories."""
        columns = self.memories.columns
        values: list[NDArray[Any]] = [
            observation,
            result.action,
            result.observation,
            result.reward,
            actions.action,
            actions.intended_action,
        ]
        if columns.terminated is not None:
            values.append(result.terminated)
        if columns.behaviour is not None and actions.behaviour is not None:
            values += [actions.behaviour, result.intervened | actions.noise_reduced]
        if result.noise is not None and columns.noise.start < columns.noise.stop:
            values.append(result.noise)
        self._gathered_steps.append(tuple(values))
        if len(self._gathered_steps) == self._batch_steps:
            rows = self._rows()
            episode = self.memories.n_offered // self._batch_steps + 1
            self.memories.insert(
                rows, None if self._alter_episode is None else self._alter_episode(episode, rows, columns)
            )

    def _rows(self) -> Rows:
        """Return the rows (S, T, width) of the gathered steps, and clear the steps."""
        # Concatenating is much faster than stacking small arrays.
        joined_fields = [np.concatenate(step_values) for step_values in zip(*self._gathered_steps, strict=True)]
        fields = [field.reshape(len(self._gathered_steps), -1, *field.shape[1:])[:, :, 0] for field in joined_fields]
        self._gathered_steps.clear()
        observation, action, next_observation, reward, exploring_action, intended_action, *behaviour = fields
        exploration = np.abs(exploring_action - intended_action).sum(axis=2)
        columns = (observation, action, next_observation, reward, exploration, *behaviour)
        rows = np.empty((action.shape[1], len(action), self.memories.width), np.float32)
        first = 0
        for column in columns:
            width = column.shape[2] if column.ndim == 3 else 1
            rows[:, :, first : first + width] = column.reshape(len(action), -1, width).swapaxes(0, 1)
            first += width
        return rows

    def end_episodes(self, returns: NDArray[np.float64], has_ended: Bools) -> None:
        self.memories.on_episode_end(returns[:, 0], has_ended[:, 0])

    def learn_if_due(self, steps: int) -> None:
        """Learn if updates are due and the memories hold enough experiences."""
        n_learning_steps, interval = steps - self._updates.random_steps, self._updates.interval
        if n_learning_steps > 0 and n_learning_steps % interval == 0 and self.memories.have_minibatches:
            # Schedules are evaluated at the first step after the previous updates.
            self.memories.begin_episode((n_learning_steps - interval) // self._updates.progress_steps + 1)
            self.learn(self.n_consecutive_updates)

    def learn(self, updates: int) -> None:
        """Train on ``updates`` minibatches of every trial."""
        memories, measures = self.memories, self._measures
        n_remaining, noises = updates, []
        updates_per_draw = 1 if memories.draws_depend_on_updates else UPDATES_PER_DRAW
        while n_remaining > 0:
            k = min(updates_per_draw, n_remaining)
            n_remaining -= k
            minibatches, noise = memories.draw(k)
            if measures is not None:
                measures.score_minibatches(minibatches)
            signals = self._algorithm.update(minibatches)
            memories.on_update(signals)
            if measures is not None:
                measures.add_signals(signals)
            if noise is not None:
                noises.append(noise * k)
        self._noise = np.sum(noises, axis=0) / updates if noises else None

    def batch_noise(self) -> NDArray[np.float64] | None:
        """Return the mean |noise| in the last replayed minibatches."""
        return self._noise

    def replay_measures(self, steps: int) -> NDArray[np.float64] | None:
        return None if self._measures is None else self._measures.pop(steps)


class OnPolicyLearning:
    """Learning of trials from batches of their own policies; trials do not act during updates.

    A batch may end within an episode, which then continues with the next policy; experiences after the last complete
    batch of a run are not used.
    """

    def __init__(
        self, algorithm: OnPolicy, shape: tuple[int, int, int], n: int, m: int, *, batch_steps: int, run_steps: int
    ) -> None:
        """``shape``: (S, K, T) of the batches."""
        self._algorithm, self._batch_steps, self._run_steps = algorithm, batch_steps, run_steps
        self._batch: Final = PolicyBatch(
            observation=np.zeros((*shape, n), np.float32),
            drawn=np.zeros((*shape, m), np.float32),
            reward=np.zeros(shape),
            next_observation=np.zeros((*shape, n), np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            overridden=np.zeros(shape, np.bool_),
        )
        self._n_gathered_steps = 0
        """Number of each actor's steps that the batch already holds."""

    def add_step(self, observation: Values, actions: ChosenActions, result: StepResult) -> None:
        batch, t = self._batch, self._n_gathered_steps
        batch.observation[:, :, t], batch.drawn[:, :, t] = observation, actions.behaviour
        batch.reward[:, :, t], batch.overridden[:, :, t] = result.reward, result.intervened
        batch.next_observation[:, :, t] = result.observation
        batch.terminated[:, :, t], batch.truncated[:, :, t] = result.terminated, result.truncated
        self._n_gathered_steps += 1

    def end_episodes(self, returns: NDArray[np.float64], has_ended: Bools) -> None:
        """Do nothing: batches mark the ends of episodes."""

    def learn_if_due(self, steps: int) -> None:
        if self._n_gathered_steps == self._batch.reward.shape[2]:
            self._n_gathered_steps = 0
            self._algorithm.learn(self._batch, 1.0 - (steps - self._batch_steps) / self._run_steps)

    def batch_noise(self) -> NDArray[np.float64] | None:
        """Return None: nothing is replayed."""
        return None

    def replay_measures(self, steps: int) -> NDArray[np.float64] | None:
        """Return None: nothing is replayed."""
        return None
