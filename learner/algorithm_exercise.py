"""Conformance check of an algorithm, with every call that a run makes, on random data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import (
    Algorithm,
    Behaviour,
    Exportable,
    MemoryAccess,
    Minibatches,
    Signals,
    UsesWholeMemory,
    Window,
    algorithm_for,
)
from onrig.learner.algorithms.on_policy import OnPolicy, PolicyBatch
from onrig.learner.notes import Notes
from onrig.learner.settings import LearnerSettings
from onrig.learner.trajectories import Trajectories
from onrig.runtime.policy.contract import contract_for
from onrig.runtime.run_config import RunConfig

_STATES: Final = 5
_TOLERANCE: Final = 1e-3
"""Maximum difference between a trial's results alone and among other trials, relative to the largest value, unless the
algorithm promises bit-identical results."""


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def algorithm_problems(config: RunConfig, settings: LearnerSettings) -> Iterator[str]:
    """List an algorithm's defects: in its actions, signals, trials and restored state."""
    n, m = len(config.signals), len(config.rig.actuators)
    states = _rng(8).uniform(-1.0, 1.0, (2, _STATES, n))

    def build(networks: Sequence[int], memories: Sequence[int]) -> tuple[Algorithm, Notes]:
        algorithm = algorithm_for(settings, n, m, [_rng(seed) for seed in networks])
        S, B = len(memories), settings.batch
        notes = Notes(S, B)
        if isinstance(algorithm, UsesWholeMemory):
            links = Trajectories(S, B, lambda trial, first, second: first >= 0)
            rows = [minibatches(_rng(seed), (1, B), n, m, settings) for seed in memories]
            algorithm.bind_memory(
                MemoryAccess(notes, lambda slots: _gather(rows, slots), links.next_slots, links.segments_around)
            )
        return algorithm, notes

    (both, notes), (alone, _), (other, others) = build((1, 2), (5, 6)), build((2,), (6,)), build((3, 4), (5, 6))
    actions = both.policy(states)
    if actions.shape != (2, _STATES, m) or not np.isfinite(actions).all():
        yield f"returns actions of shape {actions.shape}, or non-finite actions, for states of shape {states.shape}"
        return
    if not np.array_equal(actions, both.policy(states)):
        yield "returns two different actions for the same state"
    train = _train_on_batches if settings.selected.batch_steps else _train_on_minibatches
    first = train(both, settings, n, m, slice(None))
    if (problem := _signals_problem(first, settings)) is not None:
        yield problem
        return
    exact = settings.selected.bit_identical_trials
    alone_first = train(alone, settings, n, m, slice(1, 2))
    if not (_equal(first, alone_first, 1, exact) and _same(both.policy(states)[1:], alone.policy(states[1:]), exact)):
        requirement = (
            "every bit must agree" if exact else f"results differ by more than {_TOLERANCE:g} of the largest value"
        )
        yield f"results of a trial alone and among other trials differ: {requirement}"
    others.restore(notes.state())
    other.restore({name: np.array(array) for name, array in both.state().items()})
    again, restored = (train(algorithm, settings, n, m, slice(None)) for algorithm in (both, other))
    if not (_equal(again, restored) and np.array_equal(both.policy(states), other.policy(states))):
        yield "learns differently after its state is restored"


def untrained_policy(config: RunConfig, settings: LearnerSettings) -> bytes:
    """Return the policy graph of an untrained algorithm."""
    n, m = len(config.signals), len(config.rig.actuators)
    algorithm = algorithm_for(settings, n, m, [_rng(1)])
    if not isinstance(algorithm, Exportable):
        raise TypeError("it lacks policy_graph or behaviour, although its description sets on_rig")
    contract = contract_for(
        config.rig,
        config.rate_hz,
        policy_id=1,
        parent_run="check",
        training_step=0,
        behaviour=algorithm.behaviour,
        signals=config.signals,
    )
    return algorithm.policy_graph(0, contract)


def _signals_problem(signals: Signals, settings: LearnerSettings) -> str | None:
    shape = (2, 2, settings.batch)
    if settings.selected.batch_steps:
        return None
    for name, values in signals._asdict().items():
        if values is not None and (np.shape(values) != shape or not np.isfinite(values).all()):
            return f"returns signals '{name}' of shape {np.shape(values)}, or non-finite values, expected shape {shape}"
    if (signals.target is not None) is not settings.selected.provides_targets:
        return "returns targets although its description does not set provides_targets, or the reverse"
    return None


