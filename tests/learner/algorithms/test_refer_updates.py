"""Updates of the algorithms under ReF-ER: against torch, among trials, and by numpy."""

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
from tests.learner.algorithms.refer_algorithms import WINDOW, Memory, host
from tests.learner.algorithms.torch_updates import Adam, Loss, Tensors, updated

UPDATES = 20
TAU = 0.05


class Case(NamedTuple):
    """An algorithm, and how torch learns it."""

    section: dict[str, Any]
    loss: Loss
    learned: dict[str, dict[str, Any]]
    """Networks with the options of their Adam."""
    follows: Mapping[str, str] = MappingProxyType({})
    """Targets, and what they follow."""


VRACER = {"algorithm": "vracer", "hidden": [9, 7], "lr": 1e-2}
DDPG = {"actor_lr": 1e-2, "critic_lr": 1e-2, "critic_decay": 0.1, "tau": TAU}
ACER = {"algorithm": "acer", "hidden": [9, 7], "segment": 7, "samples": 3, "lr": 1e-2, "policy_lr": 1e-2, "tau": TAU}
OF_DDPG = {"beta1": 0.9, "beta2": 0.999, "adam_eps": 1e-8}
NETWORK: dict[str, dict[str, Any]] = {"network": {"lr": 1e-2}, "std": {"lr": 1e-2}}
CASES = {
    "ddpg": Case(
        DDPG | OF_DDPG,
        torch_updates.ddpg,
        {"actor": {"lr": 1e-2}, "critic": {"lr": 1e-2, "decay": 0.1}},
        {"target_actor": "actor", "target_critic": "critic"},
    ),
    "naf": Case(
        {"algorithm": "naf", "hidden": [9, 7], "lr": 1e-2, "tau": TAU},
        torch_updates.naf,
        {"network": {"lr": 1e-2}},
        {"target": "network"},
    ),
    "naf, beta on all": Case(
        {"algorithm": "naf", "hidden": [9], "lr": 1e-2, "tau": TAU, "beta_on": "all"},
        torch_updates.naf,
        {"network": {"lr": 1e-2}},
        {"target": "network"},
    ),
    "vracer": Case(VRACER, torch_updates.vracer, NETWORK),
    "vracer, quadratic": Case(VRACER | {"advantage": "quadratic"}, torch_updates.vracer, NETWORK),
    "vracer, gaussian": Case(VRACER | {"advantage": "gaussian"}, torch_updates.vracer, NETWORK),
    "vracer, recurrent": Case(
        {"algorithm": "vracer", "lr": 1e-2, "recurrent": {"units": [8, 4], "window": WINDOW}},
        torch_updates.vracer,
        NETWORK,
    ),
    "acer": Case(
        ACER,
        torch_updates.acer,
        {"policy": {"lr": 1e-2}, "std": {"lr": 1e-2}, "value": {"lr": 1e-2}, "advantage": {"lr": 1e-2}},
        {"average": "policy", "average_std": "std"},
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
REFER: dict[str, Any] = {"anneal": 1e-2}


def _tensors(fields: Any, row: NDArray[np.float64]) -> Tensors:
    return {name: torch.tensor(row[f.slice].reshape(f.shape)) for name, f in fields.items()}


def _pieces(made: Acer, records: NDArray[np.float64]) -> Tensors:
    """All steps of an update."""
    parts = [_tensors(made._chunks.fields, record) for record in records]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@EACH
def test_twenty_updates_are_those_of_torch_in_float64(case: Case) -> None:
    memory = Memory(1)
    memory.drawn[:] = memory.mean + 0.1 * memory.drawn
    made = host(memory, dict(case.section), dict(REFER), dtype=np.float64)
    records: list[NDArray[np.float64]] = []
    name = "_learn" if isinstance(made, Acer) else "_run"
    run = getattr(made, name)

    def noted(rows: Any, record: NDArray[np.float64], sections: Any) -> None:
        run(rows, record, sections)
        records.append(record[0].copy())

    setattr(made, name, noted)
    p: Tensors = {}
    for k in range(UPDATES):
        batches = memory.draws(UPDATES, 8, only=k)
        if k == 0:
            made.update(batches)  # standardises, and draws nothing else from the streams
            p = _tensors(made.layout.fields, made.rows[0])
            adams = [_adam(p, net, options) for net, options in case.learned.items()]
            _reset(made, p)
            records.clear()
        made.update(batches)
    for record in records:
        _step(made, case, p, adams, record)
    state = made.state()
    for key in p:
        if key.split("/")[0] in (*case.learned, *case.follows):
            got, wanted = np.asarray(state[key], np.float64)[0], p[key].detach().numpy()
            assert np.abs(got - wanted).max() <= 1e-9 * max(1.0, np.abs(wanted).max()), key


def _reset(made: ReferAlgorithm, p: Tensors) -> None:
    """Forget the moments of the first update."""
    for name, field in made.layout.fields.items():
        if name.startswith("adam/"):
            made.values(field)[:] = 0.0


def _adam(p: Tensors, net: str, options: dict[str, Any]) -> Adam:
    return Adam([name for name in p if name.startswith(f"{net}/")], **options)


def _step(made: ReferAlgorithm, case: Case, p: Tensors, adams: list[Adam], record: NDArray[np.float64]) -> None:
    if isinstance(made, Acer):
        g = _pieces(made, record)
        annealing = float(g["annealing"][0, 0])
    else:
        g = _tensors(made._records.fields, record[0])  # type: ignore[attr-defined]
        annealing = float(g["rules"][0, 3])
        g["reward"] = g["reward"] * p["reward_scale"]
    for name in ("observation", "next_observation"):
        if name in g:
            g[name] = (g[name] - p["centre"]) / p["spread"]
    leaves = {name: p[name].detach().requires_grad_() for adam in adams for name in adam.names}
    loss, told = case.loss(p | leaves, g, made._config)
    reported = g["advantage" if isinstance(made, Acer) else "td"]
    if not isinstance(made, Acer):
        assert float((told.detach() - reported).abs().max()) <= 1e-9 * max(1.0, float(reported.abs().max()))
    updated(p, loss, leaves, adams, annealing)
    for target, net in case.follows.items():
        for name in [name for name in p if name.startswith(f"{target}/")]:
            p[name] = p[name] + TAU * (p[name.replace(target, net, 1)] - p[name])


@EACH
@pytest.mark.parametrize("trials", [2, 3, 7, 16])
def test_a_trial_among_any_number_gives_what_it_gives_alone(case: Case, trials: int) -> None:
    together, alone = Memory(trials), Memory(1, first=trials - 1)
    among = host(together, dict(case.section), dict(REFER))
    single = host(alone, dict(case.section), dict(REFER), first=trials - 1)
    td = among.update(together.draws(6, 8)).td
    assert np.array_equal(single.update(alone.draws(6, 8)).td[:, 0], td[:, -1])
    for name, values in single.state().items():
        if np.ndim(values):
            assert np.array_equal(values[0], among.state()[name][-1]), name


@EACH
def test_numpy_does_the_updates_of_the_library_up_to_rounding(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = Memory(1), Memory(1)
    for memory in memories:
        memory.drawn[:] = memory.mean + 0.1 * memory.drawn
    native = host(memories[0], dict(case.section), dict(REFER))
    monkeypatch.setattr(traced, "executor_for", lambda dtype: NumpyExecutor(np.dtype(dtype)))
    plain = host(memories[1], dict(case.section), dict(REFER))
    assert plain.executor.name == "numpy"
    first, second = (
        made.update(memory.draws(10, 8)).td for made, memory in zip((native, plain), memories, strict=True)
    )
    np.testing.assert_allclose(first, second, rtol=0.0, atol=2e-4 * np.abs(first).max())
