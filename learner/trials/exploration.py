"""Actions of S trials: their policies' actions, with exploration in training.

``Explorer`` computes actions from observations and random numbers (``onrig.learner.trials.exploration_numbers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Algorithm, Gaussian, Recurrent, Stochastic
from onrig.learner.algorithms.on_policy import OnPolicy
from onrig.learner.trials.exploration_numbers import BufferedDraws, Episodes, ExplorationNumbers, NumberSource, normal
from onrig.learner.trials.worlds import Bools, Policy


class ChosenActions(NamedTuple):
    """Normalised actions of S trials with E actors each, of which the first K explore."""

    action: NDArray[np.floating]
    """(S, E, m)"""
    intended_action: NDArray[np.floating]
    """(S, E, m): actions without exploration."""
    behaviour: NDArray[np.floating] | None = None
    """(S, K, 3 m): mean, standard deviation and draw of a Gaussian policy; for on-policy algorithms only the draws,
    (S, K, m)."""
    noise_reduced: Bools | bool = False
    """Whether a Gaussian policy's noise was reduced; (S, 1) if trials differ."""


class ExplorationPolicy(Protocol):
    """Function from observations to the actions of S trials."""

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, is_random_phase: bool = False
    ) -> ChosenActions:
        """Return the actions for the next step, at observations (S, E, n) in episodes (S,)."""
        ...

    def begin(self, has_ended: Bools) -> None:
        """Begin the next episode of the actors whose episode ``has_ended`` (S, K)."""
        ...

    def policy(self, actors: tuple[int, int]) -> Policy:
        """Return the noise-free policies of (S, E) actors that start an episode."""
        ...


class RecurrentPolicies:
    """Distributions under S trials' recurrent policies, with a hidden state for each of E actors."""

    def __init__(self, algorithm: Recurrent, actors: tuple[int, int]) -> None:
        self._algorithm = algorithm
        self._hidden: NDArray[np.float32] = np.zeros((*actors, algorithm.hidden_width), np.float32)

    def begin(self, has_ended: Bools) -> None:
        self._hidden[has_ended] = 0.0

    def __call__(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the mean and standard deviation (S, E, m) for the next step of every episode."""
        mean, std, self._hidden = self._algorithm.recurrent_distribution(observation, self._hidden)
        return mean, std


class Explorer:
    """Policies of S trials, in each of which the first actor explores."""

    def __init__(
        self, algorithm: Algorithm, number_source: NumberSource, trials: int, *, samples_actions: bool
    ) -> None:
        """``samples_actions``: whether a Gaussian policy samples its actions."""
        self._algorithm, self._number_source = algorithm, number_source
        self._recurrent = RecurrentPolicies(algorithm, (trials, 1)) if isinstance(algorithm, Recurrent) else None
        gaussian = algorithm.distribution if isinstance(algorithm, Gaussian) else None
        self._distribution = (self._recurrent or gaussian) if samples_actions else None
        self._sample = algorithm.sample if isinstance(algorithm, Stochastic) else None
        self.adds_noise: Final = self._distribution is None and self._sample is None and algorithm.discrete is None
        """Whether noise is added to the policy's actions."""

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, is_random_phase: bool = False
    ) -> ChosenActions:
        exploring_actions, intended_action, behaviour, noise_reduced = self.act(
            observation, self._number_source(episode, is_random_phase=is_random_phase)
        )
        action = exploring_actions
        if exploring_actions.shape[1] < intended_action.shape[1]:
            action = intended_action.copy()
            action[:, : exploring_actions.shape[1]] = exploring_actions
        return ChosenActions(action, intended_action, behaviour, noise_reduced)

    def act(
        self, observation: NDArray[np.floating], numbers: ExplorationNumbers, n_explorers: int = 1
    ) -> ChosenActions:
        """Return the actions of the exploring actors for observations (S, E, n)."""
        noise = numbers.noise
        if self._distribution is not None:
            assert noise is not None
            mean, std = self._distribution(observation)
            intended_action = np.clip(mean, -1.0, 1.0).astype(np.float64)
            mean, std = mean[:, :n_explorers], std[:, :n_explorers]
            sampled_action = mean + std * noise
            if numbers.amplitude is not None:
                std = numbers.amplitude * std
            noise_reduced = numbers.amplitude is not None and np.asarray(numbers.amplitude.min(axis=-1) < 1.0)
            return ChosenActions(
                np.clip(sampled_action, -1.0, 1.0),
                intended_action,
                np.concatenate((mean, std, sampled_action), axis=2),
                noise_reduced,
            )
        intended_action = self._algorithm.policy(observation).astype(np.float64)
        action = intended_action[:, :n_explorers]
        if noise is not None and self._sample is not None:
            action = self._sample(observation[:, :n_explorers], noise).astype(np.float64)
        elif noise is not None:
            action = np.minimum(np.maximum(action + noise, -1.0), 1.0)
        if numbers.random_actions is not None:
            action = np.where(numbers.is_replaced, numbers.random_actions, action)
        return ChosenActions(action, intended_action)

    def begin(self, has_ended: Bools) -> None:
        if self._recurrent is not None:
            self._recurrent.begin(has_ended)

    def policy(self, actors: tuple[int, int]) -> Policy:
        if not isinstance(self._algorithm, Recurrent):
            return self._algorithm.policy
        distribution = RecurrentPolicies(self._algorithm, actors)
        return lambda observation: np.clip(distribution(observation)[0], -1.0, 1.0)


class OnPolicyExplorer:
    """On-policy actions of S trials with K actors each, sampled from the policies that learn from them."""

    def __init__(self, algorithm: OnPolicy, seeds: Sequence[int], m: int, actors: int) -> None:
        self._algorithm, self._noise = algorithm, BufferedDraws(seeds, 1, normal, m, actors)

    def __call__(
        self, observation: NDArray[np.floating], episode: Episodes, *, is_random_phase: bool = False
    ) -> ChosenActions:
        sampled_action = self._algorithm.draw(observation, self._noise())
        action = np.clip(sampled_action, -1.0, 1.0)
        return ChosenActions(action, action, sampled_action)

    def begin(self, has_ended: Bools) -> None:
        """Do nothing: these policies have no memory."""

    def policy(self, actors: tuple[int, int]) -> Policy:
        return self._algorithm.policy
