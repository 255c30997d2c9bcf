"""Slots that are never overwritten, in front of every retention."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.memory.keepers.keeper import FEEDBACK, Keeper
from onrig.runtime.memory.strategy import build_keeper, parse_strategy

RESERVED, CAPACITY = 5, 20
EACH = pytest.mark.parametrize("retention", ["FIFO", "Resv", "TDE(1.0)", "Expl(1.0)", "FULL", "FarPolFrac", "MinError"])


def _keeper(retention: str, seed: int = 0, reserved: int = RESERVED, probability: float = 1.0) -> Keeper:
    strategy = parse_strategy(f"{retention}[Uniform]")
    capacity = CAPACITY if reserved else CAPACITY - RESERVED
    return build_keeper(
        strategy, capacity, np.random.default_rng(seed), write_probability=probability, reserved=reserved
    )


def _offered(keeper: Keeper, count: int, seed: int = 3) -> list[int]:
    rng, slots = np.random.default_rng(seed), []
    for offer in range(count):
        slots.append(keeper.place())
        if slots[-1] >= 0:
            keeper.on_write(slots[-1], float(rng.exponential()), offer // 7)
    return slots


@EACH
def test_behind_the_reserved_slots_a_keeper_decides_as_it_does_alone(retention: str) -> None:
    keeper, alone = _keeper(retention), _keeper(retention, reserved=0)
    assert _offered(keeper, RESERVED) == list(range(RESERVED))
    for round_ in range(3):
        own = _offered(keeper, 20, round_)
        assert own == [slot if slot < 0 else slot + RESERVED for slot in _offered(alone, 20, round_)]
        assert keeper.n_rejected == alone.n_rejected
        slots, values = np.arange(CAPACITY), np.random.default_rng(round_).random(CAPACITY).astype(np.float32)
        for signal in FEEDBACK.values():
            keeper.on_feedback(signal, slots, values)
            alone.on_feedback(signal, slots[RESERVED:] - RESERVED, values[RESERVED:])
    assert not keeper.cyclic


@EACH
def test_a_restored_keeper_decides_the_same_and_refuses_other_numbers(retention: str) -> None:
    keeper, other = _keeper(retention), _keeper(retention, seed=9)
    _offered(keeper, 30)
    state = keeper.state()
    assert state["capacity"] == CAPACITY
    other.restore({name: np.array(values) for name, values in state.items()})
    assert _offered(keeper, 30) == _offered(other, 30)
    with pytest.raises(ValueError, match="5 reserved slots, expected 6"):
        _keeper(retention, reserved=6).restore(state)
    del state["reserved"]
    with pytest.raises(ValueError, match="0 reserved slots, expected 5"):
        _keeper(retention).restore(state)


def test_what_is_reserved_is_not_thinned() -> None:
    keeper = _keeper("FIFO", probability=0.2)
    assert _offered(keeper, RESERVED) == list(range(RESERVED))
    assert min(_offered(keeper, 20)) == -1
