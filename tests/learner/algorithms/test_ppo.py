from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms.actor_critic import flatten_actors
from onrig.learner.algorithms.on_policy import PolicyBatch
from onrig.learner.algorithms.ppo import Experiences, Ppo
from onrig.learner.on_policy_settings import PpoConfig, TrpoConfig
from onrig.learner.tape.numpy_executor import NumpyExecutor
from tests.learner.algorithms.policy_batches import make_policy_batch, policies, value_parameters
from tests.learner.torch_densities import log_density
from tests.learner.torch_nets import assert_state_close, mlp, net_parameters, trial_parameters

N_OBS, M_ACT = 4, 3
SMALL_SETTINGS: dict[str, Any] = {"hidden": [8, 6], "steps": 32, "batch": 8, "epochs": 2}


def _ppo(seeds: list[int], dtype: type[np.floating] = np.float32, **changes: Any) -> Ppo:
    config = msgspec.convert(SMALL_SETTINGS | changes, PpoConfig)
    return Ppo(config, N_OBS, M_ACT, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _learn(algorithm: Ppo, seeds: list[int], iterations: int) -> NDArray[np.floating]:
    K = algorithm.config.actors
    for i in range(iterations):
        batch = make_policy_batch(algorithm, [100 * i + s for s in seeds], N_OBS, M_ACT, K, algorithm.config.steps // K)
        algorithm.learn(batch, 1.0 - i / 10)
    return _parameters(algorithm)


def _parameters(algorithm: Ppo) -> NDArray[np.floating]:
    return np.concatenate((policies(algorithm), value_parameters(algorithm)), axis=1)


def _minibatch(ppo: Ppo, batch: PolicyBatch, size: int) -> Experiences:
    """The first experiences of a batch, with the statistics of the current policy: (1, S, size, ...)."""
    statistics = flatten_actors(ppo._compute_statistics(batch))
    fields = ppo._inputs(statistics.observation), *statistics[1:]
    return Experiences(*(np.asarray(field, np.float64)[None, :, :size] for field in fields))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"depth": 2, "draw": "uniform", "actors": 4},
        {"standardise": "minibatch", "max_norm": 0.1, "initial": "orthogonal", "filter": False, "anneal": False},
        {"value_lr": 1e-3, "lr_decay": 0.1, "anneal": False},
    ],
    ids=["ppo", "ppo-er", "as elsewhere", "beside V-RACER"],
)
def test_a_trial_learns_bit_for_bit_as_alone_and_continues_from_its_state(changes: dict[str, Any]) -> None:
    seeds = [3, 1, 2]
    joint, single = _ppo(seeds, **changes), _ppo([2], **changes)
    assert (_learn(joint, seeds, 2)[2] == _learn(single, [2], 2)[0]).all()
    resumed_ppo = _ppo([9], **changes)
    resumed_ppo.restore(single.state())
    assert (_learn(resumed_ppo, [2], 1) == _learn(single, [2], 1)).all()


