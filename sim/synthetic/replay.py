"""Synthetic experiences of a run, in its replay process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.explore.noise import episode_noise
from onrig.runtime.files import read_file
from onrig.runtime.memory.settings import Synthetic
from onrig.runtime.memory.transitions import ResynthesisedBatch, Transitions
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.runtime.shm.latest import MAX_POLICY_BYTES
from onrig.runtime.task import episode_steps
from onrig.sim.synthetic.experiences import Draws, episode_draws, resynthesise
from onrig.sim.synthetic.model import PlantModel
from onrig.sim.twin.main import twin_options

_MAX_EPISODES: Final = 4
"""Number of episodes whose random numbers are cached."""
_MAX_SESSIONS: Final = 4
"""Number of cached policy sessions."""


class PolicyFolder:
    """A run's folder ``policies/``, which contains each policy from its admission on."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._folder, self._n_act = folder, len(rig.actuators)
        self._observations, self._actions = (
            Normalisation.from_signals(rig.signals),
            Normalisation.from_signals(rig.actuators),
        )
        self._sessions: dict[int, PolicySession | None] = {}

    def actions(self, policy_ids: NDArray[np.uint32], observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the actions (k, m) of policies (k,) at observations (k, n_obs), normalised; NaN if a policy has no
        file."""
        observations_si = self._observations.to_si(observations).astype(np.float32)
        actions_si = np.full((len(observations_si), self._n_act), np.nan)
        for i, policy_id in enumerate(policy_ids.tolist()):
            session = self._session(policy_id)
            if session is None:
                continue
            session.observation[0] = observations_si[i]
            session.run()
            actions_si[i] = session.action[0]
        return self._actions.normalise(actions_si)

    def _session(self, policy_id: int) -> PolicySession | None:
        if policy_id in self._sessions:
            return self._sessions[policy_id]
        try:
            session: PolicySession | None = PolicySession(
                read_file(self._folder / f"{policy_id}.onnx", MAX_POLICY_BYTES)
            )
        except (OSError, ModelRefused):
            session = None
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[min(self._sessions)]
        self._sessions[policy_id] = session
        return session


class RunResynthesiser:
    """Synthetic experiences of one run, which depend only on the configuration and the transitions.

    No state needs saving: episode and step determine the random numbers of a transition.
    """

    def __init__(self, config: RunConfig, run_folder: Path) -> None:
        rig, twin = config.rig, twin_options(config)
        self._config = config
        self._synthetic = config.selection.synthetic or Synthetic()
        self._model = PlantModel(rig, config.task, twin.plant, config.period_us * 1e-6, twin.substeps)
        self._policies = PolicyFolder(rig, run_folder / "policies")
        self._n_obs, self._n_act = len(rig.signals), len(rig.actuators)
        self._actuators = [a.name for a in rig.actuators]
        self._steps = episode_steps(config.task, config.rate_hz)
        self._episodes: dict[int, tuple[Draws, NDArray[np.float64]]] = {}

    def __call__(self, measured: Transitions) -> ResynthesisedBatch:
        """Replace some of the transitions (``onrig.runtime.memory.transitions``)."""
        n = len(measured.reward)
        draws = Draws(np.empty(n), np.empty(n), np.empty((n, self._n_obs)), np.empty((n, self._n_act)))
        noise = np.empty((n, self._n_act))
        for episode in np.unique(measured.episode).tolist():
            draws_of_episode, signal = self._numbers(episode)
            rows = np.flatnonzero(measured.episode == episode)
            steps = measured.step[rows] % self._steps
            for numbers, all_numbers in zip(draws, draws_of_episode, strict=True):
                numbers[rows] = all_numbers[steps]
            noise[rows] = signal[steps]

        def policy(rows: NDArray[np.int64], observations: NDArray[np.float32]) -> NDArray[np.float64]:
            return self._policies.actions(measured.policy_id[rows], observations)

        return resynthesise(self._synthetic, self._model, measured, draws, noise, policy)

    def _numbers(self, episode: int) -> tuple[Draws, NDArray[np.float64]]:
        """Return the random numbers of an episode, and the loop's exploration signal in that episode."""
        if episode not in self._episodes:
            while len(self._episodes) >= _MAX_EPISODES:
                del self._episodes[min(self._episodes)]
            config = self._config
            rng = stream(config.seed, Role.EXPLORATION, episode)
            noise = episode_noise(config.exploration, rng, episode, self._steps, self._actuators)
            draws = episode_draws(config.seed, episode, self._steps, self._n_obs, self._n_act)
            self._episodes[episode] = draws, np.array(noise)
        return self._episodes[episode]
