from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.keepers.by_chance import ThinnedKeeper
from onrig.runtime.memory.keepers.keeper import REJECTED, Keeper, Signal
from onrig.runtime.memory.keepers.ranked import Exploration, RankDistribution, TdError
from onrig.runtime.memory.order.uniforms import Uniforms
from onrig.runtime.memory.strategy import build_keeper, parse_strategy
from tests.runtime.replay.chi_square import follows_distribution

RETENTIONS = ("FIFO", "FULL", "Resv", "TDE(1.0)", "Expl(1.2)", "MaxKLDiv", "MinError")


def _keeper(retention: str, capacity: int, seed: int = 0, write_probability: float = 1.0) -> Keeper:
    rng = np.random.default_rng(seed)
    return build_keeper(parse_strategy(f"{retention}[Uniform]"), capacity, rng, write_probability=write_probability)


def _offer(keeper: Keeper, exploration: float, episode: int = 1) -> int:
    slot = keeper.place()
    if slot != REJECTED:
        keeper.on_write(slot, exploration, episode)
    return slot


@pytest.mark.parametrize("retention", RETENTIONS)
def test_free_slots_are_taken_in_turn(retention: str) -> None:
    keeper = _keeper(retention, 9)
    assert [_offer(keeper, 0.5) for _ in range(9)] == list(range(9))
    assert keeper.n_rejected == 0


def test_fifo_overwrites_the_oldest() -> None:
    keeper = _keeper("FIFO", 3)
    assert [_offer(keeper, 0.0) for _ in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_full_refuses_and_counts_what_does_not_fit() -> None:
    keeper = _keeper("FULL", 3)
    assert [_offer(keeper, 0.0) for _ in range(5)] == [0, 1, 2, REJECTED, REJECTED]
    assert keeper.n_rejected == 2


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.2])
@pytest.mark.parametrize("capacity", [7, 1000, 10_000])
@pytest.mark.parametrize("retention", ["Expl", "TDE"])
def test_victims_follow_the_rank_distribution(retention: str, capacity: int, alpha: float) -> None:
    keeper = _keeper(f"{retention}({alpha})", capacity, seed=capacity)
    keys = np.random.default_rng(1).permutation(capacity).astype(np.float32) + 1
    for key in keys.tolist():
        _offer(keeper, key)
    keeper.on_feedback(Signal.TD_ERROR, np.arange(capacity), keys)
    counts = np.zeros(capacity, np.int64)
    for _ in range(10_000):
        # A new experience has the key of the one it replaces, so that ranks do not change.
        slot = keeper.place()
        key = keys[slot]
        counts[int(key) - 1] += 1
        keeper.on_write(slot, float(key), 1)
        if retention == "TDE":
            keeper.on_feedback(Signal.TD_ERROR, np.array([slot]), keys[slot : slot + 1])
    assert follows_distribution(counts, np.arange(1.0, capacity + 1) ** -alpha)


def test_ties_are_dropped_oldest_first_and_unseen_experiences_last() -> None:
    expl = Exploration(4, np.random.default_rng(0), 60.0)  # rank 1, practically always
    for _ in range(4):
        _offer(expl, 0.5)
    assert [_offer(expl, 0.5) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    tde = TdError(4, np.random.default_rng(0), 60.0)
    for _ in range(4):
        _offer(tde, 0.0)
    tde.on_feedback(Signal.TD_ERROR, np.array([2, 1]), np.array([3e38, 5.0], np.float32))
    assert [_offer(tde, 0.0) for _ in range(4)] == [1, 2, 0, 3]


def test_the_last_error_of_a_slot_counts() -> None:
    tde = TdError(3, np.random.default_rng(0), 60.0)
    for _ in range(3):
        _offer(tde, 0.0)
    tde.on_feedback(Signal.TD_ERROR, np.array([0, 1, 0, 2]), np.array([1.0, 2.0, 9.0, 3.0], np.float32))
    assert [tde.place() for _ in range(3)] == [1, 2, 0]


def test_a_non_finite_error_changes_nothing() -> None:
    tde = TdError(3, np.random.default_rng(0), 60.0)
    for _ in range(3):
        _offer(tde, 0.0)
    keys_before = tde.state()["keys"]
    with pytest.raises(ValueError, match="a value is NaN"):
        tde.on_feedback(Signal.TD_ERROR, np.array([1, 2]), np.array([1.0, np.nan], np.float32))
    assert np.array_equal(tde.state()["keys"], keys_before)


def test_a_non_finite_exploration_has_no_weight() -> None:
    expl = Exploration(3, np.random.default_rng(0), 60.0)
    for value in (0.1, float("nan"), 0.2):
        _offer(expl, value)
    assert expl.place() == 1


def test_every_offer_is_in_the_reservoir_with_probability_c_over_i() -> None:
    capacity, offers, replications = 7, 25, 4000
    n_kept = np.zeros(offers, np.int64)
    for seed in range(replications):
        keeper = _keeper("Resv", capacity, seed)
        memory = np.zeros(capacity, np.int64)
        for i in range(offers):
            slot = _offer(keeper, 0.0)
            if slot != REJECTED:
                memory[slot] = i
        n_kept[memory] += 1
    p = capacity / offers
    # Drawn without replacement: the variance of the counts is (1 - p) n / (n - 1) times that of independent ones.
    statistic = float(((n_kept - replications * p) ** 2).sum() / (replications * p * (1 - p))) * (offers - 1) / offers
    assert abs(statistic - (offers - 1)) < 4.5 * np.sqrt(2 * (offers - 1))


@pytest.mark.parametrize("capacity", [1000, 10_000])
def test_a_large_reservoir_accepts_c_over_i_into_uniform_slots(capacity: int) -> None:
    keeper = _keeper("Resv", capacity, seed=5)
    slots = [keeper.place() for _ in range(6 * capacity)]
    counts = np.bincount([s for s in slots[capacity:] if s != REJECTED], minlength=capacity)
    probabilities = capacity / np.arange(capacity + 1.0, 6 * capacity + 1)
    assert abs(counts.sum() - probabilities.sum()) < 4 * np.sqrt((probabilities * (1 - probabilities)).sum())
    assert follows_distribution(counts, np.full(capacity, 1 / capacity))
    assert keeper.n_rejected == 5 * capacity - counts.sum()


def test_thinning_drops_with_the_given_probability_and_counts() -> None:
    keeper = _keeper("FIFO", 100, write_probability=0.25)
    slots = [_offer(keeper, 0.0) for _ in range(10_000)]
    accepted = [s for s in slots if s != REJECTED]
    assert abs(len(accepted) - 2500) < 4 * np.sqrt(10_000 * 0.25 * 0.75)
    assert accepted == [i % 100 for i in range(len(accepted))]
    assert keeper.n_rejected == 10_000 - len(accepted)


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.1, float("nan")])
def test_a_write_probability_outside_its_range_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="write probability"):
        ThinnedKeeper(_keeper("FIFO", 3), probability, np.random.default_rng(0))


