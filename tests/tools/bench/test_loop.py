from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.policy.admission import Admitted
from onrig.runtime.record import Miss
from onrig.runtime.run_loading import load_run
from onrig.sim.evaluation import admission_verdict
from onrig.tools.bench.link.rig_end import random_policy
from onrig.tools.bench.loop.plan import MAX_LOAD_SETTINGS, Subject, schedule, settings_at_rate
from onrig.tools.bench.loop.report import (
    RateResults,
    RigResults,
    SliceFigures,
    build_checks,
    build_report,
    misses_list,
    misses_table,
    ratios_table,
)
from onrig.tools.bench.loop.rig import MeasuredRig, RunEnded, find_page_url
from onrig.tools.bench.loop.sentinel import SentinelRecords
from onrig.tools.bench.loop.tally import MissedTicks, Tally
from onrig.tools.bench.report import describe_machine, rows_table
from onrig.tools.bench.timing import ratio_of_means
from onrig.tools.cli import main, members
from onrig.tools.doctor.cyclictest import CyclictestFailed, command, parse
from onrig.tools.load import load_for_rig

PERIOD_NS = 1_000_000
CYCLICTEST = """# /dev/cpu_dma_latency set to 0us
# Histogram
000000 000000
000001 000000
000012 000090
000013 000008
# Total: 000000098
# Min Latencies: 00012
# Avg Latencies: 00013
# Max Latencies: 01908
# Histogram Overflows: 00002
# Histogram Overflow at cycle number:
# Thread 0: 00014 00022
"""


def histogram_of(*durations_us: float) -> DurationHistogram:
    histogram = DurationHistogram()
    histogram.add(np.array([round(1000 * latency_us) for latency_us in durations_us], np.int64))
    return histogram


def tally(lateness_us: float, tick_us: float, misses: list[MissedTicks] | None = None, n_swaps: int = 0) -> Tally:
    new_tally = Tally(PERIOD_NS)
    for name, histogram in new_tally.histograms.items():
        if "swap" not in name or n_swaps:
            histogram.merge(histogram_of(*[tick_us if name.startswith("tick") else lateness_us] * 100))
    new_tally.ticks, new_tally.swaps, new_tally.misses = 100, n_swaps, misses or []
    for m in new_tally.misses:
        new_tally.missed_ticks[m.cause] += m.frames
    return new_tally


def rig_results(name: str, t: Tally, p99: tuple[float, ...] = (50.0, 51.0, 52.0)) -> RigResults:
    return RigResults(name, t, [SliceFigures(0.5 * p, p, 0.5 * p, p) for p in p99], True)


def rate_results(
    rate_hz: float,
    *rigs: RigResults,
    reference_histogram: DurationHistogram | None = None,
    stalls: tuple[SentinelRecords, ...] = (),
) -> RateResults:
    return RateResults(rate_hz, 60.0, list(rigs), reference_histogram, list(stalls), 60.0)


def missed_ticks(cause: Miss, due_ns: int = 10**9, *, near_swap: bool = False) -> MissedTicks:
    return MissedTicks(1, cause, due_ns, due_ns + PERIOD_NS, near_swap, 100.0)


def sentinel_records(kind: str, *stalls: tuple[int, int]) -> SentinelRecords:
    return SentinelRecords("line" if kind == "line" else "timer", 0, True, [10, 5], 1000, list(stalls))


# -- cyclictest --------------------------------------------------------------------------------------------------------


def test_the_histogram_counts_samples_beyond_its_end_at_the_maximum() -> None:
    histogram = parse(CYCLICTEST)
    assert histogram.count == 100
    figures = histogram.summary_us()
    assert figures["p50"] == pytest.approx(12, rel=0.01)
    assert figures["p99"] == figures["max"] == 1908.0


@pytest.mark.parametrize("text", ["", "Unable to change scheduling policy!\n", "# Histogram\n000001 000000\n"])
def test_output_without_a_histogram_is_refused(text: str) -> None:
    with pytest.raises(CyclictestFailed, match="no histogram"):
        parse(text)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300), st.sampled_from([50.0, 99.0, 99.9]))
