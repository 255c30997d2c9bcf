"""Synthetic experiences in the memory: which experience replaces which."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from onrig.runtime.memory.layout import Flag, Layout
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.transitions import ResynthesisedBatch, Transitions
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from tests.runtime.samples import PENDULUM

SYNTHETIC_REWARD = 1e6


def config(strategy: str = "FIFO[Uniform]", capacity: int = 4, **overrides: float) -> RunConfig:
    selection = Selection(
        strategy=strategy, capacity=capacity, write_probability=overrides.get("write_probability", 1.0)
    )
    return msgspec.structs.replace(PENDULUM, selection=selection)


def make_transitions(n: int, first: int = 0) -> Transitions:
    """Transitions whose reward is their number."""
    number = np.arange(first, first + n, dtype=np.float32)
    pairs = np.stack([number, -number], axis=1)
    zeros = np.zeros(n, np.uint32)
    action, exploration = (number[:, None] / 8).astype(np.float32), (number / 100).astype(np.float32)
    return Transitions(pairs, action, number, pairs + 1, zeros, zeros + 7, exploration, zeros + 1, zeros, pairs[:, :0])


class ScriptedResynthesis:
    """Alters and renews the specified experiences; a synthetic one has the reward 1000 + its number."""

    def __init__(self, synthetic: npt.ArrayLike, may_overwrite: npt.ArrayLike) -> None:
        self._synthetic, self._may_overwrite = np.array(synthetic, bool), np.array(may_overwrite, bool)

    def __call__(self, measured: Transitions) -> ResynthesisedBatch:
        n = len(measured.reward)
        synthetic, self._synthetic = self._synthetic[:n], self._synthetic[n:]
        may_overwrite, self._may_overwrite = self._may_overwrite[:n], self._may_overwrite[n:]
        reward = np.where(synthetic, measured.reward + SYNTHETIC_REWARD, measured.reward).astype(np.float32)
        flags = np.where(synthetic, int(Flag.SYNTHETIC), measured.flags).astype(np.uint32)
        return ResynthesisedBatch(measured._replace(reward=reward, flags=flags), may_overwrite)


def rewards_in(storage: Storage) -> list[float]:
    rewards: list[float] = storage.reward[: storage.stored].tolist()
    return rewards


def test_a_renewed_slot_is_written_as_altered() -> None:
    memory = Memory(config(), ScriptedResynthesis([0, 1, 0, 1, 1, 0], [1] * 6))
    memory.insert(make_transitions(6))
    assert rewards_in(memory.storage) == [1e6 + 4, 5.0, 2.0, 1e6 + 3]
    assert (memory.storage.meta & 0xF).tolist() == [Flag.SYNTHETIC, 0, 0, Flag.SYNTHETIC]
    assert memory.offered == memory.storage.inserted == 6


def test_an_empty_slot_takes_the_offer_whether_it_renews_or_not() -> None:
    memory = Memory(config(), ScriptedResynthesis([0, 1, 1, 0], [0] * 4))
    memory.insert(make_transitions(4))
    assert rewards_in(memory.storage) == [0.0, 1e6 + 1, 1e6 + 2, 3.0]


def test_without_renewal_a_synthetic_experience_is_kept_and_a_measured_one_replaced_by_a_measured_one() -> None:
    memory = Memory(config(), ScriptedResynthesis([0, 1, 1, 0, 1, 1, 0, 0], [1] * 4 + [0] * 4))
    memory.insert(make_transitions(8))
    assert rewards_in(memory.storage) == [4.0, 1e6 + 1, 1e6 + 2, 7.0]


def test_a_kept_experience_is_unchanged_bit_for_bit_and_counts_as_written() -> None:
    memory = Memory(config(), ScriptedResynthesis([1] * 8, [1] * 4 + [0] * 4))
    memory.insert(make_transitions(4))
    storage = memory.storage
    before, number = storage.words.copy(), storage.inserted
    memory.insert(make_transitions(4, first=4))
    meta = storage.layout.meta
    assert (storage.words[:, :meta] == before[:, :meta]).all()
    assert (storage.meta & 0xF == before[:, meta] & 0xF).all()
    assert (storage.meta >> 16 == before[:, meta] >> 16).all()
    assert storage.generation(np.arange(4)).tolist() == [2] * 4
    assert storage.inserted == number + 4


@pytest.mark.parametrize("strategy", ["FIFO[Uniform]", "Resv[Uniform]", "TDE(1.0)[PER]", "Expl(1.0)[PER]"])
def test_every_strategy_continues_and_a_mirror_follows(strategy: str) -> None:
    rng = np.random.default_rng(2)
    memory = Memory(config(strategy, 50), ScriptedResynthesis(rng.random(600) < 0.3, rng.random(600) < 0.2))
    mirror = Storage(50, Layout(2, 1), cyclic=memory.keeper.cyclic)
    for k in range(20):
        memory.insert(make_transitions(30, first=30 * k))
        mirror.write_rows(memory.storage.rows(memory.storage.changed_since(mirror.inserted)))
        assert mirror.digest() == memory.storage.digest()
    assert memory.storage.stored == 50
    synthetic = (memory.storage.meta & Flag.SYNTHETIC) != 0
    assert (synthetic == (memory.storage.reward >= SYNTHETIC_REWARD)).all()


@pytest.mark.parametrize("refresh_probability", [0.1, 0.5, 1.0])
def test_the_fraction_holds_through_every_pass_and_lifetimes_are_geometric(refresh_probability: float) -> None:
    fraction, capacity, n_passes = 0.3, 2000, 6
    rng = np.random.default_rng(7)
    n = capacity * n_passes
    memory = Memory(
        config(capacity=capacity), ScriptedResynthesis(rng.random(n) < fraction, rng.random(n) < refresh_probability)
    )
    for k in range(n_passes):
        before = memory.storage.reward.copy()
        memory.insert(make_transitions(capacity, first=capacity * k))
        after = memory.storage.reward
        synthetic_fraction = np.mean(after >= SYNTHETIC_REWARD)
        assert abs(synthetic_fraction - fraction) < 4.5 * np.sqrt(fraction * (1 - fraction) / capacity)
        synthetic = before >= SYNTHETIC_REWARD
        if synthetic.any():
            kept_fraction = np.mean(after[synthetic] == before[synthetic])
            tolerance = 4.5 * np.sqrt(refresh_probability * (1 - refresh_probability) / synthetic.sum())
            assert abs(kept_fraction - (1 - refresh_probability)) <= tolerance


def test_an_offer_that_is_not_written_changes_nothing() -> None:
    memory = Memory(config("FULL[Uniform]"), ScriptedResynthesis([1] * 8, [1] * 8))
    memory.insert(make_transitions(8))
    assert rewards_in(memory.storage) == [1e6 + 0, 1e6 + 1, 1e6 + 2, 1e6 + 3]
    assert (memory.offered, memory.keeper.n_rejected) == (8, 4)


def test_experiences_are_dropped_with_the_write_probability() -> None:
    memory = Memory(config(capacity=8000, write_probability=0.25))
    memory.insert(make_transitions(4000))
    assert abs(memory.storage.inserted - 1000) < 4.5 * np.sqrt(4000 * 0.25 * 0.75)
    assert memory.keeper.n_rejected + memory.storage.inserted == memory.offered == 4000
    kept_rewards = rewards_in(memory.storage)
    assert kept_rewards == sorted(kept_rewards), "in order"
