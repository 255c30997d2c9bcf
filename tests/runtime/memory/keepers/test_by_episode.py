from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory.keepers.by_episode import ByEpisode, FarPolFrac, MaxKLDiv, MinError
from onrig.runtime.memory.keepers.cyclic import Fifo

KEEPERS = (FarPolFrac, MaxKLDiv, MinError)
RNG = np.random.default_rng(0)


def _offer_episode(keeper: ByEpisode | Fifo, episode: int, steps: int) -> list[int]:
    slots = []
    for _ in range(steps):
        slots.append(keeper.place())
        keeper.on_write(slots[-1], 0.0, episode)
    return slots


def _report_errors(keeper: ByEpisode, slots: list[int], values: list[float]) -> None:
    keeper.on_feedback(keeper.signal, np.array(slots, np.int64), np.array(values, np.float32))


@pytest.mark.parametrize("kind", KEEPERS)
def test_until_the_learner_reports_the_oldest_step_is_dropped_first_as_in_fifo(kind: type[ByEpisode]) -> None:
    keeper, fifo = kind(20, RNG), Fifo(20, RNG)
    for episode, steps in enumerate([5, 9, 1, 1, 13, 20, 47, 3, 3, 8, 30, 2]):
        assert _offer_episode(keeper, episode, steps) == _offer_episode(fifo, episode, steps)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (FarPolFrac, [[0, 1, 0, 0], [1, 1, 0], [1, 0, 0, 1]]),
        (MaxKLDiv, [[0.1, 0.1, 0.1, 0.9], [0.5, 0.5, 0.5], [1.6, 0, 0, 0]]),
        (MinError, [[1, 1, 1, 1], [0.5, 0.5, 0.5], [0.9, 0.1, 0.1, 0.6]]),
    ],
)
def test_the_episode_with_the_extreme_mean_is_dropped_first_from_its_first_step(
    kind: type[ByEpisode], values: list[list[float]]
) -> None:
    keeper = kind(11, RNG)
    slots_by_episode = [
        _offer_episode(keeper, episode, len(episode_values)) for episode, episode_values in enumerate(values)
    ]
    for slots, episode_values in zip(slots_by_episode, values, strict=True):
        _report_errors(keeper, slots, episode_values)
    assert _offer_episode(keeper, 3, 3) == slots_by_episode[1]


@pytest.mark.parametrize("kind", KEEPERS)
def test_an_episode_longer_than_the_memory_loses_its_own_first_steps(kind: type[ByEpisode]) -> None:
    keeper = kind(4, RNG)
    assert _offer_episode(keeper, 1, 11) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    _report_errors(keeper, [0, 1, 2, 3], [1.0] * 4)
    assert _offer_episode(keeper, 2, 4) == [3, 0, 1, 2]


def test_an_episode_with_unreplayed_steps_is_kept_before_a_replayed_one() -> None:
    keeper = MinError(7, RNG)
    old, new = _offer_episode(keeper, 1, 3), _offer_episode(keeper, 2, 3)
    _offer_episode(keeper, 3, 1)
    _report_errors(keeper, [*old[:2], *new], [1e-3, 1e-3, 9.0, 9.0, 9.0])
    assert _offer_episode(keeper, 3, 1) == new[:1]


@pytest.mark.parametrize("kind", [MaxKLDiv, MinError])
def test_feedback_of_a_diverged_learner_leaves_no_trace(kind: type[ByEpisode]) -> None:
    keeper, other = kind(40, RNG), kind(40, RNG)
    for episode in range(5):
        assert _offer_episode(keeper, episode, 8) == _offer_episode(other, episode, 8)
    values = np.random.default_rng(1).random(40).astype(np.float32) * np.float32(1e-3)
    for exponent in range(-30, 38, 4):
        _report_errors(keeper, list(range(40)), [10.0**exponent * (1 + i % 3) for i in range(40)])
    for either in (keeper, other):
        _report_errors(either, list(range(40)), values.tolist())
    assert all(np.array_equal(array, other.state()[name]) for name, array in keeper.state().items())
    assert _offer_episode(keeper, 9, 40) == _offer_episode(other, 9, 40)


def test_a_value_of_an_open_episode_changes_nothing_and_a_non_finite_one_is_refused() -> None:
    keeper = FarPolFrac(6, RNG)
    _offer_episode(keeper, 1, 3)
    _offer_episode(keeper, 2, 3)
    assert _offer_episode(keeper, 3, 1) == [0]
    _report_errors(keeper, [1, 2, 0], [1.0, 1.0, 1.0])
    assert _offer_episode(keeper, 3, 3) == [1, 2, 3]
    with pytest.raises(ValueError, match="a value is NaN"):
        _report_errors(keeper, [4, 5], [1.0, float("nan")])


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KEEPERS),
    capacity=st.integers(1, 25),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=14),
    seed=st.integers(0, 1000),
)
def test_any_sequence_drops_the_same_as_a_plain_list_of_episodes(
    kind: type[ByEpisode], capacity: int, lengths: list[int], seed: int
) -> None:
    keeper, rng = kind(capacity, RNG), np.random.default_rng(seed)
    episodes: list[list[int]] = []
    evicted_episode: list[int] = []
    value: dict[int, float] = {}

    def mean(slots: list[int]) -> float:
        if kind is MinError:
            return float(np.float32(np.mean([min(value[s] ** 2, 16384.0) for s in slots])))
        return -float(np.float32(np.mean([value[s] for s in slots])))

    for episode, length in enumerate(lengths):
        for step in range(length):
            slot = keeper.place()
            if sum(map(len, episodes)) + len(evicted_episode) < capacity:
                assert slot == sum(map(len, episodes))
            else:
                if not evicted_episode:
                    if len(episodes) > 1:  # the last one may still grow
                        evicted_episode = min(episodes[:-1], key=mean)
                        episodes.remove(evicted_episode)
                    else:
                        evicted_episode = [episodes[-1].pop(0)]
                assert slot == evicted_episode.pop(0)
            keeper.on_write(slot, 0.0, episode)
            if not step:
                episodes = [*filter(None, episodes), []]
            episodes[-1].append(slot)
            value[slot] = 1e9 if kind is MinError else 0.0
        stored_slots = [slot for episode in episodes for slot in episode]
        reported = rng.choice(stored_slots, min(len(stored_slots), 9), replace=False).tolist()
        values = (
            rng.integers(0, 2, len(reported)) if kind is FarPolFrac else rng.integers(0, 9, len(reported)) / 4.0
        ).tolist()
        _report_errors(keeper, reported, values)
        value |= dict(zip(reported, values, strict=True))
