"""Common interface of the learning algorithms.

An algorithm trains S trials in parallel; a rig has one trial. A new algorithm needs two classes: a description, which
is also its configuration section (``onrig.learner.algorithm_config``) and is registered under its name, and an
implementation of the protocol below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from onrig.learner.notes import Notes
from onrig.learner.tape.convolutions import ReadFrames
from onrig.learner.trajectories import Chain
from onrig.runtime import registry
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.policy.contract import PolicyContract

if TYPE_CHECKING:  # circular otherwise: descriptions of algorithms and samplers may be in the modules of their code
    from onrig.learner.settings import LearnerSettings

State = dict[str, NDArray[np.generic]]
"""Arrays by name, as stored in an ``.npz`` file."""


class Behaviour(NamedTuple):
    """Behaviour policy: the Gaussian that produced the action; normalised units."""

    mean: NDArray[np.floating]
    """(..., m)"""
    std: NDArray[np.floating]
    """(..., m)"""
    drawn: NDArray[np.floating]
    """(..., m): the action before any clipping."""
    overridden: NDArray[np.bool_]
    """(...): whether the applied action differs from ``drawn`` by more than clipping, or the noise was reduced."""


class Window(NamedTuple):
    """Windows of experiences: each experience and the ones that precede it in its episode, latest first; missing steps
    repeat the earliest experience."""

    slots: NDArray[np.int64]
    """(..., W): slots in the memory."""
    observation: NDArray[np.floating]
    """(..., W, n)"""
    is_present: NDArray[np.bool_]
    """(..., W)"""


@dataclass(frozen=True)
class Minibatches:
    """K consecutive minibatches of B experiences for each of S trials; normalised units, raw rewards."""

    observation: NDArray[np.floating]
    """(K, S, B, n)"""
    action: NDArray[np.floating]
    """The applied action, (K, S, B, m)."""
    reward: NDArray[np.floating]
    """(K, S, B)"""
    next_observation: NDArray[np.floating]
    """(K, S, B, n)"""
    terminated: NDArray[np.bool_]
    """True where s' ends the task, (K, S, B); False where a time limit truncates the episode."""
    weights: NDArray[np.floating] | None = None
    """Importance-sampling weights (de Bruin et al. 2018, §3.3.2), (K, S, B); None if all are 1.  They multiply the
    critic's gradient; for V-RACER and ACER, which have one network or one loss for both, they also multiply the
    policy's."""
    rewards: NDArray[np.floating] | None = None
    """(K, S, B, n), for an algorithm with ``successors`` n > 1: rewards of the experience and of its stored successors
    in the episode, padded with 0.  ``next_observation`` and ``terminated`` then belong to the last successor."""
    lengths: NDArray[np.int64] | None = None
    """(K, S, B): number of valid rewards, 1 to n."""
    slots: NDArray[np.int64] | None = None
    """(K, S, B): slots in the memory."""
    behaviour: Behaviour | None = None
    """Behaviour policies, (K, S, B, ...); None if not recorded."""
    window: Window | None = None
    """(K, S, B, W, ...), for an algorithm with ``window`` W > 1."""

    def select(self, k: int) -> Minibatches:
        """Return minibatch ``k``, without slots, behaviour policies and windows."""
        index = slice(k, k + 1)
        return Minibatches(
            self.observation[index],
            self.action[index],
            self.reward[index],
            self.next_observation[index],
            self.terminated[index],
            None if self.weights is None else self.weights[index],
            None if self.rewards is None else self.rewards[index],
            None if self.lengths is None else self.lengths[index],
        )


class Signals(NamedTuple):
    """Feedback from K updates to samplers and keepers about the replayed experiences, in units of the scaled reward."""

    td: NDArray[np.floating]
    """(K, S, B): TD error before the update; for several critics, the mean of their errors."""
    ranking: NDArray[np.floating] | None = None
    """(K, S, B): ranking criterion if it is not |td|: for several critics the largest |TD error|, for return
    distributions the loss."""
    target: NDArray[np.floating] | None = None
    """(K, S, B): regression targets of the critics; None unless the algorithm has ``provides_targets``."""

    far: NDArray[np.floating] | None = None
    """(K, S, B): 1 where the importance ratio is outside ReF-ER's bounds, else 0; None without ReF-ER."""
    kl: NDArray[np.floating] | None = None
    """(K, S, B): KL divergence between the behaviour policy and the current one; None without ReF-ER."""

    def feedback_values(self, signal: Signal) -> NDArray[np.floating]:
        """Return the values (K, S, B) of a feedback signal for keepers; raise ValueError if the algorithm does not
        provide it."""
        signals = {Signal.TD_ERROR: self.priority, Signal.FAR: self.far, Signal.KL: self.kl}.get(signal)
        if signals is None:
            raise ValueError(f"the algorithm does not provide {signal.value}")
        return signals

    @property
    def priority(self) -> NDArray[np.floating]:
        """(K, S, B): ranking criterion for samplers and keepers."""
        return np.abs(self.td) if self.ranking is None else self.ranking

    def of_trial(self, trial: int) -> Signals:
        """Return the signals of one trial, (K * B,) each."""
        return Signals(*(None if field is None else field[:, trial].reshape(-1) for field in self))  # type: ignore[arg-type]


