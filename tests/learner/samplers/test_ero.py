"""ERO: the coins, the draws from the selected experiences, and the network's learning (Zha et al. 2019)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import EroSettings
from onrig.learner.samplers import SamplerContext
from onrig.learner.samplers.ero import Ero, InclusionNets
from onrig.learner.settings import LearnerSettings
from tests.learner.samplers.looks import random_view
from tests.learner.torch_nets import assert_state_close, mlp, trial_parameters

RNG = np.random.default_rng
CAPACITY, BATCH = 60, 8


def sampler(trials: int = 1, lr: float = 1e-2) -> Ero:
    view = random_view(RNG(7).standard_normal((trials, CAPACITY, 1)))
    options = LearnerSettings(ero=EroSettings(hidden=(8,), lr=lr, sample=16))
    return Ero(SamplerContext(CAPACITY, BATCH, 10, 1000, 400, options, view), [RNG(seed) for seed in range(trials)])


def draw_and_record(ero: Ero, updates: int, seed: int = 0) -> list[list[int]]:
    slots_by_update = []
    for update in range(updates):
        slots = ero.draw(1).slots
        ero.on_update(slots, Signals(RNG(seed + update).standard_normal(slots.shape)))
        slots_by_update.append(slots[0, 0].tolist())
    return slots_by_update


def members(ero: Ero, trial: int = 0) -> NDArray[np.bool_]:
    return np.asarray(ero.state()["members"][trial], np.bool_)


def test_half_of_the_new_experiences_are_selected_and_minibatches_are_uniform_draws_from_them() -> None:
    ero = sampler()
    ero.on_write([np.arange(CAPACITY)])
    ero.draw(1)
    included_slots = np.flatnonzero(members(ero))
    assert 18 <= len(included_slots) <= 42
    draws = [ero.draw(1).slots[0, 0] for _ in range(2000)]
    assert all(len(set(slots.tolist())) == BATCH for slots in draws)
    counts = np.bincount(np.concatenate(draws), minlength=CAPACITY)
    assert set(np.flatnonzero(counts).tolist()) == set(included_slots.tolist())
    expected = 2000 * BATCH / len(included_slots)
    assert np.abs(counts[included_slots] - expected).max() < 5 * np.sqrt(expected)


def test_all_experiences_are_drawn_while_fewer_than_a_minibatch_are_selected() -> None:
    ero = sampler()
    ero.on_write([np.arange(20)])
    ero.draw(1)
    ero._is_included[0].load(np.r_[np.ones(BATCH - 1), np.zeros(CAPACITY - BATCH + 1)])
    assert {slot for slots in (ero.draw(1).slots[0, 0].tolist() for _ in range(100)) for slot in slots} == {*range(20)}


def test_coins_are_tossed_again_only_for_replayed_or_rewritten_experiences() -> None:
    ero = sampler()
    ero.on_write([np.arange(CAPACITY)])
    ero.draw(1)
    tossed_slots: set[int] = set()
    for update in range(30):
        members_before = members(ero)
        (slots,) = draw_and_record(ero, 1, update)
        changed_slots = np.flatnonzero(members(ero) != members_before).tolist()
        assert set(changed_slots) <= set(slots)
        tossed_slots |= set(changed_slots)
    assert tossed_slots


def test_the_grouping_of_writes_makes_no_difference() -> None:
    in_one_batch, in_batches = sampler(), sampler()
    in_one_batch.on_write([np.arange(30)])
    for slots in (np.arange(20), np.array([4, 7]), np.arange(18, 30)):
        in_batches.on_write([slots])
    assert draw_and_record(in_one_batch, 5) == draw_and_record(in_batches, 5)
    assert in_one_batch.draw(1).slots.tolist() == in_batches.draw(1).slots.tolist()


def test_a_gain_makes_the_current_choice_more_likely() -> None:
    ero = sampler()
    ero.on_write([np.arange(CAPACITY)])
    draw_and_record(ero, 3)
    slots = np.arange(CAPACITY)[None]
    is_included = members(ero)[None]

    def likelihood() -> float:
        p = ero._nets.probabilities(ero._inputs(slots))[..., 0]
        return float(np.where(is_included, np.log(p), np.log(1.0 - p)).sum())

    for total, sign in ((0.0, 0), (3.0, 1), (3.0, 0), (1.0, -1)):
        likelihood_before = likelihood()
        ero.on_episode_end(np.array([total]), np.ones(1, np.bool_))
        assert np.sign(likelihood() - likelihood_before) == sign


def test_only_trials_whose_episode_has_ended_take_a_step() -> None:
    ero = sampler(2)
    ero.on_write([np.arange(CAPACITY)] * 2)
    ero.draw(1)
    ero.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
    state_before = ero.state()
    ero.on_episode_end(np.ones(2), np.array([False, True]))
    state_after = ero.state()
    names = [name for name in state_before if name.startswith("nets/")]
    assert [any((state_before[name][s] != state_after[name][s]).any() for name in names) for s in range(2)] == [
        False,
        True,
    ]
    assert state_after["nets/adam/net"][:, 0, -1].tolist() == [0.0, 1.0]


def test_steps_equal_torchs_and_those_of_each_trial_alone() -> None:
    settings = EroSettings(hidden=(9, 5), sample=11)

    def training_fields(k: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        rng = RNG(k)
        return rng.standard_normal((3, 11, 3)), rng.random((3, 11)) < 0.5, rng.standard_normal((3, 11))

    nets, single_net = (
        InclusionNets(settings, [RNG(s) for s in seeds], dtype=np.float64) for seeds in ((0, 1, 2), (1,))
    )
    expected = [trial_parameters(nets.state(), trial, ("net",)) for trial in range(3)]
    for k in range(20):
        nets.step(*training_fields(k), np.flatnonzero(np.arange(3) != k % 4))
        if k % 4 != 1:
            features, is_in_minibatch, weight = training_fields(k)
            single_net.step(features[1:2], is_in_minibatch[1:2], weight[1:2], np.array([0]))
    assert np.array_equal(single_net.rows[0], nets.rows[1])
    for trial, parameters in enumerate(expected):
        adam = torch.optim.Adam(parameters.values(), lr=settings.lr)
        for k in range(20):
            if k % 4 == trial:
                continue
            x, is_included, weights = (torch.tensor(field[trial]) for field in training_fields(k))
            logits = mlp(parameters, "net", x, torch.relu)[:, 0]
            adam.zero_grad()
            likelihood = torch.nn.functional.logsigmoid(torch.where(is_included, logits, -logits))
            (-(weights * likelihood).sum()).backward()  # type: ignore[no-untyped-call]
            adam.step()
        assert_state_close(nets.state(), trial, parameters)


def test_a_restored_sampler_continues_like_the_original() -> None:
    def continue_drawing(ero: Ero) -> list[list[int]]:
        ero.on_episode_end(np.ones(1), np.ones(1, np.bool_))
        ero.on_write([np.arange(5)])
        return draw_and_record(ero, 5, seed=20)

    original, restored = sampler(), sampler()
    original.on_write([np.arange(CAPACITY)])
    original.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
    draw_and_record(original, 4)
    state = original.state()
    expected = continue_drawing(original)
    restored.restore(state)
    assert continue_drawing(restored) == expected


def test_too_few_experiences_and_more_than_one_update_ahead_are_refused() -> None:
    ero = sampler()
    ero.on_write([np.arange(BATCH - 1)])
    with pytest.raises(ValueError, match="from the 7 stored"):
        ero.draw(1)
    with pytest.raises(ValueError, match="expected 1 minibatch per draw"):
        ero.draw(2)
