"""Learning of S trials from their steps: from memories, or from batches of their own policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, UsesWholeMemory
from onrig.learner.algorithms.on_policy import OnPolicy, PolicyBatch
from onrig.learner.trials.departures import Measures
from onrig.learner.trials.exploring import Acted
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.rows import Altered, Columns, Rows
from onrig.learner.trials.worlds import Bools, Stepped, Values

CHUNK: Final = 100
"""Updates whose minibatches are drawn at once where a draw does not depend on the update before it."""


class Learning(Protocol):
    """Gathers the steps of S trials, K training actors each, and learns from them."""

    def put(self, before: Values, acted: Acted, stepped: Stepped) -> None:
        """Take the result of a step from these observations (S, E, n)."""
        ...

    def closed(self, returns: NDArray[np.float64], which: Bools) -> None:
        """Note that training episodes ended, and the returns of all (S, K), raw units."""
        ...

    def after(self, steps: int) -> None:
        """Learn after a training step, the ``steps``-th, if it is time to."""
        ...

    def noise(self) -> NDArray[np.float64] | None:
        """Mean |noise| (S, n + m) in the minibatches learned from last, if there were any with noise."""
        ...

    def replayed(self, steps: int) -> NDArray[np.float64] | None:
        """Take measures of replay (S, k) since the last time (``onrig.learner.trials.step_run.REPLAYED``)."""
        ...


class Updates(NamedTuple):
    """When trials that replay learn, in environment steps."""

    number: int
    """Updates at once."""
    every: int
    """Steps after which they follow."""
    random_steps: int = 0
    """Steps at the start that none follow."""
    progress_steps: int = 1
    """Steps that make one of what samplers count their schedules in: an episode, or a step."""


class Replay:
    """Trials that learn from memories."""

    def __init__(
        self,
        algorithm: Algorithm,
        memories: Memories,
        updates: Updates,
        *,
        together: int = 1,
        alter: Callable[[int, Rows, Columns], Altered] | None = None,
        measures: Measures | None = None,
    ) -> None:
        """``together``: steps passed to memories at once: 1, or an episode, of which ``alter`` may replace some."""
        self._algorithm, self.memories, self._updates = algorithm, memories, updates
        self._alter, self._measures = alter, measures
        if isinstance(algorithm, UsesWholeMemory):
            algorithm.bind_memory(memories.stored_view())
        self.number = updates.number
        """Updates at once."""
        self._together = together
        self._gathered: list[tuple[NDArray[Any], ...]] = []
        self._noise: NDArray[np.float64] | None = None

    def put(self, before: Values, acted: Acted, stepped: Stepped) -> None:
        """Take a step of the first actors, and hand it to the memories with those before it."""
        at = self.memories.columns
        parts: list[NDArray[Any]] = [
            before,
            stepped.action,
            stepped.observation,
            stepped.reward,
            acted.action,
            acted.intended,
        ]
        if at.terminated is not None:
            parts.append(stepped.terminated)
        if at.behaviour is not None and acted.behaviour is not None:
            parts += [acted.behaviour, stepped.intervened | acted.deviates]
        if stepped.noise is not None and at.noise.start < at.noise.stop:
            parts.append(stepped.noise)
        self._gathered.append(tuple(parts))
        if len(self._gathered) == self._together:
            rows = self._rows()
            episode = self.memories.offered // self._together + 1
            self.memories.insert(rows, None if self._alter is None else self._alter(episode, rows, at))

    def _rows(self) -> Rows:
        """Rows (S, T, width) of what is gathered."""
        # Much faster than to stack small arrays.
        joined = [np.concatenate(parts) for parts in zip(*self._gathered, strict=True)]
        fields = [of.reshape(len(self._gathered), -1, *of.shape[1:])[:, :, 0] for of in joined]
        self._gathered.clear()
        observation, action, after, reward, chosen, intended, *more = fields
        exploration = np.abs(chosen - intended).sum(axis=2)
        columns = (observation, action, after, reward, exploration, *more)
        rows = np.empty((action.shape[1], len(action), self.memories.width), np.float32)
        first = 0
        for column in columns:
            width = column.shape[2] if column.ndim == 3 else 1
            rows[:, :, first : first + width] = column.reshape(len(action), -1, width).swapaxes(0, 1)
            first += width
        return rows

    def closed(self, returns: NDArray[np.float64], which: Bools) -> None:
        self.memories.episode_closed(returns[:, 0], which[:, 0])

    def after(self, steps: int) -> None:
        """Learn if it is time to, and the memories hold enough."""
        done, every = steps - self._updates.random_steps, self._updates.every
        if done > 0 and done % every == 0 and self.memories.ready:
            # Schedules are those of the first step that these updates are for.
            self.memories.begin_episode((done - every) // self._updates.progress_steps + 1)
            self.learn(self.number)

    def learn(self, updates: int) -> None:
        """Train on ``updates`` minibatches of every trial."""
        memories, measures = self.memories, self._measures
        left, noises = updates, []
        ahead = 1 if memories.feedback else CHUNK
        while left > 0:
            k = min(ahead, left)
            left -= k
            minibatches, noise = memories.draw(k)
            if measures is not None:
                measures.before(minibatches)
            signals = self._algorithm.update(minibatches)
            memories.updated(signals)
            if measures is not None:
                measures.after(signals)
            if noise is not None:
                noises.append(noise * k)
        self._noise = np.sum(noises, axis=0) / updates if noises else None

    def noise(self) -> NDArray[np.float64] | None:
        """Mean |noise| in the minibatches replayed last."""
        return self._noise

    def replayed(self, steps: int) -> NDArray[np.float64] | None:
        return None if self._measures is None else self._measures.taken(steps)


class OwnBatches:
    """Trials that learn from batches of their own policies, which wait while they do.

    A batch may end within an episode, which then continues under the next policy; what is gathered after the last full
    batch of a run is not learned from.
    """

    def __init__(
        self, algorithm: OnPolicy, shape: tuple[int, int, int], n: int, m: int, *, batch_steps: int, run_steps: int
    ) -> None:
        """Batches of ``shape`` (S, K, T)."""
        self._algorithm, self._batch_steps, self._run_steps = algorithm, batch_steps, run_steps
        self._batch: Final = PolicyBatch(
            observation=np.zeros((*shape, n), np.float32),
            drawn=np.zeros((*shape, m), np.float32),
            reward=np.zeros(shape),
            next_observation=np.zeros((*shape, n), np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            deviates=np.zeros(shape, np.bool_),
        )
        self._gathered = 0
        """Steps of each actor in the batch."""

    def put(self, before: Values, acted: Acted, stepped: Stepped) -> None:
        batch, t = self._batch, self._gathered
        batch.observation[:, :, t], batch.drawn[:, :, t] = before, acted.behaviour
        batch.reward[:, :, t], batch.deviates[:, :, t] = stepped.reward, stepped.intervened
        batch.next_observation[:, :, t] = stepped.observation
        batch.terminated[:, :, t], batch.truncated[:, :, t] = stepped.terminated, stepped.truncated
        self._gathered += 1

    def closed(self, returns: NDArray[np.float64], which: Bools) -> None:
        """Nothing to note: batches hold the ends of episodes."""

    def after(self, steps: int) -> None:
        if self._gathered == self._batch.reward.shape[2]:
            self._gathered = 0
            self._algorithm.learn(self._batch, 1.0 - (steps - self._batch_steps) / self._run_steps)

    def noise(self) -> NDArray[np.float64] | None:
        """Return None: nothing is replayed."""
        return None

    def replayed(self, steps: int) -> NDArray[np.float64] | None:
        """Return None: nothing is replayed."""
        return None
