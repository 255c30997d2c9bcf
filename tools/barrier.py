"""Computation and test of a sampled barrier (``onrig safety CONFIG --barrier``)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.barrier_file import BarrierTest, Header, Values, content_digest, encode_barrier, write_barrier
from onrig.runtime.safety.promise import format_bound
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import sampled_box
from onrig.sim.barrier.table import compute
from onrig.tools.load import load_without_table, print_problems
from onrig.tools.progress import show_progress
from onrig.tools.safety_case.campaign import table
from onrig.tools.safety_case.sampled import Outcome, run_sampled
from onrig.tools.terminal import complain, file_problem

CONFIDENCE: Final = 0.95
_N_WORKERS: Final = 2


def build_barrier(name: str, overrides: Sequence[str], n_plants: int, n_tests: int, seed: int) -> int:
    """Compute and test a barrier table, write it to its file atomically, and return the exit code."""
    try:
        config = load_without_table(name, overrides)
    except ConfigError as error:
        return print_problems(error)
    box = sampled_box(config)
    if box is None:
        return complain("safety", f"{name}: --barrier needs limits.predicted of kind 'sampled'")
    path = Path(box.table)
    if problem := file_problem("barrier", path):
        return complain("safety", problem)
    workers = min(_N_WORKERS, len(os.sched_getaffinity(0)))
    try:
        with show_progress(f"{name}, table", 1.0) as report_progress:
            header, values = compute(config, box, n_plants, seed, report_progress, workers)
        with show_progress(f"{name}, test", n_tests) as report:
            tested_header, outcome = measure_breaches(
                config, box, header, values, n_tests, seed + 1, lambda n: report(float(n))
            )
        digest = write_barrier(path, tested_header, values)
    except (ValueError, OSError) as error:
        return complain("safety", f"{name}: {error}")
    print(table(outcome.campaign))
    print(f"{path}: {describe(tested_header)}; sha256 {digest[:12]}")
    return ExitCode.OK


def measure_breaches(
    config: RunConfig,
    box: SampledBox,
    header: Header,
    values: Values,
    episodes: int,
    seed: int,
    progress: object = None,
) -> tuple[Header, Outcome]:
    """Test a table on newly drawn plants, and return its header with the test result filled in, and the outcome."""
    with tempfile.TemporaryDirectory() as folder:
        data = encode_barrier(header, values)
        file = Path(folder) / "table"
        file.write_bytes(data)
        tested_box = msgspec.structs.replace(box, table=str(file), sha256=content_digest(data))
        limits = msgspec.structs.replace(config.limits, predicted=tested_box)
        report = progress if callable(progress) else lambda n_done: None
        outcome = run_sampled(msgspec.structs.replace(config, limits=limits), tested_box, episodes, seed, report)
    rate = upper_bound(outcome.breaches, episodes, CONFIDENCE)
    max_unexplained = float(np.max(outcome.outside))
    return msgspec.structs.replace(
        header, tested=BarrierTest(episodes, outcome.breaches, rate, CONFIDENCE, max_unexplained)
    ), outcome


def upper_bound(breaches: int, episodes: int, confidence: float) -> float:
    """Return the one-sided upper bound on the breach rate (Clopper and Pearson 1934): about 3 / ``episodes`` at 95 % if
    there was no breach.
    """
    low, high = breaches / episodes, 1.0
    for _ in range(60):
        midpoint = 0.5 * (low + high)
        low, high = (
            (midpoint, high) if _binomial_cdf(breaches, episodes, midpoint) > 1.0 - confidence else (low, midpoint)
        )
    return high


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most k successes in n trials, each with success probability p."""
    if not 0.0 < p < 1.0:
        return 1.0 if p <= 0.0 or k >= n else 0.0
    log_sums = np.cumsum(np.log(np.arange(1, n + 1)))
    log_factorials = np.concatenate([[0.0], log_sums])
    i = np.arange(k + 1)
    terms = log_factorials[n] - log_factorials[i] - log_factorials[n - i] + i * np.log(p) + (n - i) * np.log1p(-p)
    return float(np.exp(terms).sum())


def describe(header: Header) -> str:
    """Describe a table in one line."""
    test_result, rate_text = header.tested, ""
    if test_result is not None:
        rate_text = f"; {test_result.breaches} breaches in {test_result.plants} hostile episodes on other plants: "
        rate_text += format_bound(test_result)
    grid_text = f"{header.points} grid states, {header.plants} plants simulated for {header.horizon_s:g} s"
    return f"{grid_text}, slack {header.slack:.2g}{rate_text}"
