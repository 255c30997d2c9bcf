"""Synthetic experiences for S trials (de Bruin et al. 2018, §6.2.1), computed in batches by ``onrig.sim.synthetic``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import DiscreteActions
from onrig.learner.trials.exploration import Explorer
from onrig.learner.trials.exploration_numbers import EpisodeNumbers
from onrig.learner.trials.rows import AlteredEpisode, Columns, Rows
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.run_config import RunConfig
from onrig.sim.synthetic.experiences import Draws, episode_draws, resynthesise
from onrig.sim.synthetic.model import PlantModel
from onrig.sim.twin.options import TwinOptions


class SyntheticExperiences:
    """Replacement of some experiences of S trials with synthetic ones."""

    def __init__(
        self,
        config: RunConfig,
        synthetic: Synthetic,
        seeds: Sequence[int],
        explorer: Explorer,
        numbers: EpisodeNumbers,
        discrete: DiscreteActions | None,
    ) -> None:
        """Synthetic actions come from ``explorer`` with the same ``numbers``, or are uniformly drawn levels if
        ``discrete``."""
        twin = msgspec.convert(config.device.twin, TwinOptions)
        self._synthetic, self._seeds = synthetic, seeds
        self._explorer, self._numbers, self._discrete = explorer, numbers, discrete
        self._model = PlantModel(config.rig, config.task, twin.plant, 1.0 / config.rate_hz, twin.substeps)

    def __call__(self, episode: int, measured_rows: Rows, columns: Columns) -> AlteredEpisode:
        """Replace a fraction of an episode's rows (S, T, width), before the policies that acted are updated."""
        (S, T, _), n, m = measured_rows.shape, columns.observation.stop, columns.action.stop - columns.action.start
        trial_draws = [episode_draws(seed, episode, T, n, m) for seed in self._seeds]
        draws = Draws(*(np.concatenate(fields) for fields in zip(*trial_draws, strict=True)))
        if self._discrete is not None:
            levels = self._discrete.levels
            level = np.minimum(np.floor(draws.action * levels), levels - 1) / (levels - 1)
            draws = draws._replace(action=level)
        numbers = self._numbers.episode
        noise = np.zeros((S, T, m))
        if self._explorer.adds_noise and numbers.noise is not None:
            noise, numbers = numbers.noise, numbers._replace(noise=None)

        def policy(rows: NDArray[np.int64], observation: NDArray[np.float32]) -> NDArray[np.floating]:
            all_observations = np.zeros((S * T, n), np.float32)
            all_observations[rows] = observation
            return self._explorer.act(all_observations.reshape(S, T, n), numbers, T).action.reshape(S * T, m)[rows]

        zeros = np.zeros(S * T, np.uint32)
        rows = measured_rows.copy().reshape(S * T, -1)
        transitions = Transitions(
            rows[:, columns.observation],
            rows[:, columns.action],
            rows[:, columns.reward],
            rows[:, columns.next_observation],
            zeros,
            zeros,
            rows[:, columns.exploration],
            zeros,
            zeros,
            np.zeros((S * T, 0), np.float32),
        )
        altered_transitions, may_overwrite = resynthesise(
            self._synthetic, self._model, transitions, draws, noise.reshape(S * T, m), policy
        )
        synthetic = (altered_transitions.flags & Flag.SYNTHETIC).astype(np.bool_)
        parts = [altered_transitions.observation, altered_transitions.action, altered_transitions.next_observation]
        parts += [altered_transitions.reward[:, None], altered_transitions.exploration[:, None]]
        computed_values = np.concatenate(parts, axis=1)
        rows[synthetic, : computed_values.shape[1]] = computed_values[synthetic]
        # Computed transitions are noise-free.
        rows[synthetic, computed_values.shape[1] :] = 0.0
        return AlteredEpisode(rows.reshape(measured_rows.shape), synthetic.reshape(S, T), may_overwrite.reshape(S, T))
