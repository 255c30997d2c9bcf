from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.autograd import Nets, action_value_layout, drawn_vectors, normals, outputs, softsign_outputs, values
from onrig.learner.networks import mlp_layout, padded


def _nets(trials: int, copies: int = 1, *, lr: float = 1e-3) -> Nets:
    layout = action_value_layout(3, 2, (6, 5)) if copies > 1 else mlp_layout(3, 2, (6, 5))
    streams = [np.random.default_rng(seed) for seed in range(trials)]
    return Nets(layout, drawn_vectors(layout, streams, copies), lr=lr, dtype=torch.float64)


def _both(nets: Nets) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    state = nets.state("net")
    return state["online_net"], state["target_net"]


def test_leaves_and_gradients_are_views_of_two_flat_vectors() -> None:
    nets = _nets(3, 2)
    assert sum(leaf.numel() for leaf in nets.online) <= nets.flat.numel()
    before = [leaf.grad.data_ptr() for leaf in nets.online if leaf.grad is not None]
    x, action = torch.ones(3, 4, 4, dtype=torch.float64), torch.ones(3, 4, 4, dtype=torch.float64)
    nets.descend(values(nets.online, x, action).square().sum())
    assert [leaf.grad.data_ptr() for leaf in nets.online if leaf.grad is not None] == before
    flat = nets.flat.data_ptr()
    for leaf, frozen in zip(nets.online, nets.frozen, strict=True):
        assert leaf.is_leaf
        assert flat <= leaf.data_ptr() == frozen.data_ptr() < flat + 8 * nets.flat.numel()


def test_a_step_leaves_fixed_entries_and_padding_alone_and_moves_the_rest() -> None:
    nets = _nets(2, lr=0.1)
    layout = mlp_layout(3, 2, (6, 5))
    before, trainable = nets.flat.clone(), layout.trainable(2).bool()
    x = torch.tensor(np.random.default_rng(0).uniform(-1, 1, (2, 64, 4)))
    nets.descend((outputs(nets.online, x) - 1.0).square().sum())
    assert torch.equal(nets.flat[~trainable], before[~trainable])
    moved = nets.flat[trainable] != before[trainable]
    assert moved.double().mean() > 0.8  # all but those of units that are never on


def test_targets_follow_by_tau_and_get_no_gradient() -> None:
    nets = _nets(2, 2, lr=0.1)
    first = nets.state("net")
    assert np.array_equal(first["target_net"], first["online_net"])
    nets.descend(sum((block.sum() for block in nets.online), torch.zeros((), dtype=torch.float64)))
    nets.follow(0.25)
    before, online, target = (np.asarray(x, np.float64) for x in (first["online_net"], *_both(nets)))
    np.testing.assert_allclose(target, 0.75 * before + 0.25 * online, rtol=1e-12)
    assert not any(block.requires_grad for block in (*nets.target, *nets.frozen))


def test_copies_start_apart_and_trials_by_their_own_stream() -> None:
    vectors = drawn_vectors(action_value_layout(3, 2, (6, 5)), [np.random.default_rng(s) for s in (4, 5)], copies=2)
    # (3 + 2 + 1) 6 + (6 + 1) 5 + (5 + 1)
    assert vectors.shape == (2, 2, 77)
    assert not np.isclose(vectors[0, 0], vectors[0, 1]).any()
    alone = drawn_vectors(action_value_layout(3, 2, (6, 5)), [np.random.default_rng(5)], copies=2)
    assert np.array_equal(alone[0], vectors[1])
    assert 0.9 / np.sqrt(5) < np.abs(vectors[..., :36]).max() <= 1 / np.sqrt(5)


def test_a_copys_values_are_its_own_networks() -> None:
    nets = _nets(2, 2)
    x, action = torch.rand(2, 8, 4, dtype=torch.float64), torch.rand(2, 8, 4, dtype=torch.float64)
    both = values(nets.frozen, x, action)
    assert both.shape == (2, 2, 8, 1)
    for copy in range(2):
        alone = values([block[2 * copy : 2 * copy + 2] for block in nets.frozen], x, action)
        assert torch.equal(alone[0], both[copy])


@pytest.mark.parametrize("batch", [5, 8])
def test_noise_is_each_trials_own_and_none_in_the_padding(batch: int) -> None:
    def streams(*seeds: int) -> list[np.random.Generator]:
        return [np.random.default_rng(seed) for seed in seeds]

    together = normals(streams(1, 2), (3,), batch, 2, torch.float64)
    assert together.shape == (3, 2, padded(batch), 4)
    alone = streams(2)
    in_turn = torch.cat([normals(alone, (1,), batch, 2, torch.float64) for _ in range(3)])
    assert torch.equal(together[:, 1:], in_turn)
    assert torch.count_nonzero(together) == 3 * 2 * batch * 2


def test_softsign_units_and_their_derivatives_are_those_of_the_formula() -> None:
    layout, random = action_value_layout(3, 2, (5, 4)), torch.Generator().manual_seed(3)
    blocks = [
        torch.randn(2, layer.rows, layer.cols, dtype=torch.float64, generator=random).requires_grad_()
        for layer in layout.layers
    ]
    x = torch.randn(2, 6, layout.layers[0].rows, dtype=torch.float64, generator=random)

    def plain(*blocks: torch.Tensor) -> torch.Tensor:
        units = x
        for layer, block in zip(layout.layers[:-1], blocks[:-1], strict=True):
            pre = torch.bmm(units, block)
            bounded = pre / (1.0 + pre.abs())
            units = torch.where(torch.arange(layer.cols) == layer.outputs, pre, bounded)
        return torch.bmm(units, blocks[-1])

    ours, theirs = softsign_outputs(layout, blocks, x), plain(*blocks)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)
    seed = torch.randn(ours.shape, dtype=torch.float64, generator=random)
    for a, b in zip(torch.autograd.grad(ours, blocks, seed), torch.autograd.grad(theirs, blocks, seed), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