@pytest.mark.parametrize("S", [1, 2, 7, 16])
def test_trials_of_any_number_and_odd_sizes_learn_as_each_does_alone(S: int) -> None:
    odd_sizes: dict[str, Any] = {"hidden": [7, 5], "steps": 33, "batch": 11, "max_norm": 0.2}
    joint = _learn(_ppo([*range(S)], **odd_sizes), [*range(S)], 2)
    for trial in {0, S // 2, S - 1}:
        assert (_learn(_ppo([trial], **odd_sizes), [trial], 2)[0] == joint[trial]).all()


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default_ppo = _ppo([3])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    numpy_ppo = _ppo([3])
    actual, expected = (_learn(ppo, [3], 3) for ppo in (default_ppo, numpy_ppo))
    assert numpy_ppo.executor.name == "numpy"
    assert default_ppo.updates == 24
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_policy_and_value_have_separate_step_sizes_that_fall_with_their_number_of_steps() -> None:
    ppo = _ppo([4], steps=64, batch=64, epochs=1, lr=1e-4, value_lr=3e-4, lr_decay=0.5, anneal=False, adam_eps=1e-12)
    for step, step_divisor in enumerate((1.0, 1.5)):
        parameters_before = _parameters(ppo)[0]
        for adam in ppo._adams:
            ppo.values(adam.moments)[:] = 0.0
        steps_taken = np.abs(
            _learn(ppo, [4 + step], 1)[0] - parameters_before
        )  # the first step of Adam is the step size
        policy, value = np.split(steps_taken, [policies(ppo).shape[1]])
        assert policy.max() == pytest.approx(1e-4 / step_divisor, rel=1e-2)
        assert value.max() == pytest.approx(3e-4 / step_divisor, rel=1e-2)


def test_ratios_are_one_before_the_first_step() -> None:
    ppo = _ppo([5, 6])
    _learn(ppo, [5, 6], 1)
    ppo._replayed_batches.append(ppo._compute_statistics(make_policy_batch(ppo, [7, 8], N_OBS, M_ACT)))
    memory = ppo._merge_replayed_batches()
    log_pi = ppo._densities_and_values(memory.observation, memory.drawn)[..., 0]
    np.testing.assert_allclose(np.exp(log_pi - memory.log_pi), 1.0, atol=2e-6)


def test_a_replay_memory_of_one_batch_equals_ppo_until_there_is_a_second_batch() -> None:
    without_replay, with_replay = _ppo([4]), _ppo([4], depth=2)
    assert (_learn(without_replay, [4], 1) == _learn(with_replay, [4], 1)).all()
    assert (_learn(without_replay, [4], 1) != _learn(with_replay, [4], 1)).any()


def test_the_number_of_gradient_steps_and_draws_is_that_of_the_paper() -> None:
    ppo = _ppo([0], hidden=[4], steps=2048, batch=64, epochs=10, depth=2, draw="uniform")
    _learn(ppo, [0], 1)
    assert ppo.updates == 320
    _learn(ppo, [0], 1)
    assert ppo.updates == 320 + 640
    slots_of_epochs = np.concatenate([ppo._draw_slots(np.random.default_rng(s), 4096) for s in range(10)])
    assert np.bincount(slots_of_epochs.reshape(-1), minlength=4096).mean() == 10.0
    permuting_ppo = _ppo([0], steps=64, batch=16)
    assert (np.bincount(permuting_ppo._draw_slots(np.random.default_rng(1), 64).reshape(-1)) == 1).all()


def test_only_the_last_batches_are_kept_and_their_statistics_remain_frozen() -> None:
    ppo = _ppo([1], depth=2, draw="uniform")
    batches_kept = []
    for i in range(3):
        _learn(ppo, [i], 1)
        batches_kept.append(ppo._replayed_batches[-1])
    assert len(ppo._replayed_batches) == 2
    for replayed, original in zip(ppo._replayed_batches, batches_kept[1:], strict=True):
        assert replayed is original
    memory = ppo._merge_replayed_batches()
    assert memory.target[0].tolist() == np.concatenate([b.target.reshape(-1) for b in batches_kept[1:]]).tolist()


def test_every_actor_contributes_equally_to_each_minibatch_from_its_own_experiences() -> None:
    ppo = _ppo([0], steps=512, batch=64, actors=8, depth=2, draw="uniform")
    slots = ppo._draw_slots(np.random.default_rng(3), 1024)
    assert slots.shape == (16, 64)
    assert (np.sort(slots // 128, axis=1) == np.repeat(np.arange(8), 8)).all()
    assert len(np.unique(slots)) > 600
    batch = make_policy_batch(ppo, [2], N_OBS, M_ACT, 8, 64)
    ppo._replayed_batches.append(ppo._compute_statistics(batch))
    ppo._replayed_batches.append(ppo._compute_statistics(batch._replace(observation=batch.observation + 1.0)))
    third_minibatch = ppo._merge_replayed_batches().drawn[0, 2 * 128 : 2 * 128 + 64]
    assert (third_minibatch == batch.drawn[0, 2].astype(np.float32)).all()


@dataclass
class _ClipCase:
    ratio: float
    advantage: float
    has_gradient: bool


@pytest.mark.parametrize(
    "case",
    [_ClipCase(1.5, 1.0, False), _ClipCase(0.5, -1.0, False), _ClipCase(1.5, -1.0, True), _ClipCase(0.5, 1.0, True)],
)
def test_beyond_the_clip_the_gradient_is_zero_only_on_the_better_side(case: _ClipCase) -> None:
    ppo = _ppo([3], value_weight=0.0)
    minibatch = _minibatch(ppo, make_policy_batch(ppo, [1], N_OBS, M_ACT), 8)
    parameters_before, advantages = _parameters(ppo), np.full((1, 1, 8), case.advantage)
    log_pi = minibatch.log_pi - np.log(case.ratio)
    ppo._descend(minibatch._replace(log_pi=log_pi, advantage=advantages, target=advantages), 1.0)
    assert (_parameters(ppo) != parameters_before).any() == case.has_gradient


def test_the_gradient_of_the_loss_equals_central_differences() -> None:
    ppo = _ppo([3], np.float64, hidden=[3, 5], value_weight=0.7, lr=1e-12)
    minibatch = _minibatch(ppo, make_policy_batch(ppo, [1], N_OBS, M_ACT), 8)
    offsets = np.linspace(-0.5, 0.5, 8)  # some ratios beyond the clip
    minibatch = minibatch._replace(log_pi=minibatch.log_pi + offsets)
    states, drawn_action, log_pi, advantage, target = (field[0, 0] for field in minibatch)
    fields = [field for name, field in ppo.layout.fields.items() if not name.startswith("adam")]

    def loss(row: NDArray[np.floating]) -> float:
        *layers, log_std = (
            row[field.slice].reshape(field.shape) for field in sorted(fields, key=lambda f: "std" in f.name)
        )
        outputs = []
        for per_minibatch in (layers[:6], layers[6:]):
            y = states
            for weight, bias in zip(per_minibatch[:-2:2], per_minibatch[1:-2:2], strict=True):
                y = np.tanh(y @ weight + bias)
            outputs.append(y @ per_minibatch[-2] + per_minibatch[-1])
        mean, value = outputs
        log = (-0.5 * np.square((drawn_action - mean) / np.exp(log_std)) - log_std - 0.5 * np.log(2.0 * np.pi)).sum(
            axis=1
        )
        ratio = np.exp(log - log_pi)
        gain = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return float(-gain.mean() + 0.7 * np.square(value[:, 0] - target).mean())

    start = ppo.rows[0].copy()
    ppo._descend(minibatch, 1.0)  # by a tiny number: Adam's first moment is a tenth of the gradient
    for adam in ppo._adams:
        indices = np.arange(adam.group.flat_field.offset, adam.group.flat_field.slice.stop)
        moments = 10.0 * ppo.values(adam.moments)[0, 0, : len(indices)]
        for index, gradient in zip(indices, moments, strict=True):
            step = 1e-6 * (np.arange(len(start)) == index)
            expected = (loss(start + step) - loss(start - step)) / 2e-6
            assert gradient == pytest.approx(expected, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"value_lr": 1e-3, "lr_decay": 0.1, "max_norm": 0.5, "value_weight": 0.3},
        {"standardise": "minibatch", "initial": "orthogonal", "adam_eps": 1e-8, "clip": 0.05},
    ],
)
def test_an_iteration_equals_ppo_written_out(changes: dict[str, Any]) -> None:
    left = 0.6
    ppo, twin = (_ppo([3, 4], np.float64, lr=1e-2, epochs=5, **changes) for _ in range(2))
    batch = make_policy_batch(ppo, [1, 2], N_OBS, M_ACT)
    ppo.learn(batch, left)
    statistics = flatten_actors(twin._compute_statistics(batch))
    fields = (twin._filter(statistics.observation), *statistics[1:])
    assert ppo.updates == 20
    for trial in range(2):
        expected = trial_parameters(twin.state(), trial, ("policy", "spread", "value"))
        n_clipped = _iteration(twin, expected, [torch.tensor(field[trial]).double() for field in fields], left, trial)
        assert 10 < n_clipped < 150
        assert_state_close(ppo.state(), trial, expected)


def _iteration(
    twin: Ppo, expected: dict[str, torch.Tensor], fields: list[torch.Tensor], left: float, trial: int
) -> int:
    """Train ``expected`` by torch; returns how often a ratio was beyond the clip."""
    config, (states, drawn_action, log_pi, advantage, target), n_clipped = twin.config, fields, 0
    clip_range, rates = left * config.clip, (config.lr, config.lr, config.value_lr or config.lr)
    groups = [
        {"params": net_parameters(expected, net), "lr": lr}
        for net, lr in zip(("policy", "spread", "value"), rates, strict=True)
    ]
    adam = torch.optim.Adam(groups, eps=config.adam_eps)
    for step in range(config.epochs * 4):
        if step % 4 == 0:
            minibatches = twin._streams[trial].permutation(32).reshape(4, 8)
        slots = minibatches[step % 4]
        for group, lr in zip(adam.param_groups, rates, strict=True):
            group["lr"] = lr * left / (1.0 + config.lr_decay * step)
        a, std = advantage[slots], expected["spread/log_std"].exp()
        if config.standardise == "minibatch":
            a = (a - a.mean()) / (a.std() + 1e-8)
        mean = mlp(expected, "policy", states[slots])
        ratio = (log_density(drawn_action[slots], mean, std) - log_pi[slots]).exp()
        gain = torch.minimum(ratio * a, ratio.clamp(1 - clip_range, 1 + clip_range) * a)
        error = mlp(expected, "value", states[slots])[:, 0] - target[slots]
        adam.zero_grad()
        (config.value_weight * error.square().mean() - gain.mean()).backward()  # type: ignore[no-untyped-call]
        if config.max_norm is not None:
            gradients = [p.grad for p in expected.values() if p.grad is not None]
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            for g in gradients:
                g *= config.max_norm / norm.clamp(min=config.max_norm)
        adam.step()
        n_clipped += int(((ratio - 1.0).abs() > clip_range).sum())
    return n_clipped


def test_advantages_are_standardised_over_the_batch_only_if_configured() -> None:
    batch = make_policy_batch(_ppo([3]), [1], N_OBS, M_ACT)
    per_batch, per_minibatch, unstandardised = (
        _ppo([3], standardise=standardise_over)._compute_statistics(batch).advantage.astype(np.float64)
        for standardise_over in ("batch", "minibatch", "none")
    )
    assert (per_minibatch == unstandardised).all()
    assert abs(unstandardised.std() - 1.0) > 0.1
    np.testing.assert_allclose(
        per_batch, (unstandardised - unstandardised.mean()) / unstandardised.std(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("left", "anneals", "has_gradient"), [(1.0, True, True), (0.5, True, False), (0.5, False, True)]
)
def test_the_clip_falls_with_the_remainder_of_the_run(left: float, anneals: bool, has_gradient: bool) -> None:
    ppo = _ppo([3], value_weight=0.0, standardise="none", anneal=anneals)
    batch = make_policy_batch(ppo, [1], N_OBS, M_ACT)
    batch = batch._replace(reward=np.full_like(batch.reward, 100.0))
    statistics = _ppo([3], standardise="none")._compute_statistics(batch)
    assert (statistics.advantage > 0.0).all()
    parameters_before = _parameters(ppo)
    ppo.learn(batch._replace(log_pi=statistics.log_pi - np.log(1.15)), left)
    assert (_parameters(ppo) != parameters_before).any() == has_gradient


def test_the_step_size_falls_with_the_remainder_of_the_run() -> None:
    steps_taken = []
    for left in (1.0, 1e-9):
        ppo = _ppo([3])
        parameters_before = _parameters(ppo)
        ppo.learn(make_policy_batch(ppo, [1], N_OBS, M_ACT), left)
        steps_taken.append(np.abs(_parameters(ppo) - parameters_before).max())
    assert steps_taken[0] > 1e-4
    assert steps_taken[1] < 1e-8


def test_the_filter_standardises_with_past_observations_and_initial_weights_are_scaled() -> None:
    ppo = _ppo([3])
    batch = make_policy_batch(ppo, [1], N_OBS, M_ACT)
    ppo._compute_statistics(batch)
    filtered = ppo._filter(batch.observation[:, 0])
    np.testing.assert_allclose(filtered.mean(axis=1), 0.0, atol=0.05)
    np.testing.assert_allclose(filtered.std(axis=1), 1.0, atol=0.05)
    assert np.abs(ppo._filter(batch.observation[:, 0] + 1e3)).max() == 5.0
    state = ppo.state()
    names = ["policy/weight0", "policy/weight1", "policy/weight2", "value/weight0", "value/weight1", "value/weight2"]
    norms = [float(np.sqrt(np.square(state[name][0]).sum(axis=0)).mean()) for name in names]
    np.testing.assert_allclose(norms, [1.0, 1.0, 0.01, 1.0, 1.0, 1.0], atol=1e-6)
    assert (state["spread/log_std"] == 0.0).all()
    assert all((values == 0.0).all() for name, values in state.items() if "/bias" in name)
    weight = _ppo([3], initial="orthogonal").state()["policy/weight1"][0].astype(np.float64)
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(6), atol=1e-5)


def test_without_a_bootstrap_a_time_limit_ends_the_return_like_a_terminal_state() -> None:
    targets = []
    for truncations in ("bootstrap", "terminate"):
        ppo = _ppo([3], truncations=truncations)
        batch = make_policy_batch(ppo, [1], N_OBS, M_ACT)
        assert (batch.truncated & ~batch.terminated).any()
        statistics = ppo._compute_statistics(batch)
        targets.append(statistics.target[batch.truncated])
        np.testing.assert_allclose(statistics.target[batch.terminated], batch.reward[batch.terminated], rtol=1e-4)
    np.testing.assert_allclose(targets[1], batch.reward[batch.truncated], rtol=1e-4)
    assert np.abs(targets[0] - targets[1]).min() > 1e-4


def test_batches_of_another_size_and_mismatched_sizes_are_refused() -> None:
    ppo = _ppo([3])
    with pytest.raises(ValueError, match="expected a batch of \\(1, 1, 32\\)"):
        ppo.learn(make_policy_batch(ppo, [1], N_OBS, M_ACT, T=16), 1.0)
    with pytest.raises(ValueError, match="stream"):
        _ppo([])
    assert not list(PpoConfig().problems())
    assert [path for path, _ in PpoConfig(steps=100, batch=64).problems()] == ["batch"]
    assert [path for path, _ in PpoConfig(steps=30, batch=6, actors=4).problems()] == ["steps", "batch"]
    assert not list(TrpoConfig(steps=64, batch=16, fisher_every=21).problems())
    problems = list(TrpoConfig(steps=64, batch=16, fisher_every=22).problems())
    assert problems == [("fisher_every", "expected at most 21, to use four of the 64 steps, got 22")]
