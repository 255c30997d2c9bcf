"""Conformance checks of keepers and samplers, which make every call that a run makes, on random data.

Each function lists the defects it finds; exceptions raised by the plugin propagate.  ``onrig check`` applies them to
plugins from other packages and files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from onrig.learner.algorithm_exercise import minibatches
from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, ReplayView, Sampler, SamplerContext, sampler_for
from onrig.learner.settings import LearnerSettings
from onrig.runtime.memory.keepers.keeper import FEEDBACK, REJECTED, Keeper
from onrig.runtime.memory.strategy import Strategy, build_keeper
from onrig.runtime.run_config import RunConfig

_CAPACITY: Final = 24
_N_OFFERS: Final = 5 * _CAPACITY
_EPISODE_STEPS: Final = 7
_LARGE_CAPACITY: Final = 4096
_MAX_OVERHEAD_BYTES: Final = 8192
"""Maximum number of bytes that a keeper may use, for any capacity, beyond its ``fixed_bytes`` and
``bytes_per_slot``."""
_ROUNDS: Final = 6


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- retention ---------------------------------------------------------------------------------------------------------


def keeper_problems(strategy: Strategy) -> Iterator[str]:
    """List defects in a keeper's choice of slots, its memory use and its restored state."""
    keeper, rng = build_keeper(strategy, _CAPACITY, _rng(1)), _rng(2)
    slots = _decide_slots(keeper, rng, range(_N_OFFERS))
    n_stored = 0
    for offer, slot in enumerate(slots):
        if not isinstance(slot, int | np.integer) or not (
            slot == REJECTED or 0 <= slot <= min(n_stored, _CAPACITY - 1)
        ):
            valid_slots = f"0 to {n_stored}" if n_stored < _CAPACITY else f"0 to {_CAPACITY - 1}"
            yield f"puts offer {offer + 1} in slot {slot!r}, expected {valid_slots} or REJECTED"
            return
        n_stored += int(slot == n_stored)
    used_slots = [slot for slot in slots if slot != REJECTED]
    if keeper.cyclic and used_slots != [number % _CAPACITY for number in range(len(used_slots))]:
        yield "is declared cyclic, but does not fill slots in turn"
    large_keeper = build_keeper(strategy, _LARGE_CAPACITY, _rng(1))
    _decide_slots(large_keeper, rng, range(_LARGE_CAPACITY))
    if large_keeper.nbytes > large_keeper.bytes_per_slot * _LARGE_CAPACITY + _MAX_OVERHEAD_BYTES:
        declaration = f"declares {large_keeper.bytes_per_slot:g} bytes per slot"
        yield f"uses {large_keeper.nbytes} bytes for {_LARGE_CAPACITY} slots, but {declaration}"
    state = {name: array.copy() for name, array in keeper.state().items()}
    returned_state = keeper.state()
    copy = build_keeper(strategy, _CAPACITY, _rng(3))
    copy.restore({name: array.copy() for name, array in state.items()})
    later_offers = range(_N_OFFERS, 2 * _N_OFFERS)
    if _decide_slots(keeper, _rng(4), later_offers) != _decide_slots(copy, _rng(4), later_offers):
        yield "decides differently after its state is restored"
    if any(not np.array_equal(returned_state[name], array) for name, array in state.items()):
        yield "keeps using the arrays that state() returned: return copies"


def _decide_slots(keeper: Keeper, rng: np.random.Generator, offers: range) -> list[int]:
    """Return the slots that a keeper chooses for offered experiences, with occasional feedback in between."""
    slots: list[int] = []
    n_stored = keeper.capacity if offers.start else 0
    for offer in offers:
        slots.append(keeper.place())
        if slots[-1] != REJECTED:
            keeper.on_write(slots[-1], float(rng.exponential()), offer // _EPISODE_STEPS)
        n_stored = min(n_stored + 1, keeper.capacity)
        for signal in FEEDBACK.values():
            if signal in keeper.required_signals and offer % 3 == 0:
                replayed_slots = rng.integers(0, n_stored, 4)
                keeper.on_feedback(signal, replayed_slots, rng.exponential(size=4).astype(np.float32))
    return slots


# -- sampling ----------------------------------------------------------------------------------------------------------


def sampler_problems(strategy: Strategy, config: RunConfig, settings: LearnerSettings) -> Iterator[str]:
    """List defects in a sampler's draws, its weights and its restored state."""
    batch = settings.batch
    capacity = max(2 * batch, _CAPACITY)
    n, m = len(config.signals), len(config.rig.actuators)
    view = ReplayView(
        lambda slots: minibatches(_rng(5), slots.shape, n, m, settings),
        lambda observation: np.zeros((*observation.shape[:-1], m)),
        lambda slots: slots / capacity,
        n,
        m,
    )
    context = SamplerContext.of_run(config, settings, capacity, view)

    def build(seed: int) -> Sampler:
        return sampler_for(strategy, _rng(seed), context)

    sampler, n_stored = build(1), capacity - batch // 2
    sampler.on_write(np.arange(n_stored))
    sampler.on_episode_end(-1.0)
    sampler.begin_episode(1)
    for _ in range(_ROUNDS):
        draw = sampler.draw(batch, 1)
        problem = _draw_problem(draw, (1, batch), n_stored)
        if problem is not None:
            yield problem
            return
        _learn(sampler, draw, _rng(6))
    sampler.on_write(np.arange(n_stored, capacity))
    copy = build(2)
    copy.restore({name: np.array(array) for name, array in sampler.state().items()})
    for _ in range(_ROUNDS):
        draw_pair = sampler.draw(batch, 1), copy.draw(batch, 1)
        if not _draws_agree(*draw_pair):
            yield "draws differently after its state is restored"
            return
        for drawing_sampler, draw in zip((sampler, copy), draw_pair, strict=True):
            _learn(drawing_sampler, draw, _rng(7))
    if not sampler.required_signals:
        joint_draw, single_draws = sampler.draw(batch, 3), [copy.draw(batch, 1) for _ in range(3)]
        if not np.array_equal(joint_draw.slots, np.concatenate([draw.slots for draw in single_draws])):
            yield "draws different minibatches in one call for three updates than in three calls for one update each"


def _draw_problem(draw: Draw, shape: tuple[int, int], n_stored: int) -> str | None:
    slots, weights = draw.slots, draw.weights
    if slots.shape != shape or not np.issubdtype(slots.dtype, np.integer):
        return f"draws slots of shape {slots.shape} and type {slots.dtype}, expected integers of shape {shape}"
    if slots.min() < 0 or slots.max() >= n_stored:
        return f"draws slots {slots.min()} to {slots.max()}, but only 0 to {n_stored - 1} are written"
    if weights is not None and (weights.shape != shape or not np.isfinite(weights).all() or (weights < 0).any()):
        return f"draws weights of shape {weights.shape}, or negative or non-finite weights, expected shape {shape}"
    return None


def _learn(sampler: Sampler, draw: Draw, rng: np.random.Generator) -> None:
    if sampler.required_signals:
        td = rng.standard_normal(draw.slots.size)
        sampler.on_update(draw.slots.reshape(-1), Signals(td, None, td + 1.0, (td > 1).astype(float), td**2))


def _draws_agree(a: Draw, b: Draw) -> bool:
    if (a.weights is None) is not (b.weights is None):
        return False
    weights_agree = a.weights is None or b.weights is None or np.array_equal(a.weights, b.weights)
    return np.array_equal(a.slots, b.slots) and weights_agree