def test_percentiles_of_its_histogram_equal_those_of_its_latencies(latencies: list[int], q: float) -> None:
    latencies_us, counts = np.unique(latencies, return_counts=True)
    text = "\n".join(f"{u:06d} {n:06d}" for u, n in zip(latencies_us, counts, strict=True))
    exact = float(np.percentile(latencies, q, method="inverted_cdf"))
    percentile = parse(text).percentile_us(q)
    assert percentile is not None
    assert exact <= percentile + 1e-9 <= 1.008 * max(exact, 0.001) + 1e-6


def test_it_runs_at_the_loops_priority_period_and_cpu() -> None:
    line = command("cyclictest", cpu=3, priority=50, period_us=2000, seconds=30.0)
    pairs = dict(itertools.pairwise(line))
    assert (pairs["-a"], pairs["-p"], pairs["-i"], pairs["-D"]) == ("3", "50", "2000", "30s")
    assert "-m" in line
    assert "-a" not in command("cyclictest", cpu=None, priority=50, period_us=2000, seconds=30.0)


# -- the plan ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.floats(1, 600), st.floats(1, 60))
def test_every_subject_gets_the_same_time_in_alternating_slices(n: int, seconds: float, slice_s: float) -> None:
    subjects = [Subject(str(k)) for k in range(n)]
    slices = schedule(subjects, seconds, slice_s)
    for k, subject in enumerate(subjects):
        assert math.fsum(s.seconds for s in slices if s.subject is subject) == pytest.approx(seconds)
        rounds_of_slices = [slices[i : i + n] for i in range(0, len(slices), n)]
        assert all([s.subject.name for s in r].count(str(k)) == 1 for r in rounds_of_slices)


def test_the_order_is_reversed_every_other_time_so_that_drift_cancels() -> None:
    a, b = Subject("a"), Subject("b")
    assert [s.subject.name for s in schedule([a, b], 120, 30)] == ["a", "b", "b", "a", "a", "b", "b", "a"]


@pytest.mark.parametrize("rate_hz", [50.0, 200.0, 500.0, 1000.0, 2000.0])
@pytest.mark.parametrize("name", ["pendulum", "pendulum-hardware", "magman"])
def test_every_shipped_run_can_be_measured_at_every_rate(name: str, rate_hz: float) -> None:
    config = load_for_rig(name, settings_at_rate(load_run(name), rate_hz, 30.0))
    assert (config.rate_hz, config.lockstep) == (rate_hz, False)
    assert config.rig.lease_periods / rate_hz >= 0.04
    assert config.episodes * config.task.episode_s > 3 * 30.0


def test_a_rig_without_a_learner_starts_with_a_policy_of_its_learners_kind() -> None:
    learner = ("learner.algorithm=vracer", "exploration={process: own}")
    for overrides, hidden in ((learner, 0), ((*learner, "learner.vracer.recurrent={units: [8, 4]}"), 24), ((), 0)):
        config = load_for_rig("pendulum-hidden", overrides)
        verdict = admission_verdict(random_policy(config), config)
        assert isinstance(verdict, Admitted), verdict
        assert verdict.ports.inputs.get("hidden", 0) == hidden
        assert verdict.contract.stochastic == bool(overrides)


def test_the_default_run_exercises_everything_that_a_tick_can_do() -> None:
    config = load_for_rig("pendulum-hardware", [*MAX_LOAD_SETTINGS, "device.pace=realtime"])
    assert config.limits.predicted is not None
    budgets = config.exploration.budgets
    assert all(v is not None for period in ("episode", "hour", "session") for v in vars_of(getattr(budgets, period)))


def vars_of(quota: object) -> list[object]:
    return [getattr(quota, name) for name in ("interventions", "trips", "energy_s", "wear_strokes")]


# -- checks ------------------------------------------------------------------------------------------------------------


