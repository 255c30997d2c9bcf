"""NERS: the score network and its gradient, and what is drawn, scored and learned (Oh et al. 2021)."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.samplers import SamplerContext, sub_state
from onrig.learner.samplers.ners import Ners, ScoreNets
from onrig.learner.settings import LearnerSettings
from onrig.learner.tape.numpy_executor import NumpyExecutor
from tests.learner.samplers.looks import random_view
from tests.learner.torch_nets import Tensors, assert_state_close, mlp, trial_parameters

RNG = np.random.default_rng
SMALL_SETTINGS = NersSettings(hidden=(12, 8, 6), score=(8, 5), sample=24)
CAPACITY, BATCH = 40, 8


def nets(settings: NersSettings = SMALL_SETTINGS, trials: int = 1, width: int = 9) -> ScoreNets:
    return ScoreNets(settings, width, [RNG(seed) for seed in range(trials)], dtype=np.float64)


def sampler(trials: int = 1, settings: NersSettings = SMALL_SETTINGS, *, updates: int = 1000) -> Ners:
    actions = RNG(7).standard_normal((trials, CAPACITY, 1))
    options = LearnerSettings(ners=settings)
    context = SamplerContext(CAPACITY, BATCH, 10, updates, 400, options, random_view(actions, observations=2))
    return Ners(context, [RNG(seed) for seed in range(trials)])


def signals(trials: int, seed: int) -> Signals:
    td, target = RNG(seed).standard_normal((2, 1, trials, BATCH))
    return Signals(td, target=target)


def draw_and_learn(ners: Ners, trials: int, updates: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Slots of some updates, (S, B) each."""
    slots_by_update = []
    for update in range(updates):
        slots = ners.draw(1).slots
        ners.on_update(slots, signals(trials, seed + update))
        slots_by_update.append(slots[0])
    return slots_by_update


def priorities(ners: Ners, trial: int = 0) -> NDArray[np.float64]:
    return ners.state()[f"law{trial}/priorities"].astype(np.float64)


def parameters(ners: Ners) -> NDArray[np.float64]:
    state = ners.state()
    names = [name for name in state if name.startswith("nets/")]
    return np.concatenate([state[name].reshape(len(state[name]), -1).astype(np.float64) for name in names], axis=1)


@pytest.mark.parametrize(("n", "m", "expected_parameters"), [(3, 1, 704_769), (11, 3, 713_985), (17, 6, 721_665)])
def test_the_networks_have_the_sizes_of_the_paper(n: int, m: int, expected_parameters: int) -> None:
    assert ScoreNets(NersSettings(), 2 * n + m + 4, [RNG(0)]).n_parameters == expected_parameters


def test_scores_are_equivariant_and_depend_on_the_rest_of_the_minibatch() -> None:
    f, x = nets(), RNG(1).standard_normal((1, 10, 9))
    scores = f.scores(x)
    assert ((scores > 0) & (scores < 1)).all()
    order = RNG(2).permutation(10)
    np.testing.assert_allclose(f.scores(x[:, order]), scores[:, order], atol=1e-6)
    other = x.copy()
    other[:, 0] += 1.0
    assert (f.scores(other)[:, 1:] != scores[:, 1:]).all()


def test_without_the_global_network_an_experience_is_scored_in_isolation() -> None:
    f, x = nets(NersSettings(hidden=(12, 6), score=(8,), ablation="local")), RNG(1).standard_normal((1, 10, 9))
    other = x.copy()
    other[:, 0] += 1.0
    np.testing.assert_array_equal(f.scores(other)[:, 1:], f.scores(x)[:, 1:])
    assert sampler(settings=NersSettings(hidden=(4,), score=(4,), ablation="few"))._nets._vector_width == 3


def test_the_gradient_equals_that_of_reinforce() -> None:
    f = nets(msgspec.structs.replace(SMALL_SETTINGS, sample=4, lr=1e-12))
    x, gain, is_valid = RNG(3).standard_normal((1, 4, 9)), np.array([2.5]), np.array([[True, True, True, False]])
    f.step(x, is_valid, gain, np.array([0]))  # by a tiny number: Adam's first moment is a tenth of the gradient
    for name, field in f.layout.fields.items():
        if name.startswith("adam"):
            continue
        group = f.layout.fields[f"adam/{name.partition('/')[0]}"]
        start = f.layout.fields[f"{name.partition('/')[0]}/weight0"].offset
        for index in RNG(4).integers(field.offset, field.slice.stop, 12).tolist():
            gradient, losses = 10.0 * float(f.rows[0, group.offset + index - start]), []
            for step in (1e-5, -2e-5):
                f.rows[0, index] += step
                losses.append(-2.5 * np.log(f.scores(x[:, :3]) + 1e-6).sum())
            f.rows[0, index] += 1e-5
            assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(gradient, rel=1e-4, abs=1e-7)


