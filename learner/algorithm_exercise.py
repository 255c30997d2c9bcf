"""Conformance check of an algorithm, which makes every call that a run makes, on random data."""

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

_N_STATES: Final = 5
_TOLERANCE: Final = 1e-3
"""Maximum difference, relative to the largest value, between a trial's results when it runs alone and when it runs with
other trials; algorithms that promise bit-identical results are allowed none."""


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def algorithm_problems(config: RunConfig, settings: LearnerSettings) -> Iterator[str]:
    """List defects in an algorithm's actions, its signals, the independence of its trials, and its restored state."""
    n, m = len(config.signals), len(config.rig.actuators)
    states = _rng(8).uniform(-1.0, 1.0, (2, _N_STATES, n))

    def build(networks: Sequence[int], memories: Sequence[int]) -> tuple[Algorithm, Notes]:
        algorithm = algorithm_for(settings, n, m, [_rng(seed) for seed in networks])
        S, B = len(memories), settings.batch
        notes = Notes(S, B)
        if isinstance(algorithm, UsesWholeMemory):
            trajectories = Trajectories(S, B, lambda trial, first_slots, second_slots: first_slots >= 0)
            rows = [minibatches(_rng(seed), (1, B), n, m, settings) for seed in memories]
            algorithm.bind_memory(
                MemoryAccess(
                    notes, lambda slots: _gather(rows, slots), trajectories.next_slots, trajectories.segments_around
                )
            )
        return algorithm, notes

    (pair, notes), (single, _), (copy, copy_notes) = build((1, 2), (5, 6)), build((2,), (6,)), build((3, 4), (5, 6))
    actions = pair.policy(states)
    if actions.shape != (2, _N_STATES, m) or not np.isfinite(actions).all():
        yield f"returns actions of shape {actions.shape}, or non-finite actions, for states of shape {states.shape}"
        return
    if not np.array_equal(actions, pair.policy(states)):
        yield "returns two different actions for the same state"
    train = _train_on_batches if settings.algorithm_config.batch_steps else _train_on_minibatches
    first_signals = train(pair, settings, n, m, slice(None))
    if (problem := _signals_problem(first_signals, settings)) is not None:
        yield problem
        return
    is_exact = settings.algorithm_config.bit_identical_trials
    single_signals = train(single, settings, n, m, slice(1, 2))
    if not (
        _signals_agree(first_signals, single_signals, 1, is_exact)
        and _arrays_agree(pair.policy(states)[1:], single.policy(states[1:]), is_exact)
    ):
        requirement = (
            "every bit must agree" if is_exact else f"results differ by more than {_TOLERANCE:g} of the largest value"
        )
        yield f"results of a trial alone and among other trials differ: {requirement}"
    copy_notes.restore(notes.state())
    copy.restore({name: np.array(array) for name, array in pair.state().items()})
    next_signals, copy_signals = (train(algorithm, settings, n, m, slice(None)) for algorithm in (pair, copy))
    if not (_signals_agree(next_signals, copy_signals) and np.array_equal(pair.policy(states), copy.policy(states))):
        yield "learns differently after its state is restored"


def untrained_policy(config: RunConfig, settings: LearnerSettings) -> bytes:
    """Return the policy graph of an untrained algorithm."""
    n, m = len(config.signals), len(config.rig.actuators)
    algorithm = algorithm_for(settings, n, m, [_rng(1)])
    if not isinstance(algorithm, Exportable):
        raise TypeError("policy_graph or behaviour is missing, although the description sets on_rig")
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
    if settings.algorithm_config.batch_steps:
        return None
    for name, values in signals._asdict().items():
        if values is not None and (np.shape(values) != shape or not np.isfinite(values).all()):
            return f"returns signals '{name}' of shape {np.shape(values)}, or non-finite values, expected shape {shape}"
    if (signals.target is not None) is not settings.algorithm_config.provides_targets:
        return "returns targets although its description does not set provides_targets, or vice versa"
    return None


def _arrays_agree(a: NDArray[Any], b: NDArray[Any], is_exact: bool) -> bool:
    """Return whether two arrays agree, bit for bit or approximately."""
    if is_exact:
        return np.array_equal(a, b)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= _TOLERANCE * np.max(np.abs(b), initial=0.0)))


def _signals_agree(a: Signals, b: Signals, trial: int | None = None, is_exact: bool = True) -> bool:
    """Return whether two sets of signals agree, bit for bit or approximately; if ``trial`` is given, ``b`` holds only
    that trial."""
    signal_pairs = [
        (x if trial is None or x is None else x[:, trial : trial + 1], y) for x, y in zip(a, b, strict=True)
    ]
    return all(
        (x is None and y is None) or _arrays_agree(cast(Any, x), cast(Any, y), is_exact) for x, y in signal_pairs
    )


def _train_on_minibatches(algorithm: Algorithm, settings: LearnerSettings, n: int, m: int, trials: slice) -> Signals:
    """Learn from two minibatches of the selected trials."""
    batches = minibatches(_rng(9), (2, 2, settings.batch), n, m, settings, trials)
    return algorithm.update(batches)


def _gather(rows: Sequence[Minibatches], slots: NDArray[np.int64]) -> Minibatches:
    """Gather the experiences in slots (S, n) from each trial's rows."""

    def stack(name: str, *trial_rows: Minibatches | Behaviour | Window) -> Any:
        return np.stack(
            [getattr(rows, name)[0][trial_slots] for rows, trial_slots in zip(trial_rows, slots, strict=True)]
        )

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
    """Learn from a batch of the current policies."""
    rng, shape = _rng(9), (2, 1, settings.algorithm_config.batch_steps)
    observation, next_observation = rng.uniform(-1.0, 1.0, (2, *shape, n))
    is_end, all_false = rng.random(shape) < 0.05, np.zeros(shape, np.bool_)
    sampled_action, reward = rng.standard_normal((*shape, m)), rng.standard_normal(shape)
    fields: Sequence[Any] = (observation, sampled_action, reward, next_observation, is_end, all_false, all_false)
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
    """Return random experiences with fields of shape (*shape, ...), restricted to ``trials`` along the second axis."""
    algorithm_config, B = settings.algorithm_config, shape[-1]

    def select(array: NDArray[Any]) -> NDArray[Any]:
        return array if trials is None else array[:, trials]

    def draw(width: int) -> NDArray[np.float32]:
        return select(rng.uniform(-1.0, 1.0, (*shape, width)).astype(np.float32))

    observation, action, next_observation, mean = draw(n), draw(m), draw(n), draw(m)
    is_end = select(rng.random(shape) < 0.1)
    rewards = select(rng.standard_normal((*shape, algorithm_config.successors)).astype(np.float32))
    window_slots = np.broadcast_to(np.arange(B)[:, None], (*rewards.shape[:-1], algorithm_config.window))
    window = Window(
        window_slots,
        np.repeat(observation[..., None, :], algorithm_config.window, axis=-2),
        np.ones(window_slots.shape, np.bool_),
    )
    behaviour = Behaviour(mean, np.full_like(mean, 0.5), action, np.zeros_like(is_end))
    return Minibatches(
        observation,
        action,
        rewards[..., 0],
        next_observation,
        is_end,
        rewards=rewards if algorithm_config.successors > 1 else None,
        lengths=np.full(is_end.shape, algorithm_config.successors) if algorithm_config.successors > 1 else None,
        slots=window_slots[..., 0],
        behaviour=behaviour if settings.stochastic else None,
        window=window if algorithm_config.window > 1 else None,
    )