def test_every_check_can_hold_and_can_fail() -> None:
    reference_histogram = histogram_of(*[40.0] * 100)
    results_at_500 = rate_results(500, rig_results("onrig", tally(90, 201)))
    assert {c.name: c.holds for c in build_checks(results_at_500)}["500 Hz: tick p99, us"] is False
    good_results = rate_results(
        200,
        rig_results("onrig", tally(90, 150, n_swaps=3)),
        rig_results("x", tally(9, 9)),
        reference_histogram=reference_histogram,
    )
    misses = [missed_ticks(Miss.PROGRAM), missed_ticks(Miss.HOST, near_swap=True)]
    late_tally = tally(160, 250, misses, n_swaps=3)
    late_tally.histograms["lateness near a swap"].merge(histogram_of(*[900.0] * 100))
    late_tally.n_lost = 1
    slow_results = rig_results("y", tally(9, 9, [missed_ticks(Miss.PROGRAM)]), (10.0, 10.1, 10.2))
    bad_results = rate_results(
        200, rig_results("onrig", late_tally), slow_results, reference_histogram=reference_histogram
    )
    assert [c.name for c in build_checks(good_results) if not c.holds] == []
    assert [c.name for c in build_checks(bad_results) if c.holds] == []


def test_lateness_may_exceed_cyclictests_by_half_or_by_sixty_microseconds() -> None:
    def holds(our_us: float, their_us: float) -> bool:
        results = rate_results(
            1000, rig_results("onrig", tally(our_us, 100)), reference_histogram=histogram_of(*[their_us] * 100)
        )
        return next(c for c in build_checks(results) if "cyclictest" in c.name).holds

    assert holds(99, 40)
    assert not holds(103, 40)
    assert holds(290, 200)
    assert not holds(310, 200)


def test_without_cyclictest_it_is_not_mentioned() -> None:
    assert not any("cyclictest" in c.name for c in build_checks(rate_results(1000, rig_results("onrig", tally(9, 9)))))


def test_a_miss_during_a_stall_of_the_machine_is_attributed_to_the_machine() -> None:
    rig = rig_results("onrig", tally(50, 100, [missed_ticks(Miss.PROGRAM)]))

    def value(*stalls: SentinelRecords) -> float:
        results = rate_results(1000, rig, stalls=stalls)
        return next(c for c in build_checks(results) if "by the program" in c.name).value

    assert value() == 1
    assert value(sentinel_records("timer", (10**9, 10**9 + 900_000))) == 0
    assert value(sentinel_records("timer", (2 * 10**9, 2 * 10**9 + 900_000))) == 1, "the stall was at another time"
    assert value(sentinel_records("timer", (10**9, 10**9 + 200_000))) == 1, "too short to cost a tick"
    assert value(sentinel_records("line", (10**9, 10**9 + 900_000))) == 1, (
        "a slow line does not explain a miss by the program"
    )


def test_at_two_hundred_hertz_a_miss_requires_a_simultaneous_stall_of_machine_or_line() -> None:
    def value(rate_hz: float, *stalls: SentinelRecords) -> list[float]:
        results = rate_results(rate_hz, rig_results("onrig", tally(50, 100, [missed_ticks(Miss.HOST)])), stalls=stalls)
        return [c.value for c in build_checks(results) if "outside machine stalls" in c.name]

    assert value(200) == [1]
    assert value(200, sentinel_records("line", (10**9, 10**9 + 2_000_000))) == [0]
    assert value(1000) == []


def test_equal_slices_have_no_difference() -> None:
    assert ratio_of_means([5.0, 5.0], [5.0, 5.0]) == (1.0, 1.0, 1.0)


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=20), st.lists(st.floats(1, 1e4), min_size=2, max_size=20))
def test_a_ratio_lies_in_its_interval_and_inverts_with_its_sides(a: list[float], b: list[float]) -> None:
    r, inverse = ratio_of_means(a, b), ratio_of_means(b, a)
    assert r.low <= r.value <= r.high
    assert r.value == pytest.approx(1 / inverse.value)
    assert r.low == pytest.approx(1 / inverse.high)


def test_single_slices_prove_nothing() -> None:
    r = ratio_of_means([10.0], [1.0])
    assert r.value == pytest.approx(10.0)
    assert (r.low, r.high) == (0.0, math.inf)


def test_a_difference_far_beyond_the_spread_is_found() -> None:
    assert not ratio_of_means([100, 102, 98, 101], [50, 51, 49, 50]).includes_one
    assert ratio_of_means([100, 140, 80, 101], [90, 110, 120, 85]).includes_one


# -- output ------------------------------------------------------------------------------------------------------------


