"""S trials that learn from batches of their own policies; trial s gives bit for bit what the same seed gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from onrig.learner.algorithms.on_policy import PolicyBatch, on_policy_for
from onrig.learner.trials.exploring import DrawnAhead
from onrig.learner.trials.memories import Policy
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.steps import StepTrials
from onrig.learner.trials.world_trials import Make, WorldTrials
from onrig.learner.trials.worlds import Stepped, Values
from onrig.runtime.random_streams import Role, stream


class BatchTrials(WorldTrials):
    """Policies and environments of S trials, and the batch that they are gathering.

    Environments wait while the policies learn.  A batch may end within an episode, which then goes on under the next
    policy; what is gathered behind the last whole batch of a run is not learned from.
    """

    def __init__(self, run: StepRun, seeds: Sequence[int], make: Make | None = None) -> None:
        """Set up one trial per seed; ``make`` takes the place of the run's own world.

        Raises ValueError where ``run`` does not fit its world, ``NoSuchTask`` where there is none.
        """
        super().__init__(run, seeds, make)
        S, K, n, m = len(seeds), self._actors, self.spaces.n, self.spaces.m
        self._algorithm = on_policy_for(run.learner, n, m, [stream(seed, Role.NETWORKS) for seed in seeds])
        self._noise = DrawnAhead(seeds, 1, lambda s, shape: s.standard_normal(shape), m, K)
        T = run.learner.selected.batch_steps // K
        self._batch: Final = PolicyBatch(
            observation=np.zeros((S, K, T, n), np.float32),
            drawn=np.zeros((S, K, T, m), np.float32),
            reward=np.zeros((S, K, T)),
            next_observation=np.zeros((S, K, T, n), np.float32),
            terminated=np.zeros((S, K, T), np.bool_),
            truncated=np.zeros((S, K, T), np.bool_),
            deviates=np.zeros((S, K, T), np.bool_),
        )
        self._gathered = 0
        """Steps of each actor in the batch."""

    def _policy(self, actors: tuple[int, int]) -> Policy:
        return self._algorithm.policy

    def _move(self, before: Values) -> Stepped:
        drawn = self._safe(self._algorithm.draw(before, self._noise()))
        stepped = self._world.step(np.clip(drawn, -1.0, 1.0), self._all)
        batch, t = self._batch, self._gathered
        batch.observation[:, :, t], batch.drawn[:, :, t], batch.reward[:, :, t] = before, drawn, stepped.reward
        batch.next_observation[:, :, t] = stepped.observation
        batch.terminated[:, :, t], batch.truncated[:, :, t] = stepped.terminated, stepped.truncated
        batch.deviates[:, :, t] = stepped.intervened
        self._gathered += 1
        return stepped

    def _learn(self) -> None:
        run = self._run
        if self._gathered == self._batch.reward.shape[2]:
            self._gathered = 0
            begun = self.steps - run.learner.selected.batch_steps
            self._algorithm.learn(self._batch, 1.0 - begun / run.steps)


def world_trials(run: StepRun, seeds: Sequence[int], make: Make | None = None) -> WorldTrials:
    """Set up the trials of a run, one per seed: those of its kind of algorithm."""
    return (BatchTrials if run.learner.selected.batch_steps else StepTrials)(run, seeds, make)
