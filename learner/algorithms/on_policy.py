"""Common interface of the algorithms that learn from batches of experiences under their current policies.

The owner of the policies gathers a complete batch of N experiences under one policy.  The algorithm itself keeps the
quantities that it derives from a batch: advantages, target values, densities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import State, algorithm_for

if TYPE_CHECKING:  # circular otherwise: descriptions of algorithms and samplers may be in the modules of their code
    from onrig.learner.settings import LearnerSettings

HeartbeatCallback = Callable[[], object]
"""Called to report that learning is making progress."""


def ignore_heartbeat() -> None:
    """Do nothing."""


class PolicyBatch(NamedTuple):
    """T consecutive steps of K actors in each of S trials, one policy per trial; normalised units, raw rewards."""

    observation: NDArray[np.floating]
    """(S, K, T, n)"""
    drawn: NDArray[np.floating]
    """The policy's actions before any clipping, (S, K, T, m)."""
    reward: NDArray[np.floating]
    """(S, K, T)"""
    next_observation: NDArray[np.floating]
    """Next observation, or the last one of a finished episode: (S, K, T, n)."""
    terminated: NDArray[np.bool_]
    """(S, K, T)"""
    truncated: NDArray[np.bool_]
    """(S, K, T): whether the chain ends here without a terminal state."""
    overridden: NDArray[np.bool_]
    """(S, K, T): whether the applied action is not the policy's.  The experience's importance ratio is then 0, so that
    policies learn nothing from it, but values and advantages still use it."""
    log_pi: NDArray[np.floating] | None = None
    """(S, K, T): recorded ln pi(a|s) under the behaviour policy; None to compute it under the current policies."""


@runtime_checkable
class OnPolicy(Protocol):
    """Gaussian policies of S trials, with the update that trains them; the results of a trial are bit-identical for any
    number of trials."""

    updates: int
    """Number of gradient steps (PPO) or batches (TRPO) so far."""

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        ...

    def draw(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Sample unclipped actions (S, E, m) with N(0, 1) ``noise`` (S, E, m)."""
        ...

    def learn(
        self, batch: PolicyBatch, remaining_fraction: float, heartbeat: HeartbeatCallback = ignore_heartbeat
    ) -> None:
        """Learn from a batch of the current policies.

        ``remaining_fraction``: fraction of the run that remained when the batch began.  ``heartbeat`` is called after
        every epoch.  Raises ValueError if the batch has the wrong size.
        """
        ...

    def state(self) -> State:
        """Return a copy of everything needed to resume training."""
        ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``, bit for bit; raise KeyError or ValueError if it does not fit."""
        ...


def on_policy_for(
    settings: LearnerSettings, n_observations: int, n_actions: int, streams: Sequence[np.random.Generator]
) -> OnPolicy:
    """Build the on-policy algorithm that ``settings`` select, with ``onrig.learner.algorithms.algorithm_for``."""
    return cast(OnPolicy, algorithm_for(settings, n_observations, n_actions, streams))