def test_tables_and_json_name_rate_subject_and_cause(tmp_path: Path) -> None:
    stalls = (sentinel_records("timer", (10**9, 10**9 + 900_000)),)
    misses = [missed_ticks(Miss.HOST), missed_ticks(Miss.LINK, 5 * 10**9)]
    results = [
        rate_results(
            1000,
            rig_results("onrig", tally(50, 100, misses)),
            rig_results("without web", tally(50, 100)),
            stalls=stalls,
        )
    ]
    report = build_report(describe_machine(), results)
    assert {r.subject for r in report.rows} == {"onrig", "without web", "machine"}
    assert [(m.cause, m.stall_ms) for m in report.misses] == [("host", 0.9), ("link", 0.0)]
    assert sum(report.histograms["1000 Hz: tick, onrig"]["count"]) == 100
    assert "1000 Hz, onrig" in misses_table(results)
    assert "0.90" in misses_list(report.misses)
    assert " none " in misses_list(report.misses)
    assert "without web" in ratios_table(results)
    assert "1000 Hz: stage policy" in rows_table(report.rows)


def test_a_run_that_ended_by_itself_fails_a_check_and_keeps_its_measurements() -> None:
    base_results = rig_results("onrig", tally(50, 100))
    results = rate_results(
        1000,
        base_results,
        rig_results("without web", tally(50, 100), p99=())._replace(end_reasons=["slice 3: device_lease"]),
    )
    failing_checks = {c.name: c.value for c in build_checks(results) if not c.holds}
    assert failing_checks.pop("1000 Hz: without web: runs that ended prematurely") == 1
    assert len(failing_checks) == 2
    assert all(math.isnan(value) for value in failing_checks.values()), "a check without data does not hold"
    assert "nan" in ratios_table([results])
    assert not [c for c in build_checks(rate_results(1000, base_results)) if "ended" in c.name]


class EndedRun:
    """A run that has ended, and its ring."""

    n_written = 0

    def poll(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("summary", "reason"),
    [('{"exit_reason": "a lease ran out 8 times"}', "ran out 8 times"), ("{", "last line"), (None, "last")],
)
def test_the_summary_gives_the_reason_why_a_run_ended(summary: str | None, reason: str, tmp_path: Path) -> None:
    rig: Any = MeasuredRig.__new__(MeasuredRig)
    rig.folder, rig._output, rig._run, rig._ring = tmp_path, tmp_path / "run.out", EndedRun(), EndedRun()
    (tmp_path / "run.out").write_text("first line\nlast line\n")
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    with pytest.raises(RunEnded, match=reason):
        rig.follow(1e-3, lambda records: None)


def test_a_long_list_of_misses_is_truncated_and_says_so() -> None:
    results = [
        rate_results(
            1000, rig_results("onrig", tally(50, 100, [missed_ticks(Miss.LINK, n * 10**9) for n in range(50)]))
        )
    ]
    lines = misses_list(build_report(describe_machine(), results).misses).splitlines()
    assert len(lines) == 22
    assert "30 more" in lines[-1]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from onrig.tools.bench.loop.report import plot

    results = [
        rate_results(r, rig_results("onrig", tally(50, 100)), reference_histogram=histogram_of(20, 30, 4000))
        for r in (200.0, 1000.0)
    ]
    plot(results, tmp_path / "loop.png")
    assert (tmp_path / "loop.png").stat().st_size > 10_000


def test_the_address_of_the_page_is_found_in_the_output_of_a_run() -> None:
    assert find_page_url("run folder: x\nlive view: http://127.0.0.1:8089/\nready") == "http://127.0.0.1:8089/"
    assert find_page_url("run folder: x\n") is None


# -- the command -------------------------------------------------------------------------------------------------------


def test_bench_lists_the_loop() -> None:
    assert "loop" in members("bench")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--without", "luck"], "unknown part 'luck'"),
        (["--rate", "0"], "--rate"),
        (["--seconds", "0"], "--seconds"),
        (["--swaps", "0.001"], "--swaps"),
        (["--json", "no/such/folder/a.json"], "no such folder"),
        (["--plot", "no/such/folder/a.png"], "no such folder"),
        (["--against", "log.nothing=1"], "log.nothing"),
        (["--rate", "20000"], "--rate"),
        (["no-such-run"], "no-such-run"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line_before_anything_starts(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "loop", *arguments]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.out == ""
