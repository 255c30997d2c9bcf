from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from onrig.learner.adam import Adam
from onrig.learner.networks import actor_layout

LAYOUT = actor_layout(3, 2, (7, 5))
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
