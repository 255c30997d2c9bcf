from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import pytest

from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import Selection, Weighted
from onrig.runtime.memory.transitions import TransitionBuilder, Transitions
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from tests.runtime.samples import PENDULUM, records


def config(strategy: str, capacity: int | None = None) -> RunConfig:
    return msgspec.structs.replace(PENDULUM, selection=Selection(strategy=strategy, capacity=capacity))


def transitions(n: int) -> Transitions:
    return TransitionBuilder(PENDULUM.rig).add(records(n + 1))


def errors(memory: Memory, slots: list[int], generations: list[int], values: list[float]) -> None:
    memory.take_feedback(
        Signal.TD_ERROR, np.array(slots, np.int64), np.array(generations, np.uint32), np.array(values, np.float32)
    )


def test_offered_experiences_are_stored_column_by_column() -> None:
    memory, batch = Memory(config("FIFO[Uniform]", 8)), transitions(5)
    batch.flags[4] = Flag.TRUNCATED
    memory.insert(batch)
    storage = memory.storage
    assert (memory.offered, storage.stored, storage.inserted) == (5, 5, 5)
    np.testing.assert_array_equal(storage.observation[:5], batch.observation)
    np.testing.assert_array_equal(storage.action[:5], batch.action)
    np.testing.assert_array_equal(storage.next_observation[:5], batch.next_observation)
    np.testing.assert_array_equal(storage.reward[:5], batch.reward)
    np.testing.assert_array_equal(storage.exploration[:5], batch.exploration)
    assert (storage.meta[:5] >> 16).tolist() == [7] * 5
    assert (storage.meta[:5] & 0xF).tolist() == [0, 0, 0, 0, Flag.TRUNCATED]


def test_full_has_room_for_the_complete_run_and_fifo_for_its_capacity() -> None:
    assert Memory(msgspec.structs.replace(config("FULL[Uniform]"), episodes=3)).storage.capacity == 600
    assert Memory(config("FIFO[Uniform]")).storage.capacity == 10_000
    assert Memory(config("FIFO[Uniform]", 12)).storage.capacity == 12


@pytest.mark.parametrize(("fraction", "n_offered", "overflows"), [(1.0, 8, False), (1.0, 9, True), (0.01, 200, False)])
def test_a_memory_overflows_if_it_has_no_room_but_not_if_it_is_thinned(
    fraction: float, n_offered: int, overflows: bool
) -> None:
    selection = Selection("FULL[Uniform]", capacity=8, write_probability=fraction)
    memory = Memory(msgspec.structs.replace(PENDULUM, selection=selection))
    memory.insert(transitions(n_offered))
    assert memory.overflows == overflows
    assert (memory.keeper.n_rejected > 0) == (overflows or fraction < 1)


@pytest.mark.parametrize(
    ("intervened", "expected_rewards"), [("keep", [0, 1, 2, 3, 4]), (Weighted(0.5), [0, 1, 2, 3, 4]), ("drop", [1, 3])]
)
def test_experiences_with_a_shield_intervention_are_excluded_if_configured(
    intervened: Literal["keep", "drop"] | Weighted, expected_rewards: list[int]
) -> None:
    selection = Selection(strategy="FIFO[Uniform]", capacity=8, intervened=intervened)
    memory, batch = Memory(msgspec.structs.replace(PENDULUM, selection=selection)), transitions(5)
    batch.flags[[0, 2]] = Flag.INTERVENED
    batch.flags[4] = Flag.INTERVENED | Flag.TRUNCATED
    memory.insert(batch)
    assert (memory.offered, memory.storage.inserted) == (len(expected_rewards), len(expected_rewards))
    np.testing.assert_array_equal(
        memory.storage.observation[: len(expected_rewards)], batch.observation[expected_rewards]
    )


def test_experiences_rejected_by_a_keeper_are_offered_and_not_stored() -> None:
    memory = Memory(config("FULL[Uniform]", 3))
    memory.insert(transitions(5))
    assert (memory.offered, memory.storage.inserted, memory.keeper.n_rejected) == (5, 3, 2)
    assert memory.storage.reward.tolist() == transitions(5).reward[:3].tolist()


def test_td_errors_of_rewritten_experiences_are_counted_and_ignored() -> None:
    memory = Memory(config("TDE(1.0)[Uniform]", 4))
    memory.insert(transitions(4))
    feedback: list[tuple[list[int], list[float]]] = []
    memory.keeper.on_feedback = lambda signal, slots, values: feedback.append((slots.tolist(), values.tolist()))  # type: ignore[method-assign]
    errors(memory, [0, 1, 3], [1, 1, 1], [0.5, 1.5, 2.5])
    errors(memory, [0, 1, -1, 4, 2**40], [1, 2, 1, 1, 1], [0.25, 9.0, 9.0, 9.0, 9.0])
    assert feedback == [([0, 1, 3], [0.5, 1.5, 2.5]), ([0], [0.25])]
    assert memory.stale_errors == 4


def test_non_finite_td_errors_decide_nothing() -> None:
    memory = Memory(config("TDE(1.0)[Uniform]", 4))
    memory.insert(transitions(4))
    errors(memory, [0, 1, 2], [1, 1, 1], [np.nan, np.inf, 0.5])
    memory.insert(transitions(3))
    assert memory.storage.inserted == 7
    assert memory.stale_errors == 0


def test_errors_for_an_empty_memory_are_all_stale() -> None:
    memory = Memory(config("TDE(1.0)[Uniform]", 4))
    errors(memory, [0, 3], [0, 0], [1.0, 1.0])
    assert memory.stale_errors == 2


def test_the_same_offers_and_errors_leave_the_same_memory() -> None:
    def run(seed: int) -> bytes:
        memory = Memory(msgspec.structs.replace(config("TDE(1.0)[Uniform]", 16), seed=seed))
        for k in range(6):
            memory.insert(transitions(9))
            errors(memory, list(range(9)), memory.storage.generation(np.arange(9)).tolist(), [k + s for s in range(9)])
        return memory.storage.digest()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_thinned_memory_keeps_all_seed_experiences() -> None:
    thinned_selection = msgspec.structs.replace(config("FIFO[Uniform]", 64).selection, write_probability=0.1)
    memory, seeds = Memory(msgspec.structs.replace(PENDULUM, selection=thinned_selection)), transitions(40)
    memory.seed(seeds)
    assert (memory.offered, memory.storage.stored) == (0, 40)
    np.testing.assert_array_equal(memory.storage.observation[:40], seeds.observation)
    memory.insert(transitions(100))
    assert memory.storage.inserted < 80
    restored = Memory(msgspec.structs.replace(PENDULUM, selection=thinned_selection))
    restored.keeper.restore(memory.keeper.state())
    assert [memory.keeper.place() for _ in range(20)] == [restored.keeper.place() for _ in range(20)]
