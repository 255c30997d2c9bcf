"""Synthetic experiences of S trials (de Bruin et al. 2018, §6.2.1), made of ``onrig.sim.synthetic`` in batches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.acting import Acting
from onrig.learner.trials.memories import Altered, Rows
from onrig.learner.trials.rollout import Rollout
from onrig.runtime.replay.memory.layout import Flag
from onrig.runtime.replay.memory.transitions import Transitions
from onrig.runtime.replay.settings import Synthetic
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.sim.synthetic.experiences import Draws, episode_draws, resynthesise
from onrig.sim.synthetic.model import PlantModel
from onrig.sim.twin.options import TwinOptions


class TrialsSynthetic:
    """Replaces some experiences of S trials by synthetic ones."""

    def __init__(self, config: RunConfig, seeds: Sequence[int]) -> None:
        twin = msgspec.convert(config.device.twin, TwinOptions)
        self._synthetic = config.selection.synthetic or Synthetic()
        self._seeds = seeds
        self._steps = episode_steps(config.task, config.rate_hz)
        self._n, self._m = len(config.rig.signals), len(config.rig.actuators)
        self._model = PlantModel(config.rig, config.task, twin.plant, 1.0 / config.rate_hz, twin.substeps)

    def __call__(self, episode: int, rollout: Rollout, measured: Rows, acting: Acting) -> Altered:
        """Replace a fraction of an episode's rows (S, T, width), whose policies have not learned since."""
        S, T, n, m = len(self._seeds), self._steps, self._n, self._m
        each = [episode_draws(seed, episode, T, n, m) for seed in self._seeds]
        joined = Draws(*(np.concatenate(columns) for columns in zip(*each, strict=True)))
        draws = joined._replace(action=acting.on_levels(joined.action))

        def policy(rows: NDArray[np.int64], observation: NDArray[np.float32]) -> NDArray[np.floating]:
            everywhere = np.zeros((S * T, n), np.float32)
            everywhere[rows] = observation
            return acting.elsewhere(everywhere.reshape(S, T, n)).reshape(S * T, m)[rows]

        nothing = np.zeros(S * T, np.uint32)
        transitions = Transitions(
            rollout.observation.reshape(S * T, n),
            rollout.action.reshape(S * T, m),
            rollout.reward.reshape(-1),
            rollout.next_observation.reshape(S * T, n),
            nothing,
            nothing,
            rollout.exploration.reshape(-1),
            nothing,
            nothing,
            np.zeros((S * T, 0), np.float32),
        )
        noise = acting.signal.reshape(S * T, m)
        altered, renews = resynthesise(self._synthetic, self._model, transitions, draws, noise, policy)
        rows = measured.copy().reshape(S * T, -1)
        synthetic = (altered.flags & Flag.SYNTHETIC).astype(np.bool_)
        parts = [altered.observation, altered.action, altered.next_observation]
        parts += [altered.reward[:, None], altered.exploration[:, None]]
        computed = np.concatenate(parts, axis=1)
        rows[synthetic, : computed.shape[1]] = computed[synthetic]
        # Computed transitions are noise-free.
        rows[synthetic, computed.shape[1] :] = 0.0
        return Altered(rows.reshape(measured.shape), synthetic.reshape(S, T), renews.reshape(S, T))
