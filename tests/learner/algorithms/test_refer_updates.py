"""Updates of the algorithms under ReF-ER: compared with torch, among trials, and with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import traced
from onrig.learner.algorithms.acer import Acer
from onrig.learner.algorithms.refer_algorithm import ReferAlgorithm
from onrig.learner.tape.numpy_executor import NumpyExecutor
from tests.learner.algorithms import torch_updates
from tests.learner.algorithms.refer_algorithms import WINDOW, RandomMemory, make_algorithm
from tests.learner.algorithms.torch_updates import Adam, Loss, Tensors, apply_update

UPDATES = 20
TAU = 0.05


class UpdateCase(NamedTuple):
    """An algorithm, and its update in torch."""

    section: dict[str, Any]
    loss: Loss
    optimisers: dict[str, dict[str, Any]]
    """Networks, with the options of their Adam."""
    targets_by_network: Mapping[str, str] = MappingProxyType({})
    """Targets, and the networks that they track."""


VRACER = {"algorithm": "vracer", "hidden": [9, 7], "lr": 1e-2}
DDPG = {"actor_lr": 1e-2, "critic_lr": 1e-2, "critic_decay": 0.1, "tau": TAU}
ACER = {"algorithm": "acer", "hidden": [9, 7], "segment": 7, "samples": 3, "lr": 1e-2, "policy_lr": 1e-2, "tau": TAU}
DDPG_ADAM = {"beta1": 0.9, "beta2": 0.999, "adam_eps": 1e-8}
NETWORK: dict[str, dict[str, Any]] = {"network": {"lr": 1e-2}, "std": {"lr": 1e-2}}
CASES = {
    "ddpg": UpdateCase(
        DDPG | DDPG_ADAM,
        torch_updates.ddpg,
        {"actor": {"lr": 1e-2}, "critic": {"lr": 1e-2, "decay": 0.1}},
        {"target_actor": "actor", "target_critic": "critic"},
    ),
    "naf": UpdateCase(
        {"algorithm": "naf", "hidden": [9, 7], "lr": 1e-2, "tau": TAU},
        torch_updates.naf,
        {"network": {"lr": 1e-2}},
        {"target": "network"},
    ),
    "naf, beta on all": UpdateCase(
        {"algorithm": "naf", "hidden": [9], "lr": 1e-2, "tau": TAU, "beta_on": "all"},
        torch_updates.naf,
        {"network": {"lr": 1e-2}},
        {"target": "network"},
    ),
    "vracer": UpdateCase(VRACER, torch_updates.vracer, NETWORK),
    "vracer, quadratic": UpdateCase(VRACER | {"advantage": "quadratic"}, torch_updates.vracer, NETWORK),
    "vracer, gaussian": UpdateCase(VRACER | {"advantage": "gaussian"}, torch_updates.vracer, NETWORK),
    "vracer, recurrent": UpdateCase(
        {"algorithm": "vracer", "lr": 1e-2, "recurrent": {"units": [8, 4], "window": WINDOW}},
        torch_updates.vracer,
        NETWORK,
    ),
    "acer": UpdateCase(
        ACER,
        torch_updates.acer,
        {"policy": {"lr": 1e-2}, "std": {"lr": 1e-2}, "value": {"lr": 1e-2}, "advantage": {"lr": 1e-2}},
        {"average": "policy", "average_std": "std"},
    ),
}
EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
REFER_SETTINGS: dict[str, Any] = {"anneal": 1e-2}


def _tensors(fields: Any, row: NDArray[np.float64]) -> Tensors:
    return {name: torch.tensor(row[f.slice].reshape(f.shape)) for name, f in fields.items()}


def _segments(algorithm: Acer, records: NDArray[np.float64]) -> Tensors:
    """All steps of an update."""
    parts = [_tensors(algorithm._chunks.fields, record) for record in records]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@EACH_CASE
def test_twenty_updates_equal_torchs_in_float64(case: UpdateCase) -> None:
    memory = RandomMemory(1)
    memory.drawn[:] = memory.mean + 0.1 * memory.drawn
    algorithm = make_algorithm(memory, dict(case.section), dict(REFER_SETTINGS), dtype=np.float64)
    records: list[NDArray[np.float64]] = []
    name = "_learn" if isinstance(algorithm, Acer) else "_run"
    run = getattr(algorithm, name)

    def record_and_run(rows: Any, record: NDArray[np.float64], sections: Any) -> None:
        run(rows, record, sections)
        records.append(record[0].copy())

    setattr(algorithm, name, record_and_run)
    p: Tensors = {}
    for k in range(UPDATES):
        batches = memory.draws(UPDATES, 8, only_update=k)
        if k == 0:
            algorithm.update(batches)  # standardises, and draws nothing else from the streams
            p = _tensors(algorithm.layout.fields, algorithm.rows[0])
            adams = [_adam(p, net, options) for net, options in case.optimisers.items()]
            _reset(algorithm, p)
            records.clear()
        algorithm.update(batches)
    for record in records:
        _step(algorithm, case, p, adams, record)
    state = algorithm.state()
    for key in p:
        if key.split("/")[0] in (*case.optimisers, *case.targets_by_network):
            actual, expected = np.asarray(state[key], np.float64)[0], p[key].detach().numpy()
            assert np.abs(actual - expected).max() <= 1e-9 * max(1.0, np.abs(expected).max()), key


def _reset(algorithm: ReferAlgorithm, p: Tensors) -> None:
    """Reset the moments of the first update."""
    for name, field in algorithm.layout.fields.items():
        if name.startswith("adam/"):
            algorithm.values(field)[:] = 0.0


def _adam(p: Tensors, net: str, options: dict[str, Any]) -> Adam:
    return Adam([name for name in p if name.startswith(f"{net}/")], **options)


def _step(
    algorithm: ReferAlgorithm, case: UpdateCase, p: Tensors, adams: list[Adam], record: NDArray[np.float64]
) -> None:
    if isinstance(algorithm, Acer):
        g = _segments(algorithm, record)
        annealing = float(g["annealing"][0, 0])
    else:
        g = _tensors(algorithm._records.fields, record[0])  # type: ignore[attr-defined]
        annealing = float(g["rules"][0, 3])
        g["reward"] = g["reward"] * p["reward_scale"]
    for name in ("observation", "next_observation"):
        if name in g:
            g[name] = (g[name] - p["centre"]) / p["spread"]
    leaves = {name: p[name].detach().requires_grad_() for adam in adams for name in adam.names}
    loss, errors = case.loss(p | leaves, g, algorithm._config)
    reported_errors = g["advantage" if isinstance(algorithm, Acer) else "td"]
    if not isinstance(algorithm, Acer):
        assert float((errors.detach() - reported_errors).abs().max()) <= 1e-9 * max(
            1.0, float(reported_errors.abs().max())
        )
    apply_update(p, loss, leaves, adams, annealing)
    for target, net in case.targets_by_network.items():
        for name in [name for name in p if name.startswith(f"{target}/")]:
            p[name] = p[name] + TAU * (p[name.replace(target, net, 1)] - p[name])


@EACH_CASE
@pytest.mark.parametrize("trials", [2, 3, 7, 16])
def test_a_trial_among_any_number_equals_the_trial_alone(case: UpdateCase, trials: int) -> None:
    joint_memory, single_memory = RandomMemory(trials), RandomMemory(1, first_trial=trials - 1)
    joint = make_algorithm(joint_memory, dict(case.section), dict(REFER_SETTINGS))
    single = make_algorithm(single_memory, dict(case.section), dict(REFER_SETTINGS), first_trial=trials - 1)
    td = joint.update(joint_memory.draws(6, 8)).td
    assert np.array_equal(single.update(single_memory.draws(6, 8)).td[:, 0], td[:, -1])
    for name, values in single.state().items():
        if np.ndim(values):
            assert np.array_equal(values[0], joint.state()[name][-1]), name


@EACH_CASE
def test_numpy_matches_the_librarys_updates_up_to_rounding(case: UpdateCase, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = RandomMemory(1), RandomMemory(1)
    for memory in memories:
        memory.drawn[:] = memory.mean + 0.1 * memory.drawn
    native_algorithm = make_algorithm(memories[0], dict(case.section), dict(REFER_SETTINGS))
    monkeypatch.setattr(traced, "executor_for", lambda dtype: NumpyExecutor(np.dtype(dtype)))
    numpy_algorithm = make_algorithm(memories[1], dict(case.section), dict(REFER_SETTINGS))
    assert numpy_algorithm.executor.name == "numpy"
    native_td, numpy_td = (
        algorithm.update(memory.draws(10, 8)).td
        for algorithm, memory in zip((native_algorithm, numpy_algorithm), memories, strict=True)
    )
    np.testing.assert_allclose(native_td, numpy_td, rtol=0.0, atol=2e-4 * np.abs(native_td).max())
