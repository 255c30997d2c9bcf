"""Complete updates of every algorithm by each executor, and the choice of torch."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner import main
from onrig.learner.algorithms import Minibatches, algorithm_for, traced
from onrig.learner.settings import LearnerSettings
from onrig.learner.tape.executor import Executor
from onrig.learner.tape.executors import ExecutorError, executor_for
from onrig.learner.tape.numpy_executor import NumpyExecutor
from onrig.learner.tape.operations import CODES, OPERATIONS
from onrig.learner.tape.program import Program
from onrig.learner.tape.spaces import Layout
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from tests.learner.algorithms.policy_batches import make_policy_batch
from tests.learner.algorithms.refer_algorithms import RandomMemory, make_algorithm
from tests.learner.tape.evaluation import executors, library_executors
from tests.learner.tape.lists import draw_lists

UPDATES, BATCH, N, M = 5, 9, 4, 3
STREAMS = 3, 4
HIDDEN = {"hidden": [9, 7]}
OFF_POLICY: dict[str, dict[str, Any]] = {
    "sac": HIDDEN,
    "droq": HIDDEN | {"delay": 2},
    "crossq": HIDDEN | {"delay": 2},
    "td3": HIDDEN,
    "dqn": {},
    "rainbow": {},
}
HOSTED: dict[str, dict[str, Any]] = {
    "ddpg": {"actor_lr": 1e-2},
    "naf": HIDDEN,
    "vracer": HIDDEN,
    "vracer, quadratic": HIDDEN | {"advantage": "quadratic"},
    "vracer, recurrent": {"recurrent": {"units": [8, 4], "window": 4}},
    "acer": HIDDEN | {"segment": 7, "samples": 3},
}
ON_POLICY: dict[str, dict[str, Any]] = {
    "ppo": HIDDEN | {"steps": 32, "batch": 8, "epochs": 2},
    "trpo": HIDDEN | {"steps": 32, "batch": 8},
}
EACH_ALGORITHM = pytest.mark.parametrize("name", [*OFF_POLICY, *HOSTED, *ON_POLICY])


def _make_algorithm(name: str, section: dict[str, Any], m: int = M) -> Any:
    settings = msgspec.convert({"algorithm": name, name: section}, LearnerSettings)
    return algorithm_for(settings, N, m, [np.random.default_rng(seed) for seed in STREAMS])


def _minibatches(m: int) -> Minibatches:
    rng = np.random.default_rng(2)

    def draw_columns(*columns: int) -> NDArray[np.float32]:
        return rng.uniform(-1.0, 1.0, (UPDATES, 2, BATCH, *columns)).astype(np.float32)

    return Minibatches(draw_columns(N), draw_columns(m), draw_columns(), draw_columns(N), draw_columns() > 0.7)


def _learn(name: str, executor: Executor, *, has_diverged: bool = False) -> dict[str, NDArray[Any]]:
    """State of two trials after a few updates; ``has_diverged``: the first of them has observed NaN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced, "executor_for", lambda dtype: executor)
        if name in OFF_POLICY:
            m = 1 if name in ("dqn", "rainbow") else M
            algorithm, batches = _make_algorithm(name, OFF_POLICY[name] | {"batch": BATCH}, m), _minibatches(m)
            if has_diverged:
                batches.observation[:, 0] = np.nan
            algorithm.update(batches)
        elif name in ON_POLICY:
            algorithm = _make_algorithm(name, ON_POLICY[name])
            for i in range(2):
                batch = make_policy_batch(algorithm, [2 * i, 2 * i + 1], N, M, 1, 32)
                if has_diverged:
                    batch.observation[0] = np.nan
                algorithm.learn(batch, 1.0)
        else:
            memory = RandomMemory(2)
            memory.drawn[:] = memory.mean + 0.1 * memory.drawn
            if has_diverged:
                memory.observation[0] = np.nan
            algorithm = make_algorithm(memory, {"algorithm": name.split(",")[0], **HOSTED[name]}, {"anneal": 1e-2})
            algorithm.update(memory.draws(UPDATES, 8))
    state: dict[str, NDArray[Any]] = algorithm.state()
    return state


