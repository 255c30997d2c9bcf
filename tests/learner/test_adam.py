from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from onrig.learner.adam import Adam, AdamByTrial, Moments, Rates, fused_step, has_fused_step, plain_step
from onrig.learner.networks import mlp_layout

LAYOUT = mlp_layout(3, 2, (7, 5))
TRIALS = 2


def _flat(rng: np.random.Generator, *, constant: float = 1.0) -> torch.Tensor:
    flat = torch.zeros(LAYOUT.flat_size(TRIALS), dtype=torch.float64)
    LAYOUT.write(flat, rng.standard_normal((TRIALS, LAYOUT.n_parameters)), TRIALS, constant=constant)
    return flat


@pytest.mark.parametrize(("decay", "coupled"), [(0.0, False), (0.3, False), (0.3, True)])
def test_steps_follow_the_published_equations_with_decay_on_weights_only(decay: float, coupled: bool) -> None:
    lr, beta1, beta2, eps = 1e-2, 0.8, 0.99, 1e-6
    rng = np.random.default_rng(1)
    parameters = _flat(rng)
    adam = Adam(parameters, LAYOUT, TRIALS, lr=lr, betas=(beta1, beta2), eps=eps, decay=decay, coupled=coupled)
    theta, decays = parameters.numpy().copy(), LAYOUT.weights(TRIALS).numpy()
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t in range(1, 51):
        gradient = _flat(rng, constant=0.0)
        g = gradient.numpy().copy()
        adam.step(gradient)
        if coupled:
            g += decay * decays * theta
        else:
            theta -= lr * decay * decays * theta
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        theta -= lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    np.testing.assert_allclose(parameters.numpy(), theta, rtol=1e-11, atol=1e-13)


def test_a_restored_optimiser_takes_the_same_steps() -> None:
    rng = np.random.default_rng(2)
    parameters = _flat(rng).float()
    adam = Adam(parameters, LAYOUT, TRIALS, lr=1e-2, decay=0.1)
    gradients = [_flat(rng, constant=0.0).float() for _ in range(6)]
    for gradient in gradients[:3]:
        adam.step(gradient)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **adam.state())
    other_parameters = parameters.clone()
    other = Adam(other_parameters, LAYOUT, TRIALS, lr=1e-2, decay=0.1)
    file.seek(0)
    with np.load(file, allow_pickle=False) as state:
        other.restore(state)
    for gradient in gradients[3:]:
        adam.step(gradient)
        other.step(gradient)
    assert torch.equal(parameters, other_parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_and_the_plain_step_agree_within_rounding(dtype: torch.dtype) -> None:
    if not has_fused_step():
        pytest.skip("this torch has no fused kernel that we know")
    rng = np.random.default_rng(3)
    rates = Rates(1e-2, 0.9, 0.999, 1e-8)
    at, gone, mean, square = torch.tensor(rng.standard_normal((4, 64)), dtype=dtype)
    fused, plain = (
        Moments(at.clone(), gone.clone(), mean.clone(), square.square(), torch.zeros((), dtype=torch.float32))
        for _ in range(2)
    )
    for _ in range(50):
        gradient = torch.tensor(rng.standard_normal(64), dtype=dtype)
        for moments, step in ((fused, fused_step), (plain, plain_step)):
            moments.gradient.copy_(gradient)
            moments.step.add_(1.0)
            step(moments, rates)()
    tolerance = 1e-5 if dtype is torch.float32 else 1e-6  # the fused kernel reads the count as float32
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_without_the_kernel_the_plain_step_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    has_fused_step.cache_clear()
    monkeypatch.delattr(torch, "_fused_adamw_")
    try:
        assert not has_fused_step()
        parameters = _flat(np.random.default_rng(4)).float()
        before = parameters.clone()
        Adam(parameters, LAYOUT, TRIALS, lr=1e-2).step(torch.ones_like(parameters))
        assert torch.allclose(before - parameters, torch.full_like(before, 1e-2), rtol=1e-4)
    finally:
        has_fused_step.cache_clear()


def test_networks_stepped_apart_move_as_they_do_alone_and_the_others_stay() -> None:
    rng = np.random.default_rng(2)
    start, gradients = _flat(rng), [_flat(rng, constant=0.0) for _ in range(6)]
    together = start.clone()
    adam = AdamByTrial(together, LAYOUT, TRIALS, lr=1e-2)
    order = [[0], [0, 1], [1], [], [0], [1]]
    for gradient, nets in zip(gradients, order, strict=True):
        adam.step(gradient, nets)
    for net in range(TRIALS):
        alone = start.clone()
        reference = Adam(alone, LAYOUT, TRIALS, lr=1e-2)
        for gradient, nets in zip(gradients, order, strict=True):
            if net in nets:
                reference.step(gradient)
        moved, expected = (LAYOUT.read(flat, TRIALS)[net] for flat in (together, alone))
        np.testing.assert_allclose(moved, expected, rtol=1e-7)
    assert adam.state()["step"].tolist() == [3.0, 3.0]

    again = AdamByTrial(together.clone(), LAYOUT, TRIALS, lr=1e-2)
    again.restore(adam.state())
    for name, value in again.state().items():
        np.testing.assert_array_equal(value, adam.state()[name])


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_annealed_steps_are_those_of_a_smaller_rate(decay: float) -> None:
    rng = np.random.default_rng(3)
    start, gradients = _flat(rng), [_flat(rng, constant=0.0) for _ in range(3)]
    moved = []
    for lr, factor in ((1e-2, 0.25), (0.25e-2, 1.0)):
        moved.append(start.clone())
        adam = Adam(moved[-1], LAYOUT, TRIALS, lr=lr, decay=decay)
        for gradient in gradients:
            adam.anneal(factor)
            adam.step(gradient.clone())
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], start)
