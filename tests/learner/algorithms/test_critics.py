"""The descendants of SAC, compared with plain torch in float64."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms.critics import exclusion_offsets
from onrig.learner.algorithms.sac import Sac
from onrig.learner.sac_settings import CrossqConfig, DroqConfig, RedqConfig, SacConfig
from onrig.learner.tape.operations import N_SEEDS
from onrig.runtime.memory.order.uniforms import restore_stream
from tests.learner.algorithms.torch_sac import CriticRandomness, TorchSac
from tests.learner.numpy_nets import minibatch_data
from tests.learner.reference import minibatches, select_minibatch, select_trial

pytest.importorskip("torch")
B, N, M = 8, 3, 2
SMALL: dict[str, Any] = {"hidden": (11, 7), "batch": B, "reward_scale": 0.1, "tau": 0.05, "lr": 1e-3}
SECTIONS: dict[str, SacConfig] = {
    "two of five critics": RedqConfig(**SMALL, critics=5, temperature=0.2, delay=3),
    "three of four critics, their minimum": SacConfig(**SMALL, critics=4, subset=3),
    "one critic": SacConfig(**SMALL, critics=1, subset=1),
    "layers, dropout": DroqConfig(**SMALL, dropout=0.2, delay=2),
    "layers": RedqConfig(**SMALL, critics=3, normalization="layer", delay=1),
    "batches": CrossqConfig(**SMALL | {"lr": 2e-3}, delay=2),
    "batches, subset": CrossqConfig(**SMALL, critics=3, actor_value="mean", delay=1),
    "layers without targets": SacConfig(**SMALL, normalization="layer", dropout=0.1, targets="none"),
    "dropout, subset": SacConfig(**SMALL, critics=3, dropout=0.3),
}
EACH_SECTION = pytest.mark.parametrize("name", SECTIONS)


def _sac(config: SacConfig, seeds: tuple[int, ...] = (3, 4), dtype: type[np.floating] = np.float32) -> Sac:
    return Sac(config, N, M, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _draw_randomness(config: SacConfig, stream: np.random.Generator) -> CriticRandomness:
    """Random numbers of the next update."""
    noise, options = stream.standard_normal((2, B, M)), config.resolved_options
    n, m = options.critics, options.subset
    subset = np.argsort(stream.random(n))[:m].tolist() if m < n else list(range(n))
    return CriticRandomness(noise, subset, math.floor(stream.random() * N_SEEDS) if options.dropout else 0.0)


@EACH_SECTION
def test_updates_equal_those_of_autograd(name: str) -> None:
    config = SECTIONS[name]
    sac = _sac(config, dtype=np.float64)
    # First some steps, so that targets differ from the critics and moments from 0.
    sac.update(minibatches(np.random.default_rng(5), (20, 2, B), N, M))
    state_before = sac.state()
    data = minibatches(np.random.default_rng(6), (3, 2, B), N, M)
    signals, state_after = sac.update(data), sac.state()
    assert signals.target is not None
    for trial in range(2):
        stream, reference = np.random.default_rng(), TorchSac(state_before, trial, config)
        restore_stream(stream, state_before["streams"][trial])
        for k in range(3):
            errors, target = reference.update(minibatch_data(data, k, trial), _draw_randomness(config, stream))
            np.testing.assert_allclose(signals.td[k, trial], errors.mean(0), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(signals.priority[k, trial], np.abs(errors).max(0), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(signals.target[k, trial], target, rtol=1e-9, atol=1e-12)
        for key, values in reference.p.items():
            np.testing.assert_allclose(state_after[key][trial], values.detach(), rtol=1e-9, atol=1e-9, err_msg=key)


@EACH_SECTION
def test_a_trial_updated_among_others_equals_the_trial_updated_alone_one_step_at_a_time_and_restored(name: str) -> None:
    config, data = SECTIONS[name], minibatches(np.random.default_rng(0), (7, 3, B), N, M)
    joint, single = _sac(config, (1, 2, 3)), _sac(config, (2,))
    td = joint.update(data).td
    for k in range(7):
        if k == 4:  # another one that continues from its state
            state, single = single.state(), _sac(config, (9,))
            single.restore(state)
        assert np.array_equal(single.update(select_minibatch(select_trial(data, 1), k)).td[0, 0], td[k, 1])
    for key, values in single.state().items():
        pair = (values[0], joint.state()[key][1]) if values.ndim else (values, joint.state()[key])
        assert np.array_equal(*pair), key


def test_every_subset_of_critics_is_as_likely_and_the_others_are_excluded() -> None:
    offsets = exclusion_offsets(np.random.default_rng(0).random((30_000, 4)), 2)
    assert np.isinf(offsets).sum(axis=1).tolist() == [2] * 30_000
    assert set(offsets[np.isfinite(offsets)].tolist()) == {0.0}
    _, counts = np.unique(np.isinf(offsets), axis=0, return_counts=True)
    assert len(counts) == 6
    np.testing.assert_allclose(counts, 5000, atol=5 * 65)  # 5 standard deviations


def test_a_subset_larger_than_the_number_of_critics_is_refused() -> None:
    (problem,) = SacConfig(critics=3, subset=4).problems()
    assert problem == ("subset", "expected at most the 3 critics, got 4")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"critics": 0}, RedqConfig)
