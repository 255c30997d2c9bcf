"""Algorithms that learn from batches of experiences of their present policies: what they have in common, without torch.

The owner of the policies gathers a complete batch, N experiences under one policy; what an algorithm
derives from it (advantages, target values, densities) it keeps itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import State, algorithm_for

if TYPE_CHECKING:  # it loads the descriptions of algorithms and samplers, which may be in the modules of their code
    from onrig.learner.settings import LearnerSettings

Beat = Callable[[], object]
"""Signals progress."""


def no_beat() -> None:
    """Signal nothing."""


class PolicyBatch(NamedTuple):
    """T consecutive steps of K actors of S trials, each trial's under one policy; normalised units, raw rewards."""

    observation: NDArray[np.floating]
    """(S, K, T, n)"""
    drawn: NDArray[np.floating]
    """The policy's actions before any clip, (S, K, T, m)."""
    reward: NDArray[np.floating]
    """(S, K, T)"""
    next_observation: NDArray[np.floating]
    """Next observation, in a finished episode its last: (S, K, T, n)."""
    terminated: NDArray[np.bool_]
    """(S, K, T)"""
    truncated: NDArray[np.bool_]
    """(S, K, T): the chain ends here without a terminal state."""
    deviates: NDArray[np.bool_]
    """(S, K, T): the applied action was not the policy's own.  Its importance ratio is 0, so policies learn nothing
    from it; values and advantages follow it."""
    log_pi: NDArray[np.floating] | None = None
    """(S, K, T): ln pi(a|s) of the policy that acted, where it was recorded; None for that of present policies."""


@runtime_checkable
class OnPolicy(Protocol):
    """Gaussian policies of S trials, and their update; each trial is bit for bit the same in any number of trials."""

    updates: int
    """Gradient steps of PPO, batches of TRPO, so far."""

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        ...

    def draw(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Draw actions by N(0, 1) ``noise`` (S, E, m): (S, E, m), not clipped."""
        ...

    def learn(self, batch: PolicyBatch, left: float, beat: Beat = no_beat) -> None:
        """Learn from a batch of the present policies; ``left`` is the share of the run that was left at its start.

        Calls ``beat`` after every epoch.  Raises ValueError for a batch of another size.
        """
        ...

    def state(self) -> State:
        """Copy of everything needed to resume training."""
        ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        ...


def on_policy_for(
    settings: LearnerSettings, n_observations: int, n_actions: int, streams: Sequence[np.random.Generator]
) -> OnPolicy:
    """Build the on-policy algorithm that ``settings`` select: ``onrig.learner.algorithms.algorithm_for``."""
    return cast(OnPolicy, algorithm_for(settings, n_observations, n_actions, streams))
