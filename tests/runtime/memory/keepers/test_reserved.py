"""Slots that are never overwritten, in front of every retention."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.memory.keepers.keeper import FEEDBACK, Keeper
from onrig.runtime.memory.strategy import build_keeper, parse_strategy

RESERVED, CAPACITY = 5, 20
EACH_RETENTION = pytest.mark.parametrize(
    "retention", ["FIFO", "Resv", "TDE(1.0)", "Expl(1.0)", "FULL", "FarPolFrac", "MinError"]
)


def _keeper(retention: str, seed: int = 0, n_reserved: int = RESERVED, probability: float = 1.0) -> Keeper:
    strategy = parse_strategy(f"{retention}[Uniform]")
    capacity = CAPACITY if n_reserved else CAPACITY - RESERVED
    return build_keeper(
        strategy, capacity, np.random.default_rng(seed), write_probability=probability, reserved=n_reserved
    )


def _offer_many(keeper: Keeper, count: int, seed: int = 3) -> list[int]:
    rng, slots = np.random.default_rng(seed), []
    for offer in range(count):
        slots.append(keeper.place())
        if slots[-1] >= 0:
            keeper.on_write(slots[-1], float(rng.exponential()), offer // 7)
    return slots


@EACH_RETENTION
def test_behind_the_reserved_slots_a_keeper_decides_as_without_them(retention: str) -> None:
    keeper, unreserved = _keeper(retention), _keeper(retention, n_reserved=0)
    assert _offer_many(keeper, RESERVED) == list(range(RESERVED))
    for round_index in range(3):
        kept_slots = _offer_many(keeper, 20, round_index)
        assert kept_slots == [
            slot if slot < 0 else slot + RESERVED for slot in _offer_many(unreserved, 20, round_index)
        ]
        assert keeper.n_rejected == unreserved.n_rejected
        slots, values = np.arange(CAPACITY), np.random.default_rng(round_index).random(CAPACITY).astype(np.float32)
        for signal in FEEDBACK.values():
            keeper.on_feedback(signal, slots, values)
            unreserved.on_feedback(signal, slots[RESERVED:] - RESERVED, values[RESERVED:])
    assert not keeper.cyclic


@EACH_RETENTION
def test_a_restored_keeper_decides_the_same_and_refuses_other_numbers(retention: str) -> None:
    keeper, other = _keeper(retention), _keeper(retention, seed=9)
    _offer_many(keeper, 30)
    state = keeper.state()
    assert state["capacity"] == CAPACITY
    other.restore({name: np.array(values) for name, values in state.items()})
    assert _offer_many(keeper, 30) == _offer_many(other, 30)
    with pytest.raises(ValueError, match="5 reserved slots, expected 6"):
        _keeper(retention, n_reserved=6).restore(state)
    del state["reserved"]
    with pytest.raises(ValueError, match="0 reserved slots, expected 5"):
        _keeper(retention).restore(state)


def test_reserved_slots_are_not_thinned() -> None:
    keeper = _keeper("FIFO", probability=0.2)
    assert _offer_many(keeper, RESERVED) == list(range(RESERVED))
    assert min(_offer_many(keeper, 20)) == -1
