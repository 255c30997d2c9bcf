"""Policy benchmark: evaluation time in a tick, and build time between ticks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.policy.admission import Refused
from onrig.runtime.policy.contract import DETERMINISTIC, GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.replay.learners.admission_terms import admission_limits
from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import admission_verdict, read_model
from onrig.tools.bench.report import (
    Report,
    check_at_most,
    checks_table,
    conclude,
    describe_machine,
    percentiles,
    rows_table,
)
from onrig.tools.bench.timing import disable_collector, measure
from onrig.tools.load import load, print_problems
from onrig.tools.progress import progress_for
from onrig.tools.terminal import complain, file_problem

_VERB: Final = "bench policy"
HIDDEN_LAYER_SIZES: Final = ("50,20", "64,64", "128,128", "400,300")
_N_LSTM_CELLS: Final = 32
_TIME_LIMIT_NS: Final = 300_000_000
"""Time limit for each kind of measurement in a round."""
_CACHE_FILLER_BYTES: Final = 32 << 20
"""Number of bytes read between two evaluations to flush the caches, which are smaller than this on small boards."""

Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
PolicyFunction = Callable[[Sequence[float]], object]


class Plan(NamedTuple):
    """Repetitions of the measurements."""

    rounds: int
    """Number of rounds over all subjects; several rounds make slow drift affect all subjects equally."""
    runs: int
    cold_runs: int
    builds: int


FULL: Final = Plan(10, 1000, 40, 5)
QUICK: Final = Plan(2, 200, 10, 2)


class MeasuredPolicy(NamedTuple):
    """Policy to be measured."""

    name: str
    model: bytes
    peers: dict[str, PolicyFunction]
    """The same network evaluated by other libraries."""


def benchmark(
    name: str,
    overrides: Sequence[str],
    files: Sequence[Path],
    hidden: Sequence[str],
    json: Path | None,
    *,
    quick: bool,
) -> int:
    """Measure policies from files, or random ones with the hidden layers ``hidden``.

    Print a table and checks, and return the exit code.
    """
    if problem := file_problem("json", json):
        return complain(_VERB, problem)
    sizes = []
    for text in hidden or HIDDEN_LAYER_SIZES:
        units = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
        if not all(1 <= n <= 4096 for n in units):
            return complain(_VERB, f"--hidden: expected numbers from 1 to 4096, separated by commas, got '{text}'")
        sizes.append(units)
    try:
        config = load(name, overrides)
    except ConfigError as error:
        return print_problems(error)
    policies = []
    for path in files:
        try:
            model = read_model(path, config)
        except OSError as error:
            return complain(_VERB, f"--file: '{path}' cannot be read: {error.strerror or error}")
        verdict = model if isinstance(model, Refused) else admission_verdict(model, config)
        if isinstance(model, Refused) or isinstance(verdict, Refused):
            assert isinstance(verdict, Refused)
            return complain(_VERB, f"--file: '{path}' is refused by the {verdict.stage} check: {verdict.reason}")
        policies.append(MeasuredPolicy(path.name, model, {}))
    if not policies or hidden:
        if find_spec("onnx") is None:
            return complain(_VERB, "onnx is not installed: pip install onnx, or use --file", ExitCode.PREFLIGHT)
        policies += random_policies(config, sizes)
    report = measure_policies(policies, QUICK if quick else FULL, config)
    conclude(report, [rows_table(report.rows), checks_table(report.checks)], json)
    return ExitCode.OK


def random_policies(config: RunConfig, sizes: Sequence[Sequence[int]]) -> list[MeasuredPolicy]:
    """Create random networks for the rig: deterministic ones of these sizes, a Gaussian one, and one of LSTM cells."""
    from onrig.learner.export import export_gaussian_policy, export_policy, export_recurrent_policy

    rng = np.random.default_rng(0)
    n, m = len(config.signals), len(config.rig.actuators)

    def contract(behaviour: str) -> PolicyContract:
        return contract_for(
            config.rig,
            config.rate_hz,
            policy_id=0,
            parent_run="bench",
            training_step=0,
            behaviour=behaviour,
            signals=config.signals,
        )

    def layers(widths: Sequence[tuple[int, int]]) -> Layers:
        return [(rng.normal(0.0, i**-0.5, (i, o)).astype(np.float32), np.zeros(o, np.float32)) for i, o in widths]

    policies = []
    for hidden in sizes:
        network = layers(list(itertools.pairwise((n, *hidden, m))))
        name = "-".join(map(str, hidden))
        policies.append(MeasuredPolicy(name, export_policy(network, contract(DETERMINISTIC)), _build_peers(network)))
    std = np.full(m, 0.2, np.float32)
    hidden = sizes[0]
    network = layers(list(itertools.pairwise((n, *hidden, m))))
    name = f"{'-'.join(map(str, hidden))}, Gaussian"
    policies.append(
        MeasuredPolicy(name, export_gaussian_policy(network, std, contract(GAUSSIAN), has_bounded_mean=True), {})
    )
    cells = layers([(n + _N_LSTM_CELLS, 4 * _N_LSTM_CELLS), (2 * _N_LSTM_CELLS, 4 * _N_LSTM_CELLS), (_N_LSTM_CELLS, m)])
    policies.append(
        MeasuredPolicy(
            f"LSTM {_N_LSTM_CELLS}-{_N_LSTM_CELLS}", export_recurrent_policy(cells, std, contract(GAUSSIAN)), {}
        )
    )
    return policies


def _build_peers(network: Layers) -> dict[str, PolicyFunction]:
    """Return functions that evaluate the network in numpy and, if it is installed, in torch."""

    def evaluate_in_numpy(observation: Sequence[float]) -> object:
        x = np.array(observation, np.float32)
        for weight, bias in network[:-1]:
            x = np.maximum(x @ weight + bias, 0.0)
        return np.tanh(x @ network[-1][0] + network[-1][1]).tolist()

    peers: dict[str, PolicyFunction] = {"numpy": evaluate_in_numpy}
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
        modules: list[Any] = []
        for weight, bias in network:
            linear = torch.nn.Linear(*weight.shape)
            linear.load_state_dict({"weight": torch.from_numpy(weight.T.copy()), "bias": torch.from_numpy(bias)})
            modules += [linear, torch.nn.ReLU()]
        module = torch.nn.Sequential(*modules[:-1], torch.nn.Tanh())

        def evaluate_in_torch(observation: Sequence[float]) -> object:
            with torch.inference_mode():
                return module(torch.tensor(observation)).tolist()

        peers["torch"] = evaluate_in_torch
    return peers


def measure_policies(policies: Sequence[MeasuredPolicy], plan: Plan, config: RunConfig) -> Report:
    """Time all policies in turn, and check Onrig's times against the limit that admission sets at the rig's rate."""
    cache_filler = np.ones(_CACHE_FILLER_BYTES // 8)
    subjects = []
    for policy in policies:
        session = PolicySession(policy.model)
        noise = 0 if session.noise is None else session.noise.shape[1]
        observation = (0.1,) * len(config.signals)
        subjects.append((policy, "onrig", partial(_evaluate, session.act, observation + (0.1,) * noise)))
        subjects += [
            (policy, peer, partial(_evaluate, function, observation)) for peer, function in policy.peers.items()
        ]
    times: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    disable_collector()
    progress = progress_for(plan.rounds * len(subjects))
    try:
        for _ in range(plan.rounds):
            for policy, library, run in subjects:
                progress.begin_step(f"{policy.name}, {library}")
                times[policy.name, library, "run"] += measure(run, range(plan.runs), _TIME_LIMIT_NS)
                cold_times = measure(run, range(plan.cold_runs), _TIME_LIMIT_NS, lambda i: cache_filler.sum())
                times[policy.name, library, "run, caches cold"] += cold_times
                if library == "onrig":
                    build = partial(_build, policy.model)
                    times[policy.name, library, "build"] += measure(build, range(plan.builds), _TIME_LIMIT_NS)
                progress.finish_step(1)
    finally:
        progress.close()
    rows = [
        percentiles(f"{name}: {measurement}", library, "us", np.asarray(durations) / 1e3)
        for (name, library, measurement), durations in times.items()
    ]
    budget_us = admission_limits(config).latency_budget_us
    checks = [
        check_at_most(f"{row.case}, at the median, at {config.rate_hz:g} Hz (us)", row.p50, budget_us)
        for row in rows
        if row.subject == "onrig" and row.case.endswith("cold")
    ]
    return Report(describe_machine(), 0.0, rows, checks)


def _evaluate(function: PolicyFunction, observation: Sequence[float], i: int) -> object:
    return function(observation)


def _build(model: bytes, i: int) -> object:
    return PolicySession(model)
