"""Link benchmark: policy latency and experience throughput between two processes."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from onrig.tools.bench.link.measure import (
    AdmissionTimes,
    Endpoint,
    Latency,
    Snapshot,
    admission,
    latency,
    payload_bytes,
    replication_rate,
    snapshot,
    wire_bytes,
)
from onrig.tools.bench.link.rig_end import RigEndProcess
from onrig.tools.bench.report import (
    Check,
    Report,
    Row,
    check_at_most,
    checks_table,
    conclude,
    describe_machine,
    rows_table,
)
from onrig.tools.bench.timing import quantiles_us
from onrig.tools.progress import progress_for
from onrig.tools.terminal import complain, file_problem

_VERB: Final = "bench link"
STEP_TO_RIG_MS: Final = 20.0
ADMISSION_MS: Final = 5.0
_MAX_REPLICATED: Final = 100_000


class Plan(NamedTuple):
    """Numbers of policies, experiences and rounds to measure."""

    n_policies: int
    n_experiences: int
    """Experiences in the mirrored memory."""
    n_rounds: int


FULL: Final = Plan(200, 1_000_000, 3)
QUICK: Final = Plan(40, 100_000, 1)


class EndpointResults(NamedTuple):
    """Results of one endpoint."""

    latency: Latency
    n_refused: int
    snapshots: Sequence[Snapshot]
    replication_rates: Sequence[float]
    wire_bytes: float


def benchmark(json: Path | None, *, quick: bool) -> int:
    """Measure, print the table and the checks, and return the exit code."""
    if problem := file_problem("json", json):
        return complain(_VERB, problem)
    report = build_report(*measure(QUICK if quick else FULL))
    conclude(report, [rows_table(report.rows), checks_table(report.checks)], json)
    return 0


def measure(plan: Plan) -> tuple[dict[str, EndpointResults], AdmissionTimes, int]:
    """Measure every endpoint, and admission without a link; return both results and the size of a row in bytes."""
    from onrig.runtime.link.keys import load_learner_keys
    from onrig.tools.key_folder import make_keys

    results: dict[str, EndpointResults] = {}
    progress = progress_for(4.0)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onrig-link-")))
        with contextlib.redirect_stdout(io.StringIO()):
            make_keys(base / "keys")
        progress.begin_step("admission")
        (base / "admission").mkdir()
        admission_times = admission(plan.n_policies, base / "admission")
        progress.finish_step(1.0)
        curve_keys = load_learner_keys(base / "keys")
        for endpoint in (
            Endpoint("ipc", 0, None),
            Endpoint("tcp, plain", 1, None),
            Endpoint("tcp, CURVE", 1, curve_keys),
        ):
            progress.begin_step(endpoint.name)
            folder = base / endpoint.name.replace(", ", "-")
            folder.mkdir()
            keys = base / "keys" if endpoint.keys is not None else None
            with RigEndProcess(folder, plan.n_experiences, plan.n_experiences, keys) as rig_end:
                snapshots = [snapshot(rig_end, endpoint, plan.n_experiences) for _ in range(plan.n_rounds)]
                bytes_on_wire = wire_bytes(rig_end, endpoint, plan.n_experiences)
                rates = [
                    replication_rate(rig_end, endpoint, plan.n_experiences, min(_MAX_REPLICATED, plan.n_experiences))
                    for _ in range(plan.n_rounds)
                ]
            (folder / "small").mkdir()
            with RigEndProcess(folder / "small", 2000, 2000, keys) as rig_end:
                times, n_refused = latency(rig_end, endpoint, folder / "small", plan.n_policies)
            results[endpoint.name] = EndpointResults(times, n_refused, snapshots, rates, bytes_on_wire)
            progress.finish_step(1.0)
    return results, admission_times, payload_bytes(16)


def build_report(results: dict[str, EndpointResults], admission_times: AdmissionTimes, row_bytes: int) -> Report:
    """Build the report's rows and checks from the measurements."""
    rows = [
        _row("admission, network of 50 and 20 units", "ms", [ns / 1e6 for ns in admission_times.wall_ns]),
        _row(
            "admission, network of 50 and 20 units, processor time", "ms", [ns / 1e6 for ns in admission_times.cpu_ns]
        ),
    ]
    checks = [
        check_at_most("admission alone: ms at p95", _p95_ms(admission_times.wall_ns), ADMISSION_MS),
        check_at_most("admission alone: ms of processor time at p95", _p95_ms(admission_times.cpu_ns), ADMISSION_MS),
    ]
    for name, endpoint in results.items():
        total_ns = endpoint.latency.total_ns
        for stage, durations in (
            ("last gradient step to policy ready for the next tick", total_ns),
            ("of which export", endpoint.latency.export_ns),
            ("of which offer, admission and verdict", endpoint.latency.offer_ns),
            ("of which loading by the loop", endpoint.latency.load_ns),
        ):
            if durations:
                rows.append(_row(f"{name}: {stage}", "ms", [ns / 1e6 for ns in durations]))
        if total_ns:
            checks.append(check_at_most(f"{name}: step to rig, ms at p95", _p95_ms(total_ns), STEP_TO_RIG_MS))
        seconds = [s.seconds for s in endpoint.snapshots]
        rows.append(_row(f"{name}: snapshot of {endpoint.snapshots[0].n_experiences} experiences", "s", seconds))
        rates = [s.n_experiences / s.seconds for s in endpoint.snapshots]
        rows.append(_row(f"{name}: snapshot", "experiences_per_s", rates))
        rows.append(_row(f"{name}: replication", "experiences_per_s", endpoint.replication_rates))
        if not math.isnan(endpoint.wire_bytes):
            rows.append(_row(f"{name}: on the wire", "bytes_per_experience", [endpoint.wire_bytes]))
        n_complete, n_snapshots = sum(s.is_complete for s in endpoint.snapshots), len(endpoint.snapshots)
        checks.append(Check(f"{name}: complete mirrors", n_complete, n_snapshots, n_complete == n_snapshots))
        checks.append(check_at_most(f"{name}: policies refused", endpoint.n_refused, 0))
    rows.append(_row("payload", "bytes_per_experience", [float(row_bytes)]))
    return Report(describe_machine(), 0.0, rows, checks)


def _row(case: str, unit: str, values: Sequence[float]) -> Row:
    q = quantiles_us([round(v * 1e6) for v in values])
    return Row(case, "onrig", unit, *(round(x / 1e3, 4) for x in (q.p50, q.p99, q.p999, q.max)))


def _p95_ms(durations_ns: Sequence[int]) -> float:
    return float(np.quantile(np.asarray(durations_ns), 0.95)) / 1e6
