from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms.actor_critic import flattened
from onrig.learner.algorithms.densities import log_density
from onrig.learner.algorithms.ppo import Minibatch, Ppo
from onrig.learner.networks import split_layers
from onrig.learner.on_policy_settings import PpoConfig, TrpoConfig, batch_problems
from tests.learner.algorithms.policy_batches import policy_batch

N_OBS, M_ACT = 4, 3
SMALL: dict[str, Any] = {"hidden": [8, 6], "steps": 32, "batch": 8, "epochs": 2}


def _ppo(seeds: list[int], dtype: torch.dtype = torch.float32, **changes: Any) -> Ppo:
    config = msgspec.convert(SMALL | changes, PpoConfig)
    return Ppo(config, N_OBS, M_ACT, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _learned(algorithm: Ppo, seeds: list[int], iterations: int) -> NDArray[np.floating]:
    K = algorithm.config.actors
    for i in range(iterations):
        batch = policy_batch(algorithm, [100 * i + s for s in seeds], N_OBS, M_ACT, K, algorithm.config.steps // K)
        algorithm.learn(batch, 1.0 - i / 10)
    return algorithm._nets.vectors()


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


def test_policy_and_value_take_steps_of_their_own_sizes_which_fall_with_their_number() -> None:
    ppo = _ppo([4], steps=64, batch=64, epochs=1, lr=1e-4, value_lr=3e-4, lr_decay=0.5, anneal=False, adam_eps=1e-12)
    for step, divisor in enumerate((1.0, 1.5)):
        before = ppo._nets.vectors()[0, 0]
        ppo._nets._adam.restore({"mean": 0.0 * before[None], "square": 0.0 * before[None], "step": np.array(0.0)})
        moved = np.abs(_learned(ppo, [4 + step], 1)[0, 0] - before)  # the first step of Adam is the step size
        policy, value = moved[: ppo._policy_size], moved[ppo._policy_size :]
        assert policy.max() == pytest.approx(1e-4 / divisor, rel=1e-2)
        assert value.max() == pytest.approx(3e-4 / divisor, rel=1e-2)


def test_ratios_are_one_before_the_first_step() -> None:
    ppo = _ppo([5, 6])
    _learned(ppo, [5, 6], 1)
    ppo._replayed.append(ppo._freeze(policy_batch(ppo, [7, 8], N_OBS, M_ACT)))
    memory = ppo._memory()
    with torch.no_grad():
        mean, std = ppo._distribution(ppo._policy_blocks, memory.x)
        log_pi = log_density(memory.drawn, mean, std)
    np.testing.assert_allclose((log_pi - memory.log_pi).exp().numpy(), 1.0, atol=2e-6)


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
    of_epochs = np.concatenate([ppo._slots(np.random.default_rng(s), 4096) for s in range(10)])
    assert np.bincount(of_epochs.reshape(-1), minlength=4096).mean() == 10.0
    permuting = _ppo([0], steps=64, batch=16)
    assert (np.bincount(permuting._slots(np.random.default_rng(1), 64).reshape(-1)) == 1).all()


def test_the_batch_before_the_last_ones_is_forgotten_and_statistics_stay_frozen() -> None:
    ppo = _ppo([1], depth=2, draw="uniform")
    kept = []
    for i in range(3):
        _learned(ppo, [i], 1)
        kept.append(ppo._replayed[-1])
    assert len(ppo._replayed) == 2
    for stored, first in zip(ppo._replayed, kept[1:], strict=True):
        assert stored is first
    memory = ppo._memory()
    assert memory.target.numpy()[0].tolist() == np.concatenate([b.target.reshape(-1) for b in kept[1:]]).tolist()


def test_every_actor_gives_an_equal_share_of_each_minibatch_from_its_own_experiences() -> None:
    ppo = _ppo([0], steps=512, batch=64, actors=8, depth=2, draw="uniform")
    slots = ppo._slots(np.random.default_rng(3), 1024)
    assert slots.shape == (16, 64)
    assert (np.sort(slots // 128, axis=1) == np.repeat(np.arange(8), 8)).all()
    assert len(np.unique(slots)) > 600
    batch = policy_batch(ppo, [2], N_OBS, M_ACT, 8, 64)
    ppo._replayed.append(ppo._freeze(batch))
    ppo._replayed.append(ppo._freeze(batch._replace(observation=batch.observation + 1.0)))
    of_third = ppo._memory().drawn.numpy()[0, 2 * 128 : 2 * 128 + 64]
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
    frozen = flattened(ppo._freeze(policy_batch(ppo, [1], N_OBS, M_ACT)))
    x, log_pi = ppo._inputs(frozen.observation[:, :8]), torch.from_numpy(frozen.log_pi[:, :8])
    before = ppo._nets.vectors()
    eight = torch.full((1, 8), case.advantage)
    ppo._descend(Minibatch(x, torch.from_numpy(frozen.drawn[:, :8]), log_pi - np.log(case.ratio), eight, eight), 0.2)
    assert (ppo._nets.vectors() != before).any() == case.moves


def test_the_gradient_is_that_of_the_loss_by_central_differences() -> None:
    ppo = _ppo([3], torch.float64, hidden=[3, 5], value_weight=0.7)
    frozen = flattened(ppo._freeze(policy_batch(ppo, [1], N_OBS, M_ACT)))
    x, rest = ppo._inputs(frozen.observation), [torch.from_numpy(f).double()[:, :8] for f in frozen[1:]]
    rest[1] = rest[1] + torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)  # some ratios beyond the clip
    drawn, log_pi, advantage, target = (part[0].numpy() for part in rest)
    states = x[0, :8, :N_OBS].numpy()

    def loss(vector: NDArray[np.float64]) -> float:
        layers = split_layers(ppo._nets._layout, vector)
        outputs = []
        for part in (layers[:3], layers[4:]):
            y = states
            for weight, bias in part[:-1]:
                y = np.tanh(y @ weight + bias)
            outputs.append(y @ part[-1][0] + part[-1][1])
        (mean, value), log_std = outputs, layers[3][1]
        log = (-0.5 * np.square((drawn - mean) / np.exp(log_std)) - log_std - 0.5 * np.log(2.0 * np.pi)).sum(axis=1)
        ratio = np.exp(log - log_pi)
        gained = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return float(-gained.mean() + 0.7 * np.square(value[:, 0] - target).mean())

    start = np.array(ppo._nets.vectors()[0, 0], np.float64)
    steps = 1e-6 * np.eye(len(start))
    expected = [(loss(start + step) - loss(start - step)) / 2e-6 for step in steps]
    ppo._descend(Minibatch(x[:, :8], *rest), 0.2)
    gradient = ppo._nets._layout.read(ppo._nets._gradient, 1)[0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


def _net(blocks: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for block in blocks[:-1]:
        x = torch.tanh(x @ block[:-1] + block[-1])
    return x @ blocks[-1][:-1] + blocks[-1][-1]


def test_an_iteration_is_that_of_ppo_written_out() -> None:
    lr, left, clip = 1e-2, 0.6, 0.6 * 0.2
    ppo, twin = (_ppo([3], torch.float64, lr=lr, epochs=3) for _ in range(2))
    batch = policy_batch(ppo, [1], N_OBS, M_ACT)
    ppo.learn(batch, left)

    frozen = flattened(twin._freeze(batch))
    fields = (twin._filter(frozen.observation), *frozen[1:])
    states, drawn, log_pi, advantage, target = (torch.tensor(field[0]).double() for field in fields)
    vector = torch.tensor(twin._nets.vectors()[0, 0], requires_grad=True)
    shapes = [(N_OBS + 1, 8), (9, 6), (7, M_ACT), (1, M_ACT), (N_OBS + 1, 8), (9, 6), (7, 1)]
    ends = np.cumsum([rows * cols for rows, cols in shapes]).tolist()
    mean, square, step, beyond = torch.zeros_like(vector), torch.zeros_like(vector), 0, 0
    for _ in range(3):
        for slots in twin._streams[0].permutation(32).reshape(4, 8):
            cuts = zip(shapes, ends, strict=True)
            blocks = [vector[end - rows * cols : end].view(rows, cols) for (rows, cols), end in cuts]
            noise = (drawn[slots] - _net(blocks[:3], states[slots])) / blocks[3][0].exp()
            density = -0.5 * noise.square() - blocks[3][0] - 0.5 * np.log(2.0 * np.pi)
            ratio = (density.sum(dim=1) - log_pi[slots]).exp()
            gained = torch.minimum(ratio * advantage[slots], ratio.clamp(1 - clip, 1 + clip) * advantage[slots])
            error = _net(blocks[4:], states[slots])[:, 0] - target[slots]
            (gradient,) = torch.autograd.grad(error.square().mean() - gained.mean(), vector)
            step, mean, square = step + 1, 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient.square()
            root = (square / (1.0 - 0.999**step)).sqrt()
            vector.data -= left * lr * mean / (1.0 - 0.9**step) / (root + 1e-5)
            beyond += int(((ratio - 1.0).abs() > clip).sum())
    assert 10 < beyond < 86
    np.testing.assert_allclose(ppo._nets.vectors()[0, 0], vector.detach(), rtol=1e-9, atol=1e-12)


def test_advantages_are_standardised_over_the_batch_only_if_so_configured() -> None:
    batch = policy_batch(_ppo([3]), [1], N_OBS, M_ACT)
    whole, part, plain = (
        _ppo([3], standardise=over)._freeze(batch).advantage.astype(np.float64)
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
    frozen = _ppo([3], standardise="none")._freeze(batch)
    assert (frozen.advantage > 0.0).all()
    before = ppo._nets.vectors()
    ppo.learn(batch._replace(log_pi=frozen.log_pi - np.log(1.15)), left)
    assert (ppo._nets.vectors() != before).any() == moves


def test_the_step_size_falls_with_what_is_left_of_the_run() -> None:
    moved = []
    for left in (1.0, 1e-9):
        ppo = _ppo([3])
        before = ppo._nets.vectors()
        ppo.learn(policy_batch(ppo, [1], N_OBS, M_ACT), left)
        moved.append(np.abs(ppo._nets.vectors() - before).max())
    assert moved[0] > 1e-4
    assert moved[1] < 1e-8


def test_the_filter_standardises_with_what_it_has_seen_and_initial_weights_are_scaled() -> None:
    ppo = _ppo([3])
    batch = policy_batch(ppo, [1], N_OBS, M_ACT)
    ppo._freeze(batch)
    standardised = ppo._filter(batch.observation[:, 0])
    np.testing.assert_allclose(standardised.mean(axis=1), 0.0, atol=0.05)
    np.testing.assert_allclose(standardised.std(axis=1), 1.0, atol=0.05)
    assert np.abs(ppo._filter(batch.observation[:, 0] + 1e3)).max() == 5.0
    layers = split_layers(ppo._nets._layout, ppo._nets.vectors()[0, 0])
    norms = [float(np.sqrt(np.square(weight).sum(axis=0)).mean()) for weight, _ in layers]
    np.testing.assert_allclose(norms, [1.0, 1.0, 0.01, 0.0, 1.0, 1.0, 1.0], atol=1e-6)
    orthogonal = split_layers(ppo._nets._layout, _ppo([3], initial="orthogonal")._nets.vectors()[0, 0])
    weight = orthogonal[1][0]
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(6), atol=1e-5)


def test_without_a_bootstrap_a_time_limit_ends_the_return_as_a_terminal_state_does() -> None:
    targets = []
    for truncations in ("bootstrap", "terminate"):
        ppo = _ppo([3], truncations=truncations)
        batch = policy_batch(ppo, [1], N_OBS, M_ACT)
        assert (batch.truncated & ~batch.terminated).any()
        frozen = ppo._freeze(batch)
        targets.append(frozen.target[batch.truncated])
        np.testing.assert_allclose(frozen.target[batch.terminated], batch.reward[batch.terminated], rtol=1e-4)
    np.testing.assert_allclose(targets[1], batch.reward[batch.truncated], rtol=1e-4)
    assert np.abs(targets[0] - targets[1]).min() > 1e-4


def test_batches_of_another_size_and_sizes_that_do_not_fit_are_refused() -> None:
    ppo = _ppo([3])
    with pytest.raises(ValueError, match="expected \\(1, 1, 32\\)"):
        ppo.learn(policy_batch(ppo, [1], N_OBS, M_ACT, T=16), 1.0)
    with pytest.raises(ValueError, match="stream"):
        _ppo([])
    assert not batch_problems(PpoConfig())
    assert [at for at, _ in batch_problems(PpoConfig(steps=100, batch=64))] == ["batch"]
    assert [at for at, _ in batch_problems(PpoConfig(steps=30, batch=6, actors=4))] == ["batch", "steps", "batch"]
    assert not batch_problems(TrpoConfig(steps=64, batch=16, fisher_every=21))
    too_few = batch_problems(TrpoConfig(steps=64, batch=16, fisher_every=22))
    assert too_few == [("fisher_every", "expected at most 21, for four of the 64 steps, got 22")]
