"""S trials that replay experiences from memories; trial s gives bit for bit what the same seed gives alone.

All trials take one environment step, then their updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Attending, Gaussian, Minibatches, Recurrent, Signals, algorithm_for
from onrig.learner.samplers import Setting
from onrig.learner.trials.departures import scores_by_origin, scores_for
from onrig.learner.trials.engine import replay
from onrig.learner.trials.exploring import Correlated, Remembering, exploration_for
from onrig.learner.trials.memories import Kept, Memories, Policy
from onrig.learner.trials.step_run import DEPARTURE, READINGS, REPLAYED, StepRun, takes_noise
from onrig.learner.trials.world_trials import Make, WorldTrials
from onrig.learner.trials.worlds import Bools, Stepped, Values
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.memory.strategy import parse_strategy

SCORED_EVERY: Final = 8
"""Updates of which one minibatch is given KLPER's score."""


class StepTrials(WorldTrials):
    """Networks, memories and environments of S trials."""

    def __init__(self, run: StepRun, seeds: Sequence[int], make: Make | None = None) -> None:
        """Set up one trial per seed; ``make`` takes the place of the run's own world.

        Raises ValueError where ``run`` does not fit its world, ``NoSuchTask`` where there is none.
        """
        super().__init__(run, seeds, make)
        n, m = self.spaces.n, self.spaces.m
        self._algorithm = algorithm_for(run.learner, n, m, [stream(seed, Role.NETWORKS) for seed in seeds])
        self._remembering: Remembering | None = None
        if isinstance(self._algorithm, Recurrent):
            self._remembering = Remembering(self._algorithm, (len(seeds), self._actors))
        correlated = Correlated(run.exploration_friction, len(seeds), unit=not takes_noise(run.learner))
        self._explore = exploration_for(self._algorithm, run.exploration_std, correlated, seeds, m, self._remembering)
        strategy, learning = parse_strategy(run.selection.strategy), run.steps - run.random_steps
        updates = run.updates_until(run.steps)
        share = run.selection.write_probability
        setting = Setting(
            run.capacity(n, m), run.learner.batch, learning, updates, run.steps, run.learner, write_probability=share
        )
        kept = Kept(n, m, strategy, setting, share, terminates=True, behaviour=isinstance(self._algorithm, Gaussian))
        self.memories = Memories(kept, seeds, policy=self._algorithm.policy)
        if isinstance(self._algorithm, Attending):
            self._algorithm.attend(self.memories.shown())
        S = len(seeds)
        self._episodes = np.ones(S, np.int64)
        scorable = self._algorithm.discrete is None and self._remembering is None
        self._scores_actions = scorable and run.learner.batch > 1  # a batch of one has no covariance
        self._score = scores_for(self._algorithm.policy, run.learner.klper_settings.sigma)
        self._heard, self._scored = _Mean(S, 2), _Mean(S, len(READINGS))
        self._unscored = 0

    def _policy(self, actors: tuple[int, int]) -> Policy:
        if not isinstance(self._algorithm, Recurrent):
            return self._algorithm.policy
        distribution = Remembering(self._algorithm, actors)
        return lambda seen: np.clip(distribution(seen)[0], -1.0, 1.0)

    def _replayed(self) -> NDArray[np.float64]:
        replayed = np.full((len(self._seeds), len(REPLAYED)), np.nan)
        heard, scored = self._heard.taken(), self._scored.taken()
        replayed[:, :4] = np.concatenate((heard, scored), axis=1)
        if self._scores_actions:
            run = self._run
            of_origins = scores_by_origin(
                self._score,
                self.memories,
                run.learner.batch,
                self._seeds,
                steps=self.steps,
                random_steps=run.random_steps,
            )
            replayed[:, 4 : -len(DEPARTURE)] = of_origins.reshape(len(replayed), -1)
        if isinstance(self._algorithm, Attending):
            replayed[:, -len(DEPARTURE) :] = self._algorithm.departure()
        return replayed

    def _move(self, before: Values) -> Stepped:
        starting = self.steps <= self._run.random_steps
        explored = self._explore(before, self._episodes, starting=starting)
        chosen = self._safe(explored.action)
        stepped = self._world.step(chosen, self._all)
        exploration = np.abs(chosen - explored.wish).sum(axis=2)
        parts = [before, stepped.action, stepped.observation, stepped.reward[..., None], exploration[..., None]]
        parts.append(stepped.terminated[..., None])
        if explored.behaviour is not None:
            parts += [explored.behaviour, stepped.intervened[..., None]]
        self.memories.insert(np.concatenate(parts, axis=2, dtype=np.float32), None)
        return stepped

    def _learn(self) -> None:
        run, memories = self._run, self.memories
        learning = self.steps - run.random_steps
        if learning > 0 and learning % run.update_every == 0 and memories.ready:
            memories.begin_episode(learning - run.update_every + 1)  # of the first step that these updates are for
            self.learn(run.updates)

    def learn(self, updates: int) -> None:
        """Train on ``updates`` minibatches of every trial."""
        replay(self._algorithm, self.memories, updates, self._look, self._hear)

    def _episodes_closed(self, returns: NDArray[np.float64], which: Bools) -> None:
        self.memories.episode_closed(returns[:, 0], which[:, 0])
        self._episodes += which[:, 0]
        if self._remembering is not None:
            self._remembering.begin(which)

    def _look(self, minibatches: Minibatches) -> None:
        """Score the first of these minibatches, now and then."""
        self._unscored += len(minibatches.reward)
        if self._unscored < SCORED_EVERY or not self._scores_actions:
            return
        self._unscored = 0
        scores = self._score(minibatches.observation[0], minibatches.action[0], self._run.learner.batch)
        self._scored.add(scores[:, 0], 1)

    def _hear(self, signals: Signals) -> None:
        """Sum mean |TD error| and mean target of each trial's minibatches."""
        told = (np.abs(signals.td), np.full_like(signals.td, np.nan) if signals.target is None else signals.target)
        self._heard.add(
            np.stack([signal.mean(axis=2, dtype=np.float64).sum(axis=0) for signal in told], axis=1), len(signals.td)
        )


class _Mean:
    """Mean of what is told of S trials, k numbers each."""

    def __init__(self, trials: int, k: int) -> None:
        self._total, self._count = np.zeros((trials, k)), 0

    def add(self, total: NDArray[np.float64], count: int) -> None:
        """Add the sum (S, k) of ``count`` numbers."""
        self._total += total
        self._count += count

    def taken(self) -> NDArray[np.float64]:
        """Mean (S, k) since the last time, NaN without any."""
        total, count = self._total.copy(), self._count
        self._total[:], self._count = 0.0, 0
        return total / count if count else np.full_like(total, np.nan)