def _same(a: NDArray[Any], b: NDArray[Any], exact: bool) -> bool:
    """Whether two arrays agree, bit for bit or approximately."""
    if exact:
        return np.array_equal(a, b)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= _TOLERANCE * np.max(np.abs(b), initial=0.0)))


def _equal(a: Signals, b: Signals, trial: int | None = None, exact: bool = True) -> bool:
    """Whether two sets of signals agree, bit for bit or approximately; ``b`` may contain a single trial."""
    pairs = [(x if trial is None or x is None else x[:, trial : trial + 1], y) for x, y in zip(a, b, strict=True)]
    return all((x is None and y is None) or _same(cast(Any, x), cast(Any, y), exact) for x, y in pairs)


def _train_on_minibatches(algorithm: Algorithm, settings: LearnerSettings, n: int, m: int, trials: slice) -> Signals:
    """Learn from two minibatches of the selected trials."""
    batches = minibatches(_rng(9), (2, 2, settings.batch), n, m, settings, trials)
    return algorithm.update(batches)


def _gather(rows: Sequence[Minibatches], slots: NDArray[np.int64]) -> Minibatches:
    """Return the experiences in slots (S, n), from the rows of each trial."""

    def stack(name: str, *parts: Minibatches | Behaviour | Window) -> Any:
        return np.stack([getattr(part, name)[0][at] for part, at in zip(parts, slots, strict=True)])

    behaviours = [row.behaviour for row in rows if row.behaviour is not None]
    windows = [row.window for row in rows if row.window is not None]
    return Minibatches(
        stack("observation", *rows),
        stack("action", *rows),
        stack("reward", *rows),
        stack("next_observation", *rows),
        stack("terminated", *rows),
        behaviour=Behaviour(*(stack(name, *behaviours) for name in Behaviour._fields)) if behaviours else None,
        window=Window(*(stack(name, *windows) for name in Window._fields)) if windows else None,
    )


def _train_on_batches(algorithm: Algorithm, settings: LearnerSettings, n: int, m: int, trials: slice) -> Signals:
    """Learn from a batch of the present policies."""
    rng, shape = _rng(9), (2, 1, settings.selected.batch_steps)
    observation, next_observation = rng.uniform(-1.0, 1.0, (2, *shape, n))
    ends, false = rng.random(shape) < 0.05, np.zeros(shape, np.bool_)
    drawn, reward = rng.standard_normal((*shape, m)), rng.standard_normal(shape)
    fields: Sequence[Any] = (observation, drawn, reward, next_observation, ends, false, false)
    cast(OnPolicy, algorithm).learn(PolicyBatch(*(field[trials] for field in fields)), 1.0)
    return Signals(np.zeros((0, len(observation[trials]), 0)))


def minibatches(
    rng: np.random.Generator,
    shape: Sequence[int],
    n: int,
    m: int,
    settings: LearnerSettings,
    trials: slice | None = None,
) -> Minibatches:
    """Random experiences with fields of shape (*shape, ...); ``trials`` selects along the second axis."""
    selected, B = settings.selected, shape[-1]

    def select(array: NDArray[Any]) -> NDArray[Any]:
        return array if trials is None else array[:, trials]

    def draw(width: int) -> NDArray[np.float32]:
        return select(rng.uniform(-1.0, 1.0, (*shape, width)).astype(np.float32))

    observation, action, next_observation, mean = draw(n), draw(m), draw(n), draw(m)
    ends = select(rng.random(shape) < 0.1)
    rewards = select(rng.standard_normal((*shape, selected.successors)).astype(np.float32))
    positions = np.broadcast_to(np.arange(B)[:, None], (*rewards.shape[:-1], selected.window))
    window = Window(
        positions, np.repeat(observation[..., None, :], selected.window, axis=-2), np.ones(positions.shape, np.bool_)
    )
    acted = Behaviour(mean, np.full_like(mean, 0.5), action, np.zeros_like(ends))
    return Minibatches(
        observation,
        action,
        rewards[..., 0],
        next_observation,
        ends,
        rewards=rewards if selected.successors > 1 else None,
        lengths=np.full(ends.shape, selected.successors) if selected.successors > 1 else None,
        slots=positions[..., 0],
        behaviour=acted if settings.stochastic else None,
        window=window if selected.window > 1 else None,
    )
