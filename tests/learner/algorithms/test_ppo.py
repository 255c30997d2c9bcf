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
from tests.learner.algorithms.policy_batches import policies, policy_batch, value_nets
from tests.learner.torch_densities import log_density
from tests.learner.torch_nets import assert_state_close, leaves, mlp, of_net

N_OBS, M_ACT = 4, 3
SMALL: dict[str, Any] = {"hidden": [8, 6], "steps": 32, "batch": 8, "epochs": 2}


def _ppo(seeds: list[int], dtype: type[np.floating] = np.float32, **changes: Any) -> Ppo:
    config = msgspec.convert(SMALL | changes, PpoConfig)
    return Ppo(config, N_OBS, M_ACT, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _learned(algorithm: Ppo, seeds: list[int], iterations: int) -> NDArray[np.floating]:
    K = algorithm.config.actors
    for i in range(iterations):
        batch = policy_batch(algorithm, [100 * i + s for s in seeds], N_OBS, M_ACT, K, algorithm.config.steps // K)
        algorithm.learn(batch, 1.0 - i / 10)
    return _parameters(algorithm)


def _parameters(algorithm: Ppo) -> NDArray[np.floating]:
    return np.concatenate((policies(algorithm), value_nets(algorithm)), axis=1)


def _minibatch(ppo: Ppo, batch: PolicyBatch, size: int) -> Experiences:
    """The first experiences of a batch, under statistics of the present policy: (1, S, size, ...)."""
    frozen = flatten_actors(ppo._compute_statistics(batch))
    fields = ppo._inputs(frozen.observation), *frozen[1:]
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
def test_a_trial_learns_bit_for_bit_what_it_learns_alone_and_goes_on_from_its_state(changes: dict[str, Any]) -> None:
    seeds = [3, 1, 2]
    together, alone = _ppo(seeds, **changes), _ppo([2], **changes)
    assert (_learned(together, seeds, 2)[2] == _learned(alone, [2], 2)[0]).all()
    resumed = _ppo([9], **changes)
    resumed.restore(alone.state())
    assert (_learned(resumed, [2], 1) == _learned(alone, [2], 1)).all()


@pytest.mark.parametrize("S", [1, 2, 7, 16])
def test_trials_of_any_number_and_odd_sizes_learn_what_each_learns_alone(S: int) -> None:
    odd: dict[str, Any] = {"hidden": [7, 5], "steps": 33, "batch": 11, "max_norm": 0.2}
    together = _learned(_ppo([*range(S)], **odd), [*range(S)], 2)
    for trial in {0, S // 2, S - 1}:
        assert (_learned(_ppo([trial], **odd), [trial], 2)[0] == together[trial]).all()


def test_kernels_and_numpy_agree_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    default = _ppo([3])
    monkeypatch.setattr("onrig.learner.algorithms.traced.executor_for", lambda real: NumpyExecutor(np.dtype(real)))
    by_numpy = _ppo([3])
    got, wanted = (_learned(ppo, [3], 3) for ppo in (default, by_numpy))
    assert by_numpy.executor.name == "numpy"
    assert default.updates == 24
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_policy_and_value_take_steps_of_their_own_sizes_which_fall_with_their_number() -> None:
    ppo = _ppo([4], steps=64, batch=64, epochs=1, lr=1e-4, value_lr=3e-4, lr_decay=0.5, anneal=False, adam_eps=1e-12)
    for step, divisor in enumerate((1.0, 1.5)):
        before = _parameters(ppo)[0]
        for adam in ppo._adams:
            ppo.values(adam.moments)[:] = 0.0
        moved = np.abs(_learned(ppo, [4 + step], 1)[0] - before)  # the first step of Adam is the step size
        policy, value = np.split(moved, [policies(ppo).shape[1]])
        assert policy.max() == pytest.approx(1e-4 / divisor, rel=1e-2)
        assert value.max() == pytest.approx(3e-4 / divisor, rel=1e-2)


def test_ratios_are_one_before_the_first_step() -> None:
    ppo = _ppo([5, 6])
    _learned(ppo, [5, 6], 1)
    ppo._replayed_batches.append(ppo._compute_statistics(policy_batch(ppo, [7, 8], N_OBS, M_ACT)))
    memory = ppo._merge_replayed_batches()
    log_pi = ppo._densities_and_values(memory.observation, memory.drawn)[..., 0]
    np.testing.assert_allclose(np.exp(log_pi - memory.log_pi), 1.0, atol=2e-6)


def test_a_replay_memory_of_one_batch_is_ppo_until_there_is_another() -> None:
    plain, replaying = _ppo([4]), _ppo([4], depth=2)
    assert (_learned(plain, [4], 1) == _learned(replaying, [4], 1)).all()
    assert (_learned(plain, [4], 1) != _learned(replaying, [4], 1)).any()


def test_gradient_steps_of_the_paper_and_how_often_experiences_are_drawn() -> None:
    ppo = _ppo([0], hidden=[4], steps=2048, batch=64, epochs=10, depth=2, draw="uniform")
    _learned(ppo, [0], 1)
    assert ppo.updates == 320
    _learned(ppo, [0], 1)
    assert ppo.updates == 320 + 640
    of_epochs = np.concatenate([ppo._draw_slots(np.random.default_rng(s), 4096) for s in range(10)])
    assert np.bincount(of_epochs.reshape(-1), minlength=4096).mean() == 10.0
    permuting = _ppo([0], steps=64, batch=16)
    assert (np.bincount(permuting._draw_slots(np.random.default_rng(1), 64).reshape(-1)) == 1).all()


def test_the_batch_before_the_last_ones_is_forgotten_and_statistics_stay_frozen() -> None:
    ppo = _ppo([1], depth=2, draw="uniform")
    kept = []
    for i in range(3):
        _learned(ppo, [i], 1)
        kept.append(ppo._replayed_batches[-1])
    assert len(ppo._replayed_batches) == 2
    for stored, first in zip(ppo._replayed_batches, kept[1:], strict=True):
        assert stored is first
    memory = ppo._merge_replayed_batches()
    assert memory.target[0].tolist() == np.concatenate([b.target.reshape(-1) for b in kept[1:]]).tolist()


def test_every_actor_gives_an_equal_share_of_each_minibatch_from_its_own_experiences() -> None:
    ppo = _ppo([0], steps=512, batch=64, actors=8, depth=2, draw="uniform")
    slots = ppo._draw_slots(np.random.default_rng(3), 1024)
    assert slots.shape == (16, 64)
    assert (np.sort(slots // 128, axis=1) == np.repeat(np.arange(8), 8)).all()
    assert len(np.unique(slots)) > 600
    batch = policy_batch(ppo, [2], N_OBS, M_ACT, 8, 64)
    ppo._replayed_batches.append(ppo._compute_statistics(batch))
    ppo._replayed_batches.append(ppo._compute_statistics(batch._replace(observation=batch.observation + 1.0)))
    of_third = ppo._merge_replayed_batches().drawn[0, 2 * 128 : 2 * 128 + 64]
    assert (of_third == batch.drawn[0, 2].astype(np.float32)).all()


@dataclass
class _Case:
    ratio: float
    advantage: float
    moves: bool


@pytest.mark.parametrize(
    "case",
    [_Case(1.5, 1.0, False), _Case(0.5, -1.0, False), _Case(1.5, -1.0, True), _Case(0.5, 1.0, True)],
)
def test_beyond_the_clip_the_gradient_is_zero_on_the_better_side_only(case: _Case) -> None:
    ppo = _ppo([3], value_weight=0.0)
    minibatch = _minibatch(ppo, policy_batch(ppo, [1], N_OBS, M_ACT), 8)
    before, eight = _parameters(ppo), np.full((1, 1, 8), case.advantage)
    log_pi = minibatch.log_pi - np.log(case.ratio)
    ppo._descend(minibatch._replace(log_pi=log_pi, advantage=eight, target=eight), 1.0)
    assert (_parameters(ppo) != before).any() == case.moves


def test_the_gradient_is_that_of_the_loss_by_central_differences() -> None:
    ppo = _ppo([3], np.float64, hidden=[3, 5], value_weight=0.7, lr=1e-12)
    minibatch = _minibatch(ppo, policy_batch(ppo, [1], N_OBS, M_ACT), 8)
    beyond = np.linspace(-0.5, 0.5, 8)  # some ratios beyond the clip
    minibatch = minibatch._replace(log_pi=minibatch.log_pi + beyond)
    states, drawn, log_pi, advantage, target = (field[0, 0] for field in minibatch)
    fields = [field for name, field in ppo.layout.fields.items() if not name.startswith("adam")]

    def loss(row: NDArray[np.floating]) -> float:
        *rest, log_std = (
            row[field.slice].reshape(field.shape) for field in sorted(fields, key=lambda f: "std" in f.name)
        )
        outputs = []
        for part in (rest[:6], rest[6:]):
            y = states
            for weight, bias in zip(part[:-2:2], part[1:-2:2], strict=True):
                y = np.tanh(y @ weight + bias)
            outputs.append(y @ part[-2] + part[-1])
        mean, value = outputs
        log = (-0.5 * np.square((drawn - mean) / np.exp(log_std)) - log_std - 0.5 * np.log(2.0 * np.pi)).sum(axis=1)
        ratio = np.exp(log - log_pi)
        gained = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return float(-gained.mean() + 0.7 * np.square(value[:, 0] - target).mean())

    start = ppo.rows[0].copy()
    ppo._descend(minibatch, 1.0)  # by next to nothing: Adam's first moment is a tenth of the gradient
    for adam in ppo._adams:
        at = np.arange(adam.group.flat_field.offset, adam.group.flat_field.slice.stop)
        moments = 10.0 * ppo.values(adam.moments)[0, 0, : len(at)]
        for place, gradient in zip(at, moments, strict=True):
            step = 1e-6 * (np.arange(len(start)) == place)
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
def test_an_iteration_is_that_of_ppo_written_out(changes: dict[str, Any]) -> None:
    left = 0.6
    ppo, twin = (_ppo([3, 4], np.float64, lr=1e-2, epochs=5, **changes) for _ in range(2))
    batch = policy_batch(ppo, [1, 2], N_OBS, M_ACT)
    ppo.learn(batch, left)
    frozen = flatten_actors(twin._compute_statistics(batch))
    fields = (twin._filter(frozen.observation), *frozen[1:])
    assert ppo.updates == 20
    for trial in range(2):
        wanted = leaves(twin.state(), trial, ("policy", "spread", "value"))
        clipped = _iteration(twin, wanted, [torch.tensor(field[trial]).double() for field in fields], left, trial)
        assert 10 < clipped < 150
        assert_state_close(ppo.state(), trial, wanted)


def _iteration(twin: Ppo, wanted: dict[str, torch.Tensor], fields: list[torch.Tensor], left: float, trial: int) -> int:
    """Train ``wanted`` by torch; returns how often a ratio was beyond the clip."""
    config, (states, drawn, log_pi, advantage, target), beyond = twin.config, fields, 0
    clip, rates = left * config.clip, (config.lr, config.lr, config.value_lr or config.lr)
    groups = [
        {"params": of_net(wanted, net), "lr": lr} for net, lr in zip(("policy", "spread", "value"), rates, strict=True)
    ]
    adam = torch.optim.Adam(groups, eps=config.adam_eps)
    for step in range(config.epochs * 4):
        if step % 4 == 0:
            minibatches = twin._streams[trial].permutation(32).reshape(4, 8)
        slots = minibatches[step % 4]
        for group, lr in zip(adam.param_groups, rates, strict=True):
            group["lr"] = lr * left / (1.0 + config.lr_decay * step)
        a, std = advantage[slots], wanted["spread/log_std"].exp()
        if config.standardise == "minibatch":
            a = (a - a.mean()) / (a.std() + 1e-8)
        mean = mlp(wanted, "policy", states[slots])
        ratio = (log_density(drawn[slots], mean, std) - log_pi[slots]).exp()
        gained = torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
        error = mlp(wanted, "value", states[slots])[:, 0] - target[slots]
        adam.zero_grad()
        (config.value_weight * error.square().mean() - gained.mean()).backward()  # type: ignore[no-untyped-call]
        if config.max_norm is not None:
            gradients = [p.grad for p in wanted.values() if p.grad is not None]
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            for g in gradients:
                g *= config.max_norm / norm.clamp(min=config.max_norm)
        adam.step()
        beyond += int(((ratio - 1.0).abs() > clip).sum())
    return beyond


def test_advantages_are_standardised_over_the_batch_only_if_so_configured() -> None:
    batch = policy_batch(_ppo([3]), [1], N_OBS, M_ACT)
    whole, part, plain = (
        _ppo([3], standardise=over)._compute_statistics(batch).advantage.astype(np.float64)
        for over in ("batch", "minibatch", "none")
    )
    assert (part == plain).all()
    assert abs(plain.std() - 1.0) > 0.1
    np.testing.assert_allclose(whole, (plain - plain.mean()) / plain.std(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("left", "anneal", "moves"), [(1.0, True, True), (0.5, True, False), (0.5, False, True)])
def test_the_clip_falls_with_what_is_left_of_the_run(left: float, anneal: bool, moves: bool) -> None:
    ppo = _ppo([3], value_weight=0.0, standardise="none", anneal=anneal)
    batch = policy_batch(ppo, [1], N_OBS, M_ACT)
    batch = batch._replace(reward=np.full_like(batch.reward, 100.0))
    frozen = _ppo([3], standardise="none")._compute_statistics(batch)
    assert (frozen.advantage > 0.0).all()
    before = _parameters(ppo)
    ppo.learn(batch._replace(log_pi=frozen.log_pi - np.log(1.15)), left)
    assert (_parameters(ppo) != before).any() == moves


def test_the_step_size_falls_with_what_is_left_of_the_run() -> None:
    moved = []
    for left in (1.0, 1e-9):
        ppo = _ppo([3])
        before = _parameters(ppo)
        ppo.learn(policy_batch(ppo, [1], N_OBS, M_ACT), left)
        moved.append(np.abs(_parameters(ppo) - before).max())
    assert moved[0] > 1e-4
    assert moved[1] < 1e-8


def test_the_filter_standardises_with_what_it_has_seen_and_initial_weights_are_scaled() -> None:
    ppo = _ppo([3])
    batch = policy_batch(ppo, [1], N_OBS, M_ACT)
    ppo._compute_statistics(batch)
    standardised = ppo._filter(batch.observation[:, 0])
    np.testing.assert_allclose(standardised.mean(axis=1), 0.0, atol=0.05)
    np.testing.assert_allclose(standardised.std(axis=1), 1.0, atol=0.05)
    assert np.abs(ppo._filter(batch.observation[:, 0] + 1e3)).max() == 5.0
    state = ppo.state()
    names = ["policy/weight0", "policy/weight1", "policy/weight2", "value/weight0", "value/weight1", "value/weight2"]
    norms = [float(np.sqrt(np.square(state[name][0]).sum(axis=0)).mean()) for name in names]
    np.testing.assert_allclose(norms, [1.0, 1.0, 0.01, 1.0, 1.0, 1.0], atol=1e-6)
    assert (state["spread/log_std"] == 0.0).all()
    assert all((values == 0.0).all() for name, values in state.items() if "/bias" in name)
    weight = _ppo([3], initial="orthogonal").state()["policy/weight1"][0].astype(np.float64)
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(6), atol=1e-5)


def test_without_a_bootstrap_a_time_limit_ends_the_return_as_a_terminal_state_does() -> None:
    targets = []
    for truncations in ("bootstrap", "terminate"):
        ppo = _ppo([3], truncations=truncations)
        batch = policy_batch(ppo, [1], N_OBS, M_ACT)
        assert (batch.truncated & ~batch.terminated).any()
        frozen = ppo._compute_statistics(batch)
        targets.append(frozen.target[batch.truncated])
        np.testing.assert_allclose(frozen.target[batch.terminated], batch.reward[batch.terminated], rtol=1e-4)
    np.testing.assert_allclose(targets[1], batch.reward[batch.truncated], rtol=1e-4)
    assert np.abs(targets[0] - targets[1]).min() > 1e-4


def test_batches_of_another_size_and_sizes_that_do_not_fit_are_refused() -> None:
    ppo = _ppo([3])
    with pytest.raises(ValueError, match="expected a batch of \\(1, 1, 32\\)"):
        ppo.learn(policy_batch(ppo, [1], N_OBS, M_ACT, T=16), 1.0)
    with pytest.raises(ValueError, match="stream"):
        _ppo([])
    assert not list(PpoConfig().problems())
    assert [at for at, _ in PpoConfig(steps=100, batch=64).problems()] == ["batch"]
    assert [at for at, _ in PpoConfig(steps=30, batch=6, actors=4).problems()] == ["steps", "batch"]
    assert not list(TrpoConfig(steps=64, batch=16, fisher_every=21).problems())
    too_few = list(TrpoConfig(steps=64, batch=16, fisher_every=22).problems())
    assert too_few == [("fisher_every", "expected at most 21, for four of the 64 steps, got 22")]