def _steps(f: ScoreNets, trials: int, steps: int = 20) -> None:
    """Step all trials except one each time, on minibatches of different sizes."""
    for k in range(steps):
        f.step(*_training_fields(f, trials, k), np.flatnonzero(np.arange(trials) != k % (trials + 1)))


def _training_fields(
    f: ScoreNets, trials: int, k: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    rngs = [RNG([k, trial]) for trial in range(trials)]
    x = np.stack([rng.standard_normal((SMALL_SETTINGS.sample, 9)) for rng in rngs])
    is_valid = np.stack([np.arange(SMALL_SETTINGS.sample) < rng.integers(1, SMALL_SETTINGS.sample + 1) for rng in rngs])
    return x, is_valid, np.array([rng.standard_normal() for rng in rngs])


def _torch_scores(parameters: Tensors, x: torch.Tensor, *, uses_global: bool) -> torch.Tensor:
    global_mean = mlp(parameters, "global", x, torch.relu).mean(dim=0, keepdim=True).expand(len(x), -1)
    joined = torch.cat((mlp(parameters, "local", x, torch.relu), global_mean * uses_global), dim=1)
    return torch.sigmoid(mlp(parameters, "score", joined, torch.relu)[:, 0])


@pytest.mark.parametrize("ablation", ["none", "local"])
def test_steps_equal_torchs(ablation: Literal["none", "local"]) -> None:
    f = nets(msgspec.structs.replace(SMALL_SETTINGS, ablation=ablation), trials=3)
    expected = [trial_parameters(f.state(), trial, ("local", "global", "score")) for trial in range(3)]
    _steps(f, 3)
    for trial, parameters in enumerate(expected):
        adam = torch.optim.Adam(parameters.values(), lr=SMALL_SETTINGS.lr)
        for k in range(20):
            if k % 4 == trial:
                continue
            x, is_valid, gain = (torch.tensor(field[trial]) for field in _training_fields(f, 3, k))
            adam.zero_grad()
            (
                -gain * (_torch_scores(parameters, x[is_valid], uses_global=ablation == "none") + 1e-6).log().sum()
            ).backward()  # type: ignore[no-untyped-call]
            adam.step()
        assert_state_close(f.state(), trial, parameters)


@pytest.mark.parametrize("S", [1, 2, 7, 16])
def test_a_trial_is_bit_identical_among_others_and_alone(S: int) -> None:
    joint, x = ScoreNets(SMALL_SETTINGS, 9, [RNG(seed) for seed in range(S)]), RNG(1).standard_normal((S, 10, 9))
    for k in range(5):
        joint.step(*_training_fields(joint, S, k), np.arange(S))
    for trial in {0, S // 2, S - 1}:
        single = ScoreNets(SMALL_SETTINGS, 9, [RNG(trial)])
        for k in range(5):
            features, is_valid, gain = _training_fields(joint, S, k)
            own_slice = slice(trial, trial + 1)
            single.step(features[own_slice], is_valid[own_slice], gain[own_slice], np.array([0]))
        assert np.array_equal(single.rows[0], joint.rows[trial])
        assert np.array_equal(single.scores(x[trial : trial + 1])[0], joint.scores(x)[trial])


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default_nets = ScoreNets(SMALL_SETTINGS, 9, [RNG(0)])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    numpy_nets = ScoreNets(SMALL_SETTINGS, 9, [RNG(0)])
    for f in (default_nets, numpy_nets):
        for k in range(20):
            f.step(*_training_fields(f, 1, k), np.array([0]))
    x = RNG(1).standard_normal((1, 10, 9))
    np.testing.assert_allclose(default_nets.scores(x), numpy_nets.scores(x), rtol=1e-4)


@pytest.mark.parametrize("gain", [-3.0, 3.0])
def test_a_gain_raises_the_scores_of_replayed_experiences_and_a_loss_lowers_them(gain: float) -> None:
    f, x = nets(), RNG(5).standard_normal((1, SMALL_SETTINGS.sample, 9))
    score_before = np.log(f.scores(x)).mean()
    for _ in range(3):
        f.step(x, np.ones(x.shape[:2], np.bool_), np.array([gain]), np.array([0]))
    assert np.sign(np.log(f.scores(x)).mean() - score_before) == np.sign(gain)


def test_draws_follow_the_distribution_and_weights_correct_for_it() -> None:
    ners = sampler(updates=200)
    ners.on_write([np.arange(CAPACITY)])
    assert priorities(ners).tolist() == [1.0] * CAPACITY
    betas = []
    for k in range(200):
        priorities_before = priorities(ners)
        draw = ners.draw(1)
        assert draw.weights is not None
        probabilities = priorities_before / priorities_before.sum()
        relative_probability = CAPACITY * probabilities[draw.slots[0, 0]]
        policy_distance = np.abs(np.log(relative_probability)) > 1e-3
        if policy_distance.any():
            score = -np.log(draw.weights[0, 0]) / np.log(relative_probability)
            betas.append((k, float(np.median(score[policy_distance]))))
        scores = np.exp(RNG(k).standard_normal(CAPACITY))
        ners._samplers[0].prioritise(np.arange(CAPACITY), scores / scores.max())
        if k == 199:  # at beta = 1 the expected weight is 1
            assert (probabilities * (CAPACITY * probabilities) ** -1.0).sum() == pytest.approx(1.0, abs=1e-12)
            np.testing.assert_allclose(draw.weights[0, 0], 1.0 / relative_probability, rtol=1e-5)
    steps, betas_found = zip(*betas, strict=True)
    np.testing.assert_allclose(betas_found, 0.4 + 0.6 * np.array(steps) / 199, atol=2e-3)


def test_only_replayed_experiences_are_scored_and_a_rewritten_slot_starts_over() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    (slots_drawn,) = draw_and_learn(ners, 1, 1)
    other_slots = np.setdiff1d(np.arange(CAPACITY), slots_drawn[0])
    priorities_after = priorities(ners)
    assert (priorities_after[other_slots] == 1.0).all()
    assert (priorities_after[slots_drawn[0]] < 1.0).all()
    # The TD errors and targets of the current update are among the features.
    scores = ners._nets.scores(ners._features_of(slots_drawn))[0]
    np.testing.assert_allclose(priorities_after[slots_drawn[0]], scores**SMALL_SETTINGS.alpha, rtol=1e-6)
    features = ners._features
    assert set(np.flatnonzero(features.td[0] != 1.0).tolist()) == set(slots_drawn[0].tolist())
    ners.on_write([slots_drawn[0][:2]])
    assert (priorities(ners)[slots_drawn[0][:2]] == 1.0).all()
    assert features.td[0, slots_drawn[0][0]] == features.target[0, slots_drawn[0][0]] == 1.0
    assert not ners.state()["replayed"][0, slots_drawn[0][:2]].any()


def test_the_networks_learn_at_the_end_of_an_episode_from_the_gain_over_the_previous_one() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    start = parameters(ners)

    def close_episode(total: float) -> bool:
        nets_before = sub_state(ners.state(), "nets/")
        ners.on_episode_end(np.array([total]), np.ones(1, np.bool_))
        nets_after = sub_state(ners.state(), "nets/")
        return any(not np.array_equal(nets_after[name], value) for name, value in nets_before.items())

    draw_and_learn(ners, 1, 3)
    assert not close_episode(5.0)  # there was no previous episode
    assert not close_episode(7.0)  # nothing has been replayed since
    draw_and_learn(ners, 1, 3)
    assert not close_episode(7.0)  # no gain, no step
    draw_and_learn(ners, 1, 3)
    assert not close_episode(np.nan)
    draw_and_learn(ners, 1, 3)
    assert not close_episode(3.0)  # the previous one is unknown
    assert np.array_equal(parameters(ners), start)
    draw_and_learn(ners, 1, 3)
    assert close_episode(4.0)
    draw_and_learn(ners, 1, 3)
    assert not close_episode(4.0)  # by now there are moments that would continue to act
    draw_and_learn(ners, 1, 3)
    ners.on_write([np.arange(CAPACITY)])
    assert not close_episode(9.0)  # everything replayed has been overwritten


@pytest.mark.parametrize("gain", [-2.0, 2.0])
def test_replayed_experiences_score_higher_after_a_better_episode_and_lower_after_a_worse_one(gain: float) -> None:
    ners, single = sampler(), nets()
    ners.on_write([np.arange(CAPACITY)])
    ners.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
    slots = np.unique(draw_and_learn(ners, 1, 2))[None]
    assert BATCH < slots.size < SMALL_SETTINGS.sample < CAPACITY
    features = ners._features_of(slots)
    single.restore(sub_state(ners.state(), "nets/"))
    score_before = np.log(ners._nets.scores(features)).mean()
    ners.on_episode_end(np.array([gain]), np.ones(1, np.bool_))
    assert np.sign(np.log(ners._nets.scores(features)).mean() - score_before) == np.sign(gain)
    padded_features = np.zeros((1, SMALL_SETTINGS.sample, features.shape[2]), features.dtype)
    padded_features[:, : slots.size] = features
    single.step(padded_features, np.arange(SMALL_SETTINGS.sample)[None] < slots.size, np.array([gain]), np.array([0]))
    for name in ("adam/local", "adam/global", "adam/score"):
        actual, expected = (
            np.asarray(state[name], np.float64) for state in (sub_state(ners.state(), "nets/"), single.state())
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_only_trials_whose_episode_has_ended_take_a_step() -> None:
    ners, single = sampler(3), sampler(3)
    for either in (ners, single):
        either.on_write([np.arange(CAPACITY)] * 3)
        either.on_episode_end(np.zeros(3), np.ones(3, np.bool_))
        draw_and_learn(either, 3, 2)
    parameters_before = parameters(ners)
    ners.on_episode_end(np.array([1.0, 2.0, 3.0]), np.array([False, True, False]))
    single.on_episode_end(np.array([1.0, 2.0, 3.0]), np.ones(3, np.bool_))
    has_changed = (parameters(ners) != parameters_before).any(axis=1)
    assert has_changed.tolist() == [False, True, False]
    assert np.array_equal(parameters(ners)[1], parameters(single)[1])
    assert ners.state()["nets/adam/score"][:, 0, -1].tolist() == [0.0, 1.0, 0.0]


def test_a_diverged_update_leaves_the_scores_unchanged() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    slots = ners.draw(1).slots
    ners.on_update(slots, Signals(np.full((1, 1, BATCH), np.nan), target=np.full((1, 1, BATCH), np.inf)))
    assert np.isfinite(priorities(ners)).all()
    assert (ners._features.td == 1.0).all()


def test_a_restored_sampler_continues_like_the_original() -> None:
    def continue_drawing(ners: Ners) -> list[list[int]]:
        slots = draw_and_learn(ners, 1, 3, seed=9)
        ners.on_episode_end(np.array([8.0]), np.ones(1, np.bool_))
        ners.on_write([np.arange(5)])
        return [update_slots[0].tolist() for update_slots in slots + draw_and_learn(ners, 1, 5, seed=20)]

    original, restored = sampler(), sampler()
    original.on_write([np.arange(CAPACITY)])
    original.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
    draw_and_learn(original, 1, 4)
    original.on_episode_end(np.ones(1), np.ones(1, np.bool_))
    draw_and_learn(original, 1, 2)
    state = original.state()
    expected = continue_drawing(original)
    restored.restore(state)
    assert continue_drawing(restored) == expected
    assert np.array_equal(parameters(restored), parameters(original))
    with pytest.raises(ValueError, match="state of 1 trials, expected 2"):
        sampler(2).restore(state)


def test_the_grouping_of_writes_makes_no_difference() -> None:
    """The learner of a rig receives the writes of an episode at irregular times, each slot once per batch."""
    in_one_batch, in_batches = sampler(), sampler()
    for ners in (in_one_batch, in_batches):
        ners.on_write([np.arange(20)])
        ners.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
        draw_and_learn(ners, 1, 3)
    in_one_batch.on_write([np.r_[np.arange(20, 30), 4, 5]])
    for slots_written in (np.arange(20, 25), np.array([4]), np.r_[np.arange(25, 30), 4], np.array([5])):
        in_batches.on_write([slots_written])
    score = []
    for ners in (in_one_batch, in_batches):
        ners.on_episode_end(np.ones(1), np.ones(1, np.bool_))
        score.append([slots[0].tolist() for slots in draw_and_learn(ners, 1, 5, seed=30)])
    assert score[0] == score[1]
    assert np.array_equal(parameters(in_one_batch), parameters(in_batches))


def test_missing_requirements_are_reported() -> None:
    with pytest.raises(ValueError, match="NERS needs access to experiences and a policy"):
        Ners(SamplerContext(CAPACITY, BATCH, 10), [RNG(0)])
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    slots = ners.draw(1).slots
    with pytest.raises(ValueError, match="needs targets, which the algorithm does not provide"):
        ners.on_update(slots, Signals(np.ones((1, 1, BATCH))))
    with pytest.raises(ValueError, match="expected 1 minibatch per draw"):
        ners.draw(2)