@pytest.mark.parametrize("write_probability", [1.0, 0.5])
@pytest.mark.parametrize("n_filled", [3, 800])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_restored_keeper_makes_the_same_next_thousand_decisions(
    retention: str, n_filled: int, write_probability: float
) -> None:
    original = _keeper(retention, 500, 1, write_probability)
    other = _keeper(retention, 500, 2, write_probability)
    rng = np.random.default_rng(3)

    def step(keeper: Keeper, i: int, key: float, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        slot = _offer(keeper, key, i // 9)
        for signal in Signal:
            value = float(key > 0.7) if signal is Signal.FAR else key
            keeper.on_feedback(signal, slots, np.full(len(slots), value, np.float32))
        return slot

    stored_slots: set[int] = set()
    for i in range(n_filled):
        stored_slots |= {
            step(original, i, rng.random(), rng.permutation(np.array(sorted(stored_slots), np.int64))[:4])
        } - {REJECTED}
    other.restore({name: array.copy() for name, array in original.state().items()})
    for i in range(n_filled, n_filled + 1000):
        key, slots = rng.random(), rng.permutation(np.array(sorted(stored_slots), np.int64))[:4]
        slot = step(original, i, key, slots)
        assert step(other, i, key, slots) == slot
        stored_slots |= {slot} - {REJECTED}
    assert original.n_rejected == other.n_rejected


def test_a_state_of_another_keeper_is_refused() -> None:
    for retention, other in (("FIFO", "FULL"), ("Resv", "FIFO"), ("TDE(1.0)", "Expl(1.0)"), ("TDE(1.0)", "TDE(1.1)")):
        with pytest.raises(ValueError, match="expected"):
            _keeper(retention, 5).restore(_keeper(other, 5).state())
    with pytest.raises(ValueError, match="5 slots"):
        _keeper("FIFO", 6).restore(_keeper("FIFO", 5).state())
    with pytest.raises(ValueError, match="write probability"):
        _keeper("FIFO", 5, write_probability=0.5).restore(_keeper("FIFO", 5).state())


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 12),
    kind=st.sampled_from(["TDE", "Expl"]),
    alpha=st.floats(0.0, 3.0),
    keys=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.0]), min_size=1, max_size=80),
    seed=st.integers(0, 100),
)
def test_any_stream_evicts_the_same_as_a_naive_list(
    capacity: int, kind: str, alpha: float, keys: list[float], seed: int
) -> None:
    keeper = _keeper(f"{kind}({alpha})", capacity, seed)
    # The same numbers drive a plain list, oldest first, sorted by key where it matters.
    rank_distribution, uniform = RankDistribution(capacity, alpha), Uniforms(np.random.default_rng(seed)).next
    memory: list[tuple[float, int]] = []
    index_rng = np.random.default_rng(seed + 1)
    for i, key in enumerate(keys):
        slot = _offer(keeper, key)
        if i < capacity:
            assert slot == i
        else:
            victim = sorted(memory, key=lambda entry: entry[0])[rank_distribution.draw(uniform) - 1]
            assert slot == victim[1]
            memory.remove(victim)
        memory.append((key if kind == "Expl" else np.inf, slot))
        index = int(index_rng.integers(len(memory)))
        keeper.on_feedback(Signal.TD_ERROR, np.array([memory[index][1]]), np.array([key / 2], np.float32))
        if kind == "TDE":
            memory[index] = (key / 2, memory[index][1])


@pytest.mark.parametrize("retention", RETENTIONS)
def test_keepers_stay_within_their_stated_overhead(retention: str) -> None:
    keeper = _keeper(retention, 20_000)
    rng = np.random.default_rng(0)
    for key in rng.random(40_000).tolist():
        _offer(keeper, key)
    assert keeper.nbytes <= keeper.bytes_per_slot * 20_000 + keeper.fixed_bytes


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_complete_episode_takes_the_same_slots_as_its_single_steps(retention: str) -> None:
    batched, single = (_keeper(retention, 17, seed=3) for _ in range(2))
    for episode, length in enumerate((5, 0, 30, 1, 17)):
        exploration = np.linspace(0.0, 1.0, length)
        expected = [_offer(single, magnitude, episode) for magnitude in exploration.tolist()]
        assert batched.place_all(exploration, episode).tolist() == expected
        assert batched.n_rejected == single.n_rejected
    assert _offer(batched, 0.5, 9) == _offer(single, 0.5, 9)
