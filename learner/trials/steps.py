"""S trials that advance step by step in a world; trial s gives bit for bit what the same seed gives alone.

All trials take one environment step, then their updates; episodes end for each trial by itself.  A trial whose networks
diverge disturbs no other: it goes on with zeros for actions, and its scores are NaN from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Attending, Gaussian, Minibatches, Signals, algorithm_for
from onrig.learner.samplers import Setting
from onrig.learner.trials.acting import exploration_for
from onrig.learner.trials.departures import scores_by_origin, scores_for
from onrig.learner.trials.engine import Scores, replay
from onrig.learner.trials.memories import Kept, Memories
from onrig.learner.trials.step_run import DEPARTURE, READINGS, REPLAYED, StepRun, space_problems, step_problems
from onrig.learner.trials.worlds import Bools, Values, World, episode_returns
from onrig.learner.trials.worlds.making import make_world
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.replay.memory.strategy import parse_strategy

Make = Callable[[Role, int], World]
"""Makes the world for training or evaluation (its role), with that many actors for each trial."""
SCORED_EVERY: Final = 8
"""Updates of which one minibatch is given KLPER's score."""


class StepTrials:
    """Networks, memories and environments of S trials."""

    def __init__(self, run: StepRun, seeds: Sequence[int], make: Make | None = None) -> None:
        """Set up one trial per seed; ``make`` takes the place of the run's own world.

        Raises ValueError where ``run`` does not fit its world, ``NoSuchTask`` where there is none.
        """
        make = make or (lambda role, actors: make_world(run, seeds, role, actors))
        problems = [message for _, message in step_problems(run)]
        if problems:
            raise ValueError("; ".join(problems))
        world = make(Role.PLANT_TRAIN, 1)
        n, m, levels, _ = world.spaces
        problems = [message for _, message in space_problems(run, m, levels)]
        if problems:
            raise ValueError("; ".join(problems))
        self._run, self._world = run, world
        self._evaluation = make(Role.PLANT_EVAL, run.evaluation.episodes)
        self._algorithm = algorithm_for(run.learner, n, m, [stream(seed, Role.NETWORKS) for seed in seeds])
        self._explore = exploration_for(self._algorithm, run.exploration_std, seeds, m)
        strategy, learning = parse_strategy(run.selection.strategy), run.steps - run.random_steps
        updates = learning // run.update_every * run.updates
        share = run.selection.write_probability
        setting = Setting(
            run.capacity(n, m), run.learner.batch, learning, updates, run.steps, run.learner, write_probability=share
        )
        kept = Kept(n, m, strategy, setting, share, terminates=True, behaviour=isinstance(self._algorithm, Gaussian))
        self.memories = Memories(kept, seeds, policy=self._algorithm.policy)
        if isinstance(self._algorithm, Attending):
            self._algorithm.attend(self.memories.shown())
        self.steps = 0
        """Environment steps that each trial has done."""
        S = len(seeds)
        self._all: Bools = np.ones((S, 1), np.bool_)
        self._observation: Values = world.begin(self._all)
        self._episodes = np.ones(S, np.int64)
        self._return = np.zeros(S)
        self._closed = np.zeros((2, S))
        self._seeds, self._continuous = seeds, self._algorithm.discrete is None
        self._score = scores_for(self._algorithm.policy, run.learner.klper_settings.sigma)
        self._heard, self._scored = _Mean(S, 2), _Mean(S, len(READINGS))
        self._unscored = 0
        self._diverged = np.zeros(S, np.bool_)
        self.interventions: NDArray[np.int64] = np.zeros(S, np.int64)
        """(S,): training steps in which a shield changed the action."""
        self.trips: NDArray[np.int64] = np.zeros(S, np.int64)
        """(S,): entries into its fallback."""

    def advance(self) -> Scores:
        """Train until the next evaluation; returns its mean returns, and those of the training episodes closed since.

        Without any such episode a trial's is NaN.
        """
        train = self.train(self._run.evaluation.every)
        evaluation = self.evaluate()
        train, evaluation = (np.where(self._diverged, np.nan, score) for score in (train, evaluation))
        return Scores(train, evaluation, None, self._replayed())

    def _replayed(self) -> NDArray[np.float64]:
        """Take what ``REPLAYED`` names since the evaluation before, (S, k)."""
        replayed = np.full((len(self._seeds), len(REPLAYED)), np.nan)
        heard, scored = self._heard.taken(), self._scored.taken()
        replayed[:, :4] = np.concatenate((heard, scored), axis=1)
        if self._continuous:
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

    def train(self, steps: int) -> NDArray[np.float64]:
        """Train for that many environment steps; returns the mean return (S,) of the episodes that closed in them."""
        self._closed[:] = 0.0
        for _ in range(steps):
            self._step()
        total, count = self._closed
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def evaluate(self) -> NDArray[np.float64]:
        """Mean return (S,) of noise-free episodes, those of a trial side by side."""
        actors = (len(self._all), self._run.evaluation.episodes)
        returns = episode_returns(self._evaluation, actors, lambda seen: self._safe(self._algorithm.policy(seen)))
        return np.asarray(returns.mean(axis=1))

    def close(self) -> None:
        """Release the environments."""
        self._world.close()
        self._evaluation.close()

    def _step(self) -> None:
        self.steps += 1
        run, before, memories = self._run, self._observation, self.memories
        learning = self.steps - run.random_steps
        wish = self._algorithm.policy(before).astype(np.float64)
        explored = self._explore(wish, before, self._episodes, starting=learning <= 0)
        chosen = self._safe(explored.action)
        stepped = self._world.step(chosen, self._all)
        exploration = np.abs(chosen - wish).sum(axis=2)
        parts = [before, stepped.action, stepped.observation, stepped.reward[..., None], exploration[..., None]]
        parts.append(stepped.terminated[..., None])
        if explored.behaviour is not None:
            parts += [explored.behaviour, stepped.intervened[..., None]]
        memories.insert(np.concatenate(parts, axis=2, dtype=np.float32), None)
        self._return += stepped.reward[:, 0]
        self.interventions += stepped.intervened[:, 0]
        self.trips += stepped.tripped[:, 0]
        self._observation = stepped.observation
        ended = stepped.terminated | stepped.truncated
        if ended.any():
            self._close(ended)
        if learning > 0 and learning % run.update_every == 0 and memories.ready:
            memories.begin_episode(learning)
            replay(self._algorithm, memories, run.updates, self._look, self._hear)

    def _look(self, minibatches: Minibatches) -> None:
        """Score the first of these minibatches, now and then."""
        self._unscored += len(minibatches.reward)
        if self._unscored < SCORED_EVERY or not self._continuous:
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

    def _close(self, ended: Bools) -> None:
        which = ended[:, 0]
        self.memories.episode_closed(self._return, which)
        self._closed += np.where(which, (self._return, np.ones(len(which))), 0.0)
        self._return[which] = 0.0
        self._episodes += which
        self._observation = self._world.begin(ended)

    def _safe(self, action: NDArray[np.floating]) -> NDArray[np.floating]:
        """Actions (S, E, m) with zeros for those of diverged trials, which are marked."""
        finite = np.isfinite(action).all(axis=(1, 2))
        if finite.all():
            return action
        self._diverged |= ~finite
        return np.where(finite[:, None, None], action, 0.0)


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
