"""``onrig bench replay`` on tiny sizes: its output, but no durations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onrig.tools.bench.processes import Worker
from onrig.tools.bench.replay import benchmark as replay
from onrig.tools.bench.replay.benchmark import Plan, times_table
from onrig.tools.bench.replay.buffers import POOL_SIZE, Buffer, Columns, random_errors, random_transitions
from onrig.tools.bench.replay.cases import CASES, Case, Operation, Shape, case_title
from onrig.tools.bench.replay.figures import (
    Figure,
    FigureKey,
    Figures,
    MemorySize,
    Tail,
    memory_checks,
    speed_checks,
    summarize_rounds,
    verdict_checks,
)
from onrig.tools.bench.replay.onrig import build
from onrig.tools.bench.replay.subject import N_ACT, N_OBS, Verdict, check_draws, chi_square_deviation
from onrig.tools.bench.timing import SKIPPED, Quantiles, Timings, measure, measure_with_stalls, quantiles_us
from onrig.tools.cli import main, members
from onrig.tools.workers import Unavailable

CAPACITY = 100
SUBJECT = "onrig.tools.bench.replay.subject"
DRAWS = 20_000
SHAPE = Shape(2, 1)
LONG_NS = 10**12
TINY_PLAN = Plan((SHAPE,), (600,), rounds=2, calls=3, limit_ms=1000, draws=10_000, measured_capacity=2000)


def memory(kind: str) -> Buffer:
    return build(kind, N_OBS, N_ACT, CAPACITY, 1)


def admission_verdict(buffer: Buffer) -> Verdict:
    return check_draws("some kind", buffer, 1, capacity=CAPACITY, draws=DRAWS)


@pytest.mark.parametrize("kind", ["FIFO[Uniform]", "FIFO[PER]", "FIFO[PropPER+IS]"])
def test_draws_by_onrig_pass_the_gate(kind: str) -> None:
    assert admission_verdict(memory(kind)).passed


def test_the_gate_catches_a_sampler_that_prefers_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = memory("FIFO[Uniform]")
    original_columns = buffer.columns

    def draw_newest_of_two() -> Columns:
        a, b = original_columns(), original_columns()
        return a if a.reward.sum() > b.reward.sum() else b

    monkeypatch.setattr(buffer, "columns", draw_newest_of_two)
    verdict = admission_verdict(buffer)
    assert verdict.columns_match
    assert not verdict.passed


def test_the_gate_catches_a_sampler_that_cycles_instead_of_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = memory("FIFO[Uniform]")
    source = random_transitions(CAPACITY + CAPACITY // 2, N_OBS, N_ACT, 1)
    n_drawn = 0

    def draw_next() -> Columns:
        nonlocal n_drawn
        indices = CAPACITY // 2 + np.arange(n_drawn, n_drawn + 16) % CAPACITY
        n_drawn += 16
        return Columns(
            source.observation[indices],
            source.action[indices],
            source.reward[indices],
            source.next_observation[indices],
            source.terminated[indices],
        )

    monkeypatch.setattr(buffer, "columns", draw_next)
    verdict = admission_verdict(buffer)
    assert verdict.columns_match
    assert not verdict.passed


def test_the_gate_catches_another_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = memory("FIFO[PropPER+IS]")
    original_probabilities = buffer.probabilities
    monkeypatch.setattr(buffer, "probabilities", lambda td: original_probabilities(td**1.5))
    assert not admission_verdict(buffer).passed


def test_the_gate_catches_columns_of_another_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = memory("FIFO[Uniform]")
    original_columns = buffer.columns
    monkeypatch.setattr(
        buffer, "columns", lambda: (c := original_columns())._replace(action=np.roll(c.action, 1, axis=0))
    )
    verdict = admission_verdict(buffer)
    assert not verdict.columns_match
    assert not verdict.passed


def test_rare_cells_are_pooled_and_too_few_draws_refused() -> None:
    probabilities = np.array([1e-6] * 50 + [0.25] * 4)
    probabilities /= probabilities.sum()
    counts = np.array([0] * 50 + [250, 240, 260, 250])
    assert abs(chi_square_deviation(counts, probabilities)) < 2.0
    with pytest.raises(ValueError, match="too few"):
        chi_square_deviation(np.array([3, 4]), np.array([0.5, 0.5]))


def test_percentiles_match_the_durations() -> None:
    q = quantiles_us([1000 * n for n in range(10_001)])
    assert q == pytest.approx((5000.0, 9900.0, 9990.0, 9999.0, 10_000.0))
    with pytest.raises(ValueError, match="no durations"):
        quantiles_us([])


def test_calls_without_effect_are_not_timed() -> None:
    def work_every_third(i: int) -> object:
        return None if i % 3 == 0 else SKIPPED

    assert len(measure(work_every_third, range(30), LONG_NS)) == 10
    measured = measure_with_stalls(work_every_third, range(30), LONG_NS)
    assert [
        len(durations) for durations in (measured.calls, measured.spans, measured.busy_calls, measured.busy_spans)
    ] == [10, 10, 10, 10]


def test_the_preparation_of_a_call_runs_once_for_each() -> None:
    order: list[tuple[str, int]] = []
    measure(lambda i: order.append(("call", i)), range(3), LONG_NS, lambda i: order.append(("before", i)))
    expected = [(phase, i) for i in range(3) for phase in ("before", "call")]
    assert order == expected + expected, "a warm-up, then the calls"


def test_the_limit_ends_a_round() -> None:
    assert len(measure(lambda i: None, range(1000), 0)) == 1


def test_tails_are_those_of_the_quietest_round() -> None:
    loud_timings, quiet_timings = (
        Timings([9000] * 10, [8000] * 10, [10] * 10, [20] * 10),
        Timings([3000], [2000], [30], [40]),
    )
    f = summarize_rounds([Timings([1000, 2000, 3000])], [loud_timings, quiet_timings])
    assert f.calls.p50 == 2.0
    assert f.wall_tail == pytest.approx(Tail(3.0, 2.0))
    assert f.cpu_tail == pytest.approx(Tail(0.03, 0.04), rel=1e-2)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_onrig_supports_every_case(case: Case) -> None:
    buffer = build(case.onrig, 2, 1, 600, 0)
    transitions = random_transitions(POOL_SIZE, 2, 1, 0)
    buffer.extend(transitions.select(0, 600))
    buffer.prepare(transitions, random_errors(POOL_SIZE, 600, 0))
    calls: dict[Operation, Callable[[int], object]] = {
        Operation.INSERT: buffer.insert,
        Operation.INSERT_DRAWABLE: buffer.insert_drawable,
        Operation.UPDATE: buffer.update,
        Operation.CYCLE: buffer.cycle,
        Operation.SAMPLE: lambda _: buffer.sample(case.size),
    }
    for i in range(3):
        buffer.begin_round()
        assert calls[case.operation](i) is not SKIPPED


def test_the_report_has_the_documented_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "installed_version", lambda package: None)
    monkeypatch.setattr(replay, "QUICK", TINY_PLAN)
    file = tmp_path / "replay.json"
    assert main(["bench", "replay", "--quick", "--json", str(file)]) == 0
    output = capsys.readouterr().out
    for peer in ("cpprb", "torchrl", "stable-baselines3", "tianshou"):
        assert f"{peer}: not installed, skipped" in output
    report = json.loads(file.read_bytes())
    assert set(report) == {"machine", "stall_floor_us", "rows", "checks"}
    assert isinstance(report["machine"], dict)
    assert report["stall_floor_us"] > 0
    assert all(set(row) == {"case", "subject", "unit", "p50", "p99", "p999", "max"} for row in report["rows"])
    assert all(set(check) == {"name", "value", "bound", "holds"} for check in report["checks"])
    assert {row["subject"] for row in report["rows"]} == {"onrig"}
    timed_cases = {row["case"] for row in report["rows"] if row["unit"] == "us"}
    assert timed_cases == {case_title(case.name, SHAPE, 600) for case in CASES}
    bytes_by_case = {row["case"]: row["p50"] for row in report["rows"] if row["unit"] == "bytes_per_transition"}
    assert bytes_by_case[case_title("memory FIFO[Uniform] arrays", SHAPE, 2000)] == SHAPE.raw_bytes + 16
    draw_checks = [check for check in report["checks"] if check["name"].startswith("test of draws: onrig")]
    assert [check["holds"] for check in draw_checks] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "100"], "--capacity: expected at least 512, got 100"),
        (["--json", "no/such/folder/x.json"], "--json: no such folder 'no/such/folder'"),
    ],
)
def test_nonsensical_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "replay", *arguments]) == 2
    assert capsys.readouterr().err == f"onrig bench replay: {message}\n"


def test_an_unknown_benchmark_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "loops"])
    output = capsys.readouterr().err
    assert "'loops'" in output
    assert all(phase in output for phase in members("bench"))


def test_a_library_that_cannot_be_imported_is_unavailable_with_the_reason() -> None:
    with pytest.raises(Unavailable, match="the worker ended with exit code 1: KeyError: 'no-such-library'"):
        Worker("no-such-library", SUBJECT)


def test_a_process_that_dies_is_unavailable_from_then_on() -> None:
    with Worker("onrig", SUBJECT) as worker:
        worker.ask("drop", returns=type(None))
        assert not worker.has_ended
        worker._process.kill()
        with pytest.raises(Unavailable, match="the worker was killed"):
            worker.ask("drop", returns=type(None))
        assert worker.has_ended


def timed_figure(p50: float, wall_clock: Tail | None = None) -> Figure:
    return Figure(Quantiles(p50, p50, p50, p50, p50), wall_clock, wall_clock)


def checks_held(figures: Figures) -> dict[str, bool]:
    return {check.name: check.holds for check in speed_checks(figures, SHAPE)}


def test_checks_compare_the_figures_with_their_bounds() -> None:
    fifo = "insert FIFO, 2/1, 10000"
    figures = {
        FigureKey("insert FIFO", SHAPE, 10_000, "onrig"): timed_figure(2.5, Tail(60.0, 9.0)),
        FigureKey("insert FIFO", SHAPE, 10_000, "cpprb"): timed_figure(13.0),
        FigureKey("cycle FIFO[Uniform]", SHAPE, 10_000, "onrig"): timed_figure(900.0),
        FigureKey("cycle FIFO[Uniform]", SHAPE, 10_000, "cpprb"): timed_figure(1000.0),
        FigureKey("cycle FIFO[Uniform]", SHAPE, 10_000, "tianshou"): timed_figure(800.0),
        FigureKey("insert Resv", SHAPE, 1_000_000, "onrig"): timed_figure(7.0, Tail(58.0, 9.0)),
    }
    assert checks_held(figures) == {
        f"{fifo}: p50 us, at most": False,
        f"{fifo}: speed-up over cpprb, at least": True,
        f"{fifo}: p99.99 us, at most 50 us above the stall floor": False,
        f"{fifo}: p99.99 us of processor time, at most 50 us above the stall floor": False,
        "cycle FIFO[Uniform], 2/1, 10000: speed-up over the fastest peer, at least": False,
        "insert Resv, 2/1, 1000000: p50 us, at most": True,
        "insert Resv, 2/1, 1000000: p99.99 us, at most 50 us above the stall floor": True,
        "insert Resv, 2/1, 1000000: p99.99 us of processor time, at most 50 us above the stall floor": True,
    }


def test_unmeasured_cases_are_not_checked() -> None:
    assert checks_held({FigureKey("insert FIFO", SHAPE, 5000, "onrig"): timed_figure(1.0)}) == {}


def test_memory_is_compared_with_the_raw_fields_plus_sixteen() -> None:
    key = FigureKey("memory FIFO[Uniform]", SHAPE, 1_000_000, "onrig")
    assert [c.holds for c in memory_checks({key: MemorySize(40.5, 40.0)})] == [True, True]
    assert [c.holds for c in memory_checks({key: MemorySize(41.0, 40.1)})] == [False, False]


def test_a_subject_that_fails_the_gate_is_marked_and_not_hidden() -> None:
    failed_verdict = Verdict("Uniform", 40.0, True)
    (check,) = verdict_checks([("cpprb", failed_verdict)])
    assert not check.holds
    figures = {
        FigureKey("insert FIFO", SHAPE, 10_000, "onrig"): timed_figure(2.0),
        FigureKey("insert FIFO", SHAPE, 10_000, "cpprb"): timed_figure(13.0),
    }
    table = times_table(figures, SHAPE, 10_000, ["cpprb", "tianshou"], {("cpprb", "Uniform")})
    assert table.splitlines()[1].split() == ["insert", "FIFO", "2.00", "2.00", "2.00", "2.00", "13.00!", "(6.5x)"]
