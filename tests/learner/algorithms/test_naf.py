from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onrig.learner.algorithms.heads import quadratic
from onrig.learner.algorithms.naf import Naf
from onrig.learner.tape.array import Array
from onrig.learner.tape.trace import Tape
from tests.learner.algorithms.refer_algorithms import RandomMemory, make_algorithm


def _naf(memory: RandomMemory, refer: dict[str, Any] | None = None, **section: Any) -> Naf:
    algorithm = make_algorithm(memory, {"algorithm": "naf", "hidden": [9, 7], **section}, refer)
    assert isinstance(algorithm, Naf)
    return algorithm


def test_the_error_uses_the_value_of_the_successor_which_is_zero_after_a_terminal_state() -> None:
    memory = RandomMemory(2)
    memory.drawn *= 2.0
    memory.overridden[:, ::3] = True
    naf = _naf(memory, gamma=0.5)
    naf.update(memory.draws(30, 8))
    batches = memory.draws(1, 8)
    assert batches.behaviour is not None
    acted_actions = np.where(batches.behaviour.overridden[0][..., None], batches.action[0], batches.behaviour.drawn[0])
    assert (np.abs(acted_actions) > 1.0).any()

    def value_of(tape: Tape, x: Array, action: Array | None) -> Array:
        value, mean, lower_triangle = naf._split_outputs(naf._inputs(x))
        assert action is not None
        return value + quadratic(action, mean, lower_triangle)

    q = naf.forward(value_of, 3, 1, 2)(batches.observation[0], acted_actions)[..., 0]
    target_value = naf.forward(lambda tape, x, _: naf._target(naf._inputs(x)).columns(0, 1), 3, 1)
    next_value = target_value(batches.next_observation[0])[..., 0]
    target = batches.reward[0] + 0.5 * np.where(batches.terminated[0], 0.0, next_value)
    signals = naf.update(batches)
    assert signals.target is not None
    np.testing.assert_allclose(signals.target[0], target, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signals.td[0], target - q, rtol=1e-4, atol=1e-5)


def test_beta_scales_the_gradient_of_the_mean_or_all_of_it() -> None:
    """With beta at 0, values are learned only in the authors' interpretation."""
    mean_moved = {}
    for beta_on in ("mean", "all"):
        memory = RandomMemory(1)
        naf = _naf(memory, {"standardise": False, "far_share": 0.0}, beta_on=beta_on, lr=1e-2)
        memory.drawn[:] = memory.mean  # near; only the policy's distance changes the hidden layers
        memory.notes.on_write(0, np.arange(0))
        layer_before = naf._network.layers(naf.rows[0])[-1]
        naf.update(memory.draws(1, 8))
        layer_after = naf._network.layers(naf.rows[0])[-1]
        output = np.concatenate([np.atleast_2d(b - a) for a, b in zip(layer_before, layer_after, strict=True)])
        mean_moved[beta_on] = np.abs(output).max(axis=0)
    assert (mean_moved["mean"] > 0.0).all()
    assert mean_moved["all"][0] == 0.0
    assert (mean_moved["all"][1:3] > 0.0).all()
    assert (mean_moved["all"][3:] == 0.0).all()


@pytest.mark.parametrize("rules", ["both", "none"])
def test_it_learns_the_best_action_of_a_quadratic_reward(rules: str) -> None:
    memory = RandomMemory(1, has_terminations=True)
    memory.terminated[:] = True
    memory.mean[:] = 0.0
    memory.drawn[:] = np.random.default_rng(0).uniform(-1, 1, memory.drawn.shape)
    memory.std[:] = 0.6
    memory.reward[:] = -((memory.drawn - 0.3) ** 2).sum(axis=2)
    naf = _naf(memory, {"rules": rules, "standardise": False, "std": 0.6}, lr=1e-2, batch=16)
    naf.update(memory.draws(300, 16))
    mean, _ = naf.distribution(memory.observation)
    assert abs(float(mean.mean()) - 0.3) < 0.08


def test_if_the_best_action_is_at_a_limit_the_value_is_that_of_the_limit() -> None:
    """The mean is unbounded; the environment clips actions drawn around it."""
    memory = RandomMemory(1, has_terminations=False)
    memory.observation[:] = memory.next_observation[:] = 0.5
    memory.mean[:] = 0.0
    memory.drawn[:] = np.random.default_rng(0).uniform(-1.0, 2.0, memory.drawn.shape)
    memory.reward[:] = np.clip(memory.drawn, -1.0, 1.0).sum(axis=2)
    naf = _naf(memory, {"rules": "none", "standardise": False}, lr=1e-2, batch=32, gamma=0.5, tau=0.05)
    naf.update(memory.draws(1500, 32))
    mean = naf.distribution(memory.observation)[0]
    value = naf.forward(lambda tape, x, _: naf._split_outputs(naf._inputs(x))[0], 3, 1)(memory.observation)
    assert (mean > 1.0).all()
    assert abs(float(value.mean()) - 4.0) < 0.5