def _compare(name: str, executor: Executor, tolerance: float) -> None:
    """Compare updates with those by numpy; the tolerance is relative to the largest value of a field."""
    expected, actual = (_learn(name, executor_used) for executor_used in (NumpyExecutor(executor.dtype), executor))
    assert expected.keys() == actual.keys()
    fields = [key for key, values in expected.items() if values.dtype == executor.dtype]
    assert len(fields) >= 4
    for key in fields:
        assert np.isfinite(expected[key]).all()
        scale = max(1.0, float(np.abs(expected[key]).max()))
        np.testing.assert_allclose(actual[key], expected[key], rtol=0.0, atol=tolerance * scale, err_msg=key)


@EACH_ALGORITHM
@pytest.mark.parametrize("executor", executors(np.float64)[1:], ids=lambda executor: executor.name)
def test_updates_equal_numpys_in_double_precision(name: str, executor: Executor) -> None:
    _compare(name, executor, 1e-9)


@EACH_ALGORITHM
@pytest.mark.parametrize("executor", library_executors(np.float32), ids=lambda executor: executor.name)
def test_updates_of_the_library_equal_numpys_in_single_precision(name: str, executor: Executor) -> None:
    _compare(name, executor, 1e-3 if name == "acer" else 1e-5)  # ACER divides by densities of drawn actions


@EACH_ALGORITHM
@pytest.mark.parametrize("executor", executors(np.float32), ids=lambda executor: executor.name)
def test_nan_stays_in_its_trial(name: str, executor: Executor) -> None:
    with_nan, without_nan = _learn(name, executor, has_diverged=True), _learn(name, executor)
    fields = [key for key, values in without_nan.items() if values.dtype == np.float32 and len(values) == 2]
    assert len(fields) >= 4
    assert any(np.isnan(with_nan[key][0]).any() for key in fields)
    for key in fields:
        np.testing.assert_array_equal(with_nan[key][1], without_nan[key][1], err_msg=key)


def _run_operations(executor: Executor, operations: NDArray[np.void], sizes: NDArray[np.int64]) -> NDArray[np.floating]:
    """State and record after a list of operations on random numbers."""
    state, record = Layout(), Layout()
    state.add("all", 1, int(sizes[0]))
    record.add("all", 1, int(sizes[1]))
    program = Program(operations, state, record, int(sizes[2]), ())
    rng = np.random.default_rng(int(sizes.sum()))
    low = 0.1 if operations[1]["code"] == CODES["adam"] else -2.0  # squares and a count are among its operands
    rows, records = (
        rng.uniform(low, 2.0, size).astype(executor.dtype) for size in ((1, state.size), (1, 1, record.size))
    )
    executor.bind(program)(rows, records, None)
    return np.concatenate((rows[0], records[0, 0]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_random_operations_agree_across_executors(dtype: type[np.floating], tolerance: float) -> None:
    lists = draw_lists(np.random.default_rng(8), 600, 2)
    reference, *other_executors = executors(dtype)
    for operations, sizes in zip(lists.operations, lists.sizes, strict=True):
        expected = _run_operations(reference, operations, sizes)
        for executor in other_executors:
            actual, name = _run_operations(executor, operations, sizes), OPERATIONS[int(operations[1]["code"])].name
            scale = max(1.0, float(np.nanmax(np.abs(expected))))
            np.testing.assert_allclose(
                actual, expected, 8.0 * tolerance, scale * tolerance, err_msg=f"{name}, {executor.name}"
            )


def test_the_environment_chooses_torch_and_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    assert not executor_for(np.float32).name.startswith("torch")
    monkeypatch.setenv("ONRIG_TORCH", "cpu")
    executor = executor_for(np.float32)
    assert executor.name == "torch cpu"
    assert executor.dtype == np.float32
    monkeypatch.setenv("ONRIG_TORCH", "")
    assert not executor_for(np.float32).name.startswith("torch")


def test_a_device_that_torch_does_not_have_is_reported_in_one_line_before_the_learner_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("ONRIG_TORCH", "abacus")
    with pytest.raises(ExecutorError, match=r"ONRIG_TORCH=abacus: .*abacus"):
        executor_for(np.float32)
    monkeypatch.setattr(main, "load_started", lambda path: RunConfig)
    monkeypatch.setattr(main, "die_with_parent", lambda: None)
    assert main.main(["run.yaml", "ipc://nowhere"]) == ExitCode.CONFIGURATION
    output = "".join(capfd.readouterr())
    assert "ONRIG_TORCH=abacus" in output
    assert len(output.splitlines()) == 1