class DiscreteActions(NamedTuple):
    """One action dimension discretised into levels, explored epsilon-greedily unless the policy has its own noise."""

    levels: int
    """Number of levels, which are uniform on [-1, 1] (``level_values``)."""
    epsilon: tuple[tuple[float, float], ...]
    """Points (episode, probability of a uniformly random action) (``onrig.runtime.explore.schedule.interpolate``)."""


def level_values(levels: int) -> NDArray[np.float64]:
    """Return the actions of the levels, lowest first."""
    return np.linspace(-1.0, 1.0, levels)


class Algorithm(Protocol):
    """Policies of S trials, with the update that trains them; the results of a trial are bit-identical for any number
    of trials."""

    updates: int
    """Number of updates so far."""

    @property
    def discrete(self) -> DiscreteActions | None:
        """Discrete actions; None for continuous actions on [-1, 1], explored with added noise."""
        ...

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act without exploration: normalised observations (S, E, n) to normalised actions (S, E, m)."""
        ...

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raise ValueError if their shape does not fit."""
        ...

    def state(self) -> State:
        """Return a copy of everything needed to resume training."""
        ...

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``, bit for bit; raise KeyError or ValueError if it does not fit."""
        ...


@runtime_checkable
class Stochastic(Algorithm, Protocol):
    """Algorithm whose policy provides its own exploration noise; ``policy`` acts with the mean."""

    noise_width: int
    """Number of random numbers per action."""

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act on normalised observations (S, E, n) with N(0, 1) ``noise`` (S, E, noise_width); return normalised
        actions (S, E, m)."""
        ...


class MemoryAccess(NamedTuple):
    """An algorithm's access to the memories of S trials."""

    notes: Notes
    gather: Callable[[NDArray[np.int64]], Minibatches]
    """Function that returns the experiences in slots (S, n), as fields (S, n, ...) that are valid until the next
    call."""
    next_slots: NDArray[np.int64]
    """(S, capacity): slot of the next experience in the episode, -1 if it is missing; like ``segments_around``,
    provided only to an algorithm that ``needs_episodes``."""
    segments_around: Callable[[NDArray[np.int64], int], Chain]
    """Function that returns segments of episodes (``onrig.learner.trajectories.Trajectories.segments_around``)."""


@runtime_checkable
class UsesWholeMemory(Algorithm, Protocol):
    """Algorithm that uses the complete memory and keeps notes per slot."""

    def bind_memory(self, memory: MemoryAccess) -> None:
        """Set the memory to use; called once, before the first update."""
        ...

    def divergence(self) -> NDArray[np.floating]:
        """Return, over the memory, the mean KL divergence of the current policies from the behaviour policies and the
        share of far experiences (``onrig.learner.algorithms.refer``): (S, 2)."""
        ...


@runtime_checkable
class ReadsFrames(Algorithm, Protocol):
    """Algorithm that may learn from images; the observations of trials are then frame numbers, oldest first."""

    def bind_frames(self, read_frames: ReadFrames) -> None:
        """Set the function that reads frames by number; called once, before the first action."""
        ...


@runtime_checkable
class Exportable(Protocol):
    """Algorithm whose policy a rig can run."""

    behaviour: str
    """Kind of the policies (``onrig.runtime.policy.contract``)."""

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        """Build the ONNX model of one trial's policy, with inputs and outputs in SI units and with its contract.

        ``onrig.learner.export`` builds models of many kinds of network.  Raises ValueError for a contract that does not
        fit.
        """
        ...


@runtime_checkable
class Gaussian(Exportable, Protocol):
    """Algorithm whose policy is a Gaussian of known density, with samples clipped to [-1, 1]."""

    def distribution(self, observation: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the mean and standard deviation at normalised observations (S, E, n): (S, E, m) each."""
        ...


@runtime_checkable
class Recurrent(Gaussian, Protocol):
    """Gaussian policy with memory of its episode; ``policy`` and ``distribution`` apply only to an episode's first
    step."""

    hidden_width: int
    """h: size of the hidden state."""

    def recurrent_distribution(
        self, observation: NDArray[np.floating], hidden: NDArray[np.float32]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.float32]]:
        """Return the mean and standard deviation (S, E, m) at observations (S, E, n), and the hidden states (S, E, h)
        after them.

        ``hidden``: hidden states after the previous step; 0 at the start of an episode.
        """
        ...


def algorithm_for(
    settings: LearnerSettings, n_observations: int, n_actions: int, streams: Sequence[np.random.Generator]
) -> Algorithm:
    """Build the algorithm that ``settings`` select, with a trial for each of ``streams`` (PCG64), which it then owns.

    Raises ValueError if ``streams`` is empty, or if the algorithm does not support this many action dimensions.
    """
    if not streams:
        raise ValueError("expected one random stream per trial, got none")
    if settings.algorithm_config.single_action and n_actions != 1:
        raise ValueError(f"{settings.algorithm} supports one action dimension, got {n_actions}")
    refer, config = settings.effective_refer, settings.algorithm_config
    build: Callable[..., Algorithm] = registry.import_home(config, config.home_of(with_refer=refer is not None))
    refer_arguments = () if refer is None else (refer,)
    return build(config, n_observations, n_actions, streams, *refer_arguments)
