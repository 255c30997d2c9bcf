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
from tests.learner.samplers.looks import looking_at
from tests.learner.torch_nets import Tensors, assert_state_close, leaves, mlp

RNG = np.random.default_rng
SMALL = NersSettings(hidden=(12, 8, 6), score=(8, 5), sample=24)
CAPACITY, BATCH = 40, 8


def nets(settings: NersSettings = SMALL, trials: int = 1, width: int = 9) -> ScoreNets:
    return ScoreNets(settings, width, [RNG(seed) for seed in range(trials)], dtype=np.float64)


def sampler(trials: int = 1, settings: NersSettings = SMALL, *, updates: int = 1000) -> Ners:
    actions = RNG(7).standard_normal((trials, CAPACITY, 1))
    options = LearnerSettings(ners=settings)
    context = SamplerContext(CAPACITY, BATCH, 10, updates, 400, options, looking_at(actions, observations=2))
    return Ners(context, [RNG(seed) for seed in range(trials)])


def signals(trials: int, seed: int) -> Signals:
    td, target = RNG(seed).standard_normal((2, 1, trials, BATCH))
    return Signals(td, target=target)


def replayed(ners: Ners, trials: int, updates: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Slots of some updates, (S, B) each."""
    drawn = []
    for update in range(updates):
        slots = ners.draw(1).slots
        ners.on_update(slots, signals(trials, seed + update))
        drawn.append(slots[0])
    return drawn


def priorities(ners: Ners, trial: int = 0) -> NDArray[np.float64]:
    return ners.state()[f"law{trial}/priorities"].astype(np.float64)


def parameters(ners: Ners) -> NDArray[np.float64]:
    state = ners.state()
    names = [name for name in state if name.startswith("nets/")]
    return np.concatenate([state[name].reshape(len(state[name]), -1).astype(np.float64) for name in names], axis=1)


@pytest.mark.parametrize(("n", "m", "known"), [(3, 1, 704_769), (11, 3, 713_985), (17, 6, 721_665)])
def test_the_networks_have_the_paper_s_sizes(n: int, m: int, known: int) -> None:
    assert ScoreNets(NersSettings(), 2 * n + m + 4, [RNG(0)]).n_parameters == known


def test_scores_are_equivariant_and_depend_on_the_rest_of_the_minibatch() -> None:
    f, x = nets(), RNG(1).standard_normal((1, 10, 9))
    scores = f.scores(x)
    assert ((scores > 0) & (scores < 1)).all()
    order = RNG(2).permutation(10)
    np.testing.assert_allclose(f.scores(x[:, order]), scores[:, order], atol=1e-6)
    other = x.copy()
    other[:, 0] += 1.0
    assert (f.scores(other)[:, 1:] != scores[:, 1:]).all()


def test_without_the_global_network_an_experience_is_scored_alone() -> None:
    f, x = nets(NersSettings(hidden=(12, 6), score=(8,), ablation="local")), RNG(1).standard_normal((1, 10, 9))
    other = x.copy()
    other[:, 0] += 1.0
    np.testing.assert_array_equal(f.scores(other)[:, 1:], f.scores(x)[:, 1:])
    assert sampler(settings=NersSettings(hidden=(4,), score=(4,), ablation="few"))._nets._vector_width == 3


def test_the_gradient_is_that_of_reinforce() -> None:
    f = nets(msgspec.structs.replace(SMALL, sample=4, lr=1e-12))
    x, gain, valid = RNG(3).standard_normal((1, 4, 9)), np.array([2.5]), np.array([[True, True, True, False]])
    f.step(x, valid, gain, np.array([0]))  # by next to nothing: Adam's first moment is a tenth of the gradient
    for name, field in f.layout.fields.items():
        if name.startswith("adam"):
            continue
        group = f.layout.fields[f"adam/{name.partition('/')[0]}"]
        start = f.layout.fields[f"{name.partition('/')[0]}/weight0"].offset
        for at in RNG(4).integers(field.offset, field.slice.stop, 12).tolist():
            gradient, ends = 10.0 * float(f.rows[0, group.offset + at - start]), []
            for step in (1e-5, -2e-5):
                f.rows[0, at] += step
                ends.append(-2.5 * np.log(f.scores(x[:, :3]) + 1e-6).sum())
            f.rows[0, at] += 1e-5
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(gradient, rel=1e-4, abs=1e-7)


def _steps(f: ScoreNets, trials: int, steps: int = 20) -> None:
    """Step all trials but one each time, on minibatches of different sizes."""
    for k in range(steps):
        f.step(*_given(f, trials, k), np.flatnonzero(np.arange(trials) != k % (trials + 1)))


def _given(f: ScoreNets, trials: int, k: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    each = [RNG([k, trial]) for trial in range(trials)]
    x = np.stack([rng.standard_normal((SMALL.sample, 9)) for rng in each])
    valid = np.stack([np.arange(SMALL.sample) < rng.integers(1, SMALL.sample + 1) for rng in each])
    return x, valid, np.array([rng.standard_normal() for rng in each])


def _scores(parameters: Tensors, x: torch.Tensor, *, sees_others: bool) -> torch.Tensor:
    others = mlp(parameters, "global", x, torch.relu).mean(dim=0, keepdim=True).expand(len(x), -1)
    joined = torch.cat((mlp(parameters, "local", x, torch.relu), others * sees_others), dim=1)
    return torch.sigmoid(mlp(parameters, "score", joined, torch.relu)[:, 0])


@pytest.mark.parametrize("ablation", ["none", "local"])
def test_steps_are_those_of_torch(ablation: Literal["none", "local"]) -> None:
    f = nets(msgspec.structs.replace(SMALL, ablation=ablation), trials=3)
    wanted = [leaves(f.state(), trial, ("local", "global", "score")) for trial in range(3)]
    _steps(f, 3)
    for trial, parameters in enumerate(wanted):
        adam = torch.optim.Adam(parameters.values(), lr=SMALL.lr)
        for k in range(20):
            if k % 4 == trial:
                continue
            x, valid, gain = (torch.tensor(field[trial]) for field in _given(f, 3, k))
            adam.zero_grad()
            (-gain * (_scores(parameters, x[valid], sees_others=ablation == "none") + 1e-6).log().sum()).backward()  # type: ignore[no-untyped-call]
            adam.step()
        assert_state_close(f.state(), trial, parameters)


@pytest.mark.parametrize("S", [1, 2, 7, 16])
def test_a_trial_among_others_gives_bit_for_bit_what_it_gives_alone(S: int) -> None:
    together, x = ScoreNets(SMALL, 9, [RNG(seed) for seed in range(S)]), RNG(1).standard_normal((S, 10, 9))
    for k in range(5):
        together.step(*_given(together, S, k), np.arange(S))
    for trial in {0, S // 2, S - 1}:
        alone = ScoreNets(SMALL, 9, [RNG(trial)])
        for k in range(5):
            features, valid, gain = _given(together, S, k)
            own = slice(trial, trial + 1)
            alone.step(features[own], valid[own], gain[own], np.array([0]))
        assert np.array_equal(alone.rows[0], together.rows[trial])
        assert np.array_equal(alone.scores(x[trial : trial + 1])[0], together.scores(x)[trial])


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default = ScoreNets(SMALL, 9, [RNG(0)])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    by_numpy = ScoreNets(SMALL, 9, [RNG(0)])
    for f in (default, by_numpy):
        for k in range(20):
            f.step(*_given(f, 1, k), np.array([0]))
    x = RNG(1).standard_normal((1, 10, 9))
    np.testing.assert_allclose(default.scores(x), by_numpy.scores(x), rtol=1e-4)


@pytest.mark.parametrize("gain", [-3.0, 3.0])
def test_a_gain_raises_the_scores_of_what_was_replayed_and_a_loss_lowers_them(gain: float) -> None:
    f, x = nets(), RNG(5).standard_normal((1, SMALL.sample, 9))
    before = np.log(f.scores(x)).mean()
    for _ in range(3):
        f.step(x, np.ones(x.shape[:2], np.bool_), np.array([gain]), np.array([0]))
    assert np.sign(np.log(f.scores(x)).mean() - before) == np.sign(gain)


def test_draws_follow_the_law_and_weights_correct_for_it() -> None:
    ners = sampler(updates=200)
    ners.on_write([np.arange(CAPACITY)])
    assert priorities(ners).tolist() == [1.0] * CAPACITY
    betas = []
    for k in range(200):
        before = priorities(ners)
        draw = ners.draw(1)
        assert draw.weights is not None
        share = before / before.sum()
        relative_probability = CAPACITY * share[draw.slots[0, 0]]
        policy_distance = np.abs(np.log(relative_probability)) > 1e-3
        if policy_distance.any():
            score = -np.log(draw.weights[0, 0]) / np.log(relative_probability)
            betas.append((k, float(np.median(score[policy_distance]))))
        scores = np.exp(RNG(k).standard_normal(CAPACITY))
        ners._samplers[0].prioritise(np.arange(CAPACITY), scores / scores.max())
        if k == 199:  # at beta = 1 the expected weight is 1
            assert (share * (CAPACITY * share) ** -1.0).sum() == pytest.approx(1.0, abs=1e-12)
            np.testing.assert_allclose(draw.weights[0, 0], 1.0 / relative_probability, rtol=1e-5)
    steps, found_betas = zip(*betas, strict=True)
    np.testing.assert_allclose(found_betas, 0.4 + 0.6 * np.array(steps) / 199, atol=2e-3)


def test_only_what_was_replayed_is_scored_and_a_rewritten_slot_starts_over() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    (drawn,) = replayed(ners, 1, 1)
    others = np.setdiff1d(np.arange(CAPACITY), drawn[0])
    now = priorities(ners)
    assert (now[others] == 1.0).all()
    assert (now[drawn[0]] < 1.0).all()
    # The TD errors and targets of this very update are among the features.
    scores = ners._nets.scores(ners._features_of(drawn))[0]
    np.testing.assert_allclose(now[drawn[0]], scores**SMALL.alpha, rtol=1e-6)
    features = ners._features
    assert set(np.flatnonzero(features.td[0] != 1.0).tolist()) == set(drawn[0].tolist())
    ners.on_write([drawn[0][:2]])
    assert (priorities(ners)[drawn[0][:2]] == 1.0).all()
    assert features.td[0, drawn[0][0]] == features.target[0, drawn[0][0]] == 1.0
    assert not ners.state()["replayed"][0, drawn[0][:2]].any()


def test_the_networks_learn_at_the_end_of_an_episode_from_the_gain_over_the_one_before() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    start = parameters(ners)

    def closed(total: float) -> bool:
        before = sub_state(ners.state(), "nets/")
        ners.on_episode_end(np.array([total]), np.ones(1, np.bool_))
        after = sub_state(ners.state(), "nets/")
        return any(not np.array_equal(after[name], value) for name, value in before.items())

    replayed(ners, 1, 3)
    assert not closed(5.0)  # there was no episode before
    assert not closed(7.0)  # nothing was replayed since
    replayed(ners, 1, 3)
    assert not closed(7.0)  # no gain, no step
    replayed(ners, 1, 3)
    assert not closed(np.nan)
    replayed(ners, 1, 3)
    assert not closed(3.0)  # the one before is not known
    assert np.array_equal(parameters(ners), start)
    replayed(ners, 1, 3)
    assert closed(4.0)
    replayed(ners, 1, 3)
    assert not closed(4.0)  # by now there are moments that would go on
    replayed(ners, 1, 3)
    ners.on_write([np.arange(CAPACITY)])
    assert not closed(9.0)  # everything replayed has been overwritten


@pytest.mark.parametrize("gain", [-2.0, 2.0])
def test_after_a_better_episode_what_it_replayed_scores_higher_and_after_a_worse_one_lower(gain: float) -> None:
    ners, alone = sampler(), nets()
    ners.on_write([np.arange(CAPACITY)])
    ners.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
    slots = np.unique(replayed(ners, 1, 2))[None]
    assert BATCH < slots.size < SMALL.sample < CAPACITY
    features = ners._features_of(slots)
    alone.restore(sub_state(ners.state(), "nets/"))
    before = np.log(ners._nets.scores(features)).mean()
    ners.on_episode_end(np.array([gain]), np.ones(1, np.bool_))
    assert np.sign(np.log(ners._nets.scores(features)).mean() - before) == np.sign(gain)
    padded = np.zeros((1, SMALL.sample, features.shape[2]), features.dtype)
    padded[:, : slots.size] = features
    alone.step(padded, np.arange(SMALL.sample)[None] < slots.size, np.array([gain]), np.array([0]))
    for name in ("adam/local", "adam/global", "adam/score"):
        got, wanted = (np.asarray(of[name], np.float64) for of in (sub_state(ners.state(), "nets/"), alone.state()))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_only_trials_whose_episode_ended_are_stepped() -> None:
    ners, alone = sampler(3), sampler(3)
    for one in (ners, alone):
        one.on_write([np.arange(CAPACITY)] * 3)
        one.on_episode_end(np.zeros(3), np.ones(3, np.bool_))
        replayed(one, 3, 2)
    before = parameters(ners)
    ners.on_episode_end(np.array([1.0, 2.0, 3.0]), np.array([False, True, False]))
    alone.on_episode_end(np.array([1.0, 2.0, 3.0]), np.ones(3, np.bool_))
    changed = (parameters(ners) != before).any(axis=1)
    assert changed.tolist() == [False, True, False]
    assert np.array_equal(parameters(ners)[1], parameters(alone)[1])
    assert ners.state()["nets/adam/score"][:, 0, -1].tolist() == [0.0, 1.0, 0.0]


def test_an_update_that_diverged_leaves_the_scores_as_they_were() -> None:
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    slots = ners.draw(1).slots
    ners.on_update(slots, Signals(np.full((1, 1, BATCH), np.nan), target=np.full((1, 1, BATCH), np.inf)))
    assert np.isfinite(priorities(ners)).all()
    assert (ners._features.td == 1.0).all()


def test_a_restored_sampler_goes_on_as_the_one_before() -> None:
    def after(ners: Ners) -> list[list[int]]:
        slots = replayed(ners, 1, 3, seed=9)
        ners.on_episode_end(np.array([8.0]), np.ones(1, np.bool_))
        ners.on_write([np.arange(5)])
        return [drawn[0].tolist() for drawn in slots + replayed(ners, 1, 5, seed=20)]

    first, second = sampler(), sampler()
    first.on_write([np.arange(CAPACITY)])
    first.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
    replayed(first, 1, 4)
    first.on_episode_end(np.ones(1), np.ones(1, np.bool_))
    replayed(first, 1, 2)
    state = first.state()
    expected = after(first)
    second.restore(state)
    assert after(second) == expected
    assert np.array_equal(parameters(second), parameters(first))
    with pytest.raises(ValueError, match="state of 1 trials, expected 2"):
        sampler(2).restore(state)


def test_how_writes_are_bunched_makes_no_difference() -> None:
    """A rig's learner hears of the writes of an episode at no fixed times, each slot once at a time."""
    at_once, in_pieces = sampler(), sampler()
    for ners in (at_once, in_pieces):
        ners.on_write([np.arange(20)])
        ners.on_episode_end(np.zeros(1), np.ones(1, np.bool_))
        replayed(ners, 1, 3)
    at_once.on_write([np.r_[np.arange(20, 30), 4, 5]])
    for piece in (np.arange(20, 25), np.array([4]), np.r_[np.arange(25, 30), 4], np.array([5])):
        in_pieces.on_write([piece])
    score = []
    for ners in (at_once, in_pieces):
        ners.on_episode_end(np.ones(1), np.ones(1, np.bool_))
        score.append([slots[0].tolist() for slots in replayed(ners, 1, 5, seed=30)])
    assert score[0] == score[1]
    assert np.array_equal(parameters(at_once), parameters(in_pieces))


def test_what_it_needs_is_told() -> None:
    with pytest.raises(ValueError, match="NERS needs access to experiences and a policy"):
        Ners(SamplerContext(CAPACITY, BATCH, 10), [RNG(0)])
    ners = sampler()
    ners.on_write([np.arange(CAPACITY)])
    slots = ners.draw(1).slots
    with pytest.raises(ValueError, match="needs targets, which the algorithm does not provide"):
        ners.on_update(slots, Signals(np.ones((1, 1, BATCH))))
    with pytest.raises(ValueError, match="expected 1 minibatch per draw"):
        ners.draw(2)
