"""S trials of one configuration trained together; trial s gives bit for bit what the same seed gives alone.

(On one kind of machine, with one torch thread.)  A trial whose networks diverge disturbs no other: its actions become
NaN, and with them the states of its plant and its scores.  No other action is put in their place: a score from a
diverged policy would look like that of a bad one.

A training episode is followed by its updates, as on the rig.  The evaluation episode runs in parallel with the training
episode, hence with the policy before those updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Attending, Minibatches, Signals, algorithm_for
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.acting import acting_for
from onrig.learner.trials.drawing import GaussianDraws
from onrig.learner.trials.memories import Memories, kept_by
from onrig.learner.trials.rollout import Rollouts
from onrig.learner.trials.supported import trials_problems
from onrig.learner.trials.synthetic import TrialsSynthetic
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import Plant

CHUNK: Final = 100
"""Updates whose minibatches are drawn at once where a draw does not depend on the update before it."""


class Scores(NamedTuple):
    """Scores of one episode of S trials."""

    train: NDArray[np.float64]
    """(S,) mean raw reward per step of the training episode."""
    evaluation: NDArray[np.float64]
    """(S,) of a noise-free episode under the same policy."""
    batch_noise: NDArray[np.float64] | None
    """(S, n + m) mean |noise| per state-action dimension in the minibatches replayed after it, normalised units
    (de Bruin et al. 2018, Table 6); None where the twin has no noise or nothing was replayed yet."""
    replayed: NDArray[np.float64] | None = None
    """(S, k) what ``onrig.learner.trials.step_run.REPLAYED`` names, since the scores before, NaN without any; None for
    whole episodes."""
    shield: NDArray[np.float64] | None = None
    """(S, 2) counts that ``onrig.learner.trials.step_run.SHIELD`` names, since the scores before; None for whole
    episodes, which have no shield."""


class Trials:
    """Networks, memories and plants of S trials."""

    def __init__(
        self, config: RunConfig, settings: LearnerSettings, seeds: Sequence[int], plant: Plant | None = None
    ) -> None:
        """Set up one trial per seed (``config.seed`` is ignored); ValueError when it cannot run ``config``.

        ``plant`` is as in :class:`~onrig.learner.trials.rollout.Rollouts`.
        """
        problems = trials_problems(config, settings)
        if problems:
            raise ValueError("; ".join(problems))
        n, m = len(config.signals), len(config.rig.actuators)
        networks = [stream(seed, Role.NETWORKS) for seed in seeds]
        self._rollouts = Rollouts(config, seeds, plant)
        self._algorithm = algorithm_for(settings, n, m, networks)
        self._acting = acting_for(self._algorithm, config, seeds, self._rollouts.steps)
        self._draws = self._acting if isinstance(self._acting, GaussianDraws) else None
        kept = kept_by(config, settings, noisy=self._rollouts.is_noisy, behaviour=self._draws is not None)
        self.memories = Memories(kept, seeds, policy=self._algorithm.policy)
        if isinstance(self._algorithm, Attending):
            self._algorithm.attend(self.memories.shown())
        self._synthetic = TrialsSynthetic(config, seeds) if config.selection.synthetic is not None else None
        self.updates = settings.updates_per_episode or 0
        """Batch updates after an episode."""
        self.episodes = 0
        """Episodes done."""

    def episode(self) -> Scores:
        """Run the next training episode of every trial and the updates after it."""
        self.episodes = episode = self.episodes + 1
        self._acting.begin_episode(episode)
        rollout = self._rollouts(episode, self._acting)
        memories = self.memories
        rows = memories.rows_of(rollout, None if self._draws is None else self._draws.behaviour)
        altered = None if self._synthetic is None else self._synthetic(episode, rollout, rows, self._acting)
        memories.insert(rows, altered)
        returns = rollout.mean_reward * self._rollouts.steps
        memories.episode_closed(returns, np.ones(len(returns), np.bool_))
        memories.begin_episode(episode)
        return Scores(rollout.mean_reward, rollout.evaluation, self.learn(self.updates))

    def learn(self, updates: int) -> NDArray[np.float64] | None:
        """Train on ``updates`` minibatches of every trial, once the memories hold enough; returns as ``replay``."""
        return replay(self._algorithm, self.memories, updates) if self.memories.ready else None


def replay(
    algorithm: Algorithm,
    memories: Memories,
    updates: int,
    look: Callable[[Minibatches], None] = lambda minibatches: None,
    hear: Callable[[Signals], None] = lambda signals: None,
) -> NDArray[np.float64] | None:
    """Train on ``updates`` minibatches of every trial; returns the mean |noise| in them (S, n + m), if there is any.

    ``look`` is shown minibatches before their updates, ``hear`` is told what these said.
    """
    left, noises = updates, []
    ahead = 1 if memories.feedback else CHUNK
    while left > 0:
        k = min(ahead, left)
        left -= k
        minibatches, noise = memories.draw(k)
        look(minibatches)
        signals = algorithm.update(minibatches)
        memories.updated(signals)
        hear(signals)
        if noise is not None:
            noises.append(noise * k)
    return np.sum(noises, axis=0) / updates if noises else None
