from __future__ import annotations

import math

from onrig.tools.bench.link.benchmark import ADMISSION_MS, STEP_TO_RIG_MS, EndpointResults, build_report
from onrig.tools.bench.link.measure import AdmissionTimes, Latency, Snapshot, payload_bytes
from onrig.tools.bench.report import rows_table
from onrig.tools.options import arguments_of
from onrig.tools.verbs.bench.link import Options

MS = 1_000_000


def endpoint_results(
    ms: float, *, n_refused: int = 0, equal: bool = True, bytes_per_step: float = 45.0
) -> EndpointResults:
    part = [int(ms * MS / 3)] * 10
    return EndpointResults(Latency(part, part, part), n_refused, [Snapshot(1000, 0.5, equal)], [5e4], bytes_per_step)


def test_every_check_can_fail_and_can_hold() -> None:
    slow_ns, fast_ns = [int(2 * ADMISSION_MS * MS)] * 10, [int(0.5 * ADMISSION_MS * MS)] * 10
    bad_report = build_report(
        {"tcp": endpoint_results(2 * STEP_TO_RIG_MS, n_refused=1, equal=False)}, AdmissionTimes(slow_ns, slow_ns), 44
    )
    good_report = build_report({"tcp": endpoint_results(0.5 * STEP_TO_RIG_MS)}, AdmissionTimes(fast_ns, fast_ns), 44)
    assert [c.name for c in bad_report.checks if c.holds] == []
    assert [c.name for c in good_report.checks if not c.holds] == []


def test_the_latency_is_the_sum_of_its_parts_policy_by_policy() -> None:
    assert Latency([1, 2], [10, 20], [100, 200]).total_ns == [111, 222]


def test_figures_keep_their_unit() -> None:
    report = build_report({"tcp": endpoint_results(30.0)}, AdmissionTimes([3 * MS], [2 * MS]), 44)
    values = {row.case: (row.unit, row.p50) for row in report.rows}
    assert values["admission, network of 50 and 20 units"] == ("ms", 3.0)
    assert values["tcp: last gradient step to policy ready for the next tick"] == ("ms", 30.0)
    assert values["tcp: snapshot of 1000 experiences"] == ("s", 0.5)
    assert values["tcp: snapshot"] == ("experiences_per_s", 2000.0)
    assert values["tcp: on the wire"] == ("bytes_per_experience", 45.0)
    assert "tcp: replication" in rows_table(report.rows)


def test_without_a_wire_none_is_reported() -> None:
    report = build_report({"ipc": endpoint_results(1.0, bytes_per_step=math.nan)}, AdmissionTimes([MS], [MS]), 44)
    assert not any("wire" in row.case for row in report.rows)


def test_a_row_is_its_stamp_and_its_values() -> None:
    assert payload_bytes(4) == 4 * (3 + 2 + 1 + 2 + 1 + 1 + 2 + 1)


def test_quick_is_an_option() -> None:
    assert "--quick" in {argument.flag for argument in arguments_of(Options)}
