"""Control-loop benchmark: timing of a real rig on this board, compared with ``cyclictest``."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import loop_cpu, resolve_loop_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.run_config import RunConfig
from onrig.sim.twin.pacing import TraceReader
from onrig.tools.bench.loop.load import start_burner, start_swapper
from onrig.tools.bench.loop.plan import (
    CONFIG,
    CYCLICTEST,
    MAX_LOAD_SETTINGS,
    ONRIG,
    RATES_HZ,
    Request,
    Slice,
    Subject,
    find_problem,
    list_subjects,
    schedule,
    settings_at_rate,
)
from onrig.tools.bench.loop.report import (
    LoopReport,
    RateResults,
    RigResults,
    SliceFigures,
    build_report,
    misses_list,
    misses_table,
    period_ns,
    ratios_table,
)
from onrig.tools.bench.loop.rig import MeasuredRig, RigFailed, RunEnded, Viewer, find_page_url
from onrig.tools.bench.loop.sentinel import PERIOD_US, PhaseTracker, SentinelRecords, Sentinels
from onrig.tools.bench.loop.tally import Tally, send_times
from onrig.tools.bench.processes import CPUS, restrict_to_cpus
from onrig.tools.bench.report import Fact, checks_table, conclude, describe_machine, rows_table
from onrig.tools.doctor import cyclictest
from onrig.tools.load import load_for_rig, print_problems
from onrig.tools.progress import Progress, progress_for
from onrig.tools.terminal import complain, draw_or_report

RecordSink = Callable[[NDArray[np.void]], None]

START_UP_S: Final = 6.0
"""Approximate start-up time, for estimating the remaining time."""
_SETTLE_S: Final = 2.0
"""Time discarded at the start of a slice, while the learner is still importing."""


class LoopSession:
    """Measurement at one rate, with background load."""

    def __init__(
        self,
        name: str,
        config: RunConfig,
        rate_hz: float,
        folder: Path,
        swap_interval_s: float | None,
        excluded_parts: Collection[str],
        progress: Progress,
        *,
        keep_folders: bool,
    ) -> None:
        self._name, self._config, self._rate_hz, self._folder = name, config, rate_hz, folder
        self._swap_interval_s, self._excluded_parts, self._progress = swap_interval_s, excluded_parts, progress
        self._keep_folders = keep_folders
        self._sentinels: Sentinels | None = None
        self._cpu = loop_cpu(config.realtime)
        self._other_cpus = [cpu for cpu in CPUS if cpu != self._cpu] or CPUS
        twin = config.device.twin or {}
        self._twin_uses_socket = config.device.port is None and twin.get("line") == "socket"

    def measure(self, slices: Sequence[Slice]) -> RateResults:
        """Measure all slices. Raises RigFailed or CyclictestFailed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        results_by_name: dict[str, RigResults] = {}
        cyclictest_histogram: DurationHistogram | None = None
        start_s = time.monotonic()
        sentinel_records: list[SentinelRecords] = []
        with contextlib.ExitStack() as stack:
            if "sentinel" not in self._excluded_parts and sys.platform == "linux":
                line_cpu = None if self._twin_uses_socket else self._other_cpus[0]
                self._sentinels = stack.enter_context(Sentinels(CPUS, line_cpu))
            if "burner" not in self._excluded_parts:
                stack.enter_context(start_burner(self._other_cpus))
            stack.enter_context(restrict_to_cpus(self._other_cpus))  # observers must not share the loop's CPU
            for n, (subject, seconds) in enumerate(slices):
                self._progress.begin_step(f"{self._rate_hz:g} Hz, {subject.name}, {seconds:g} s")
                if subject.name == CYCLICTEST:
                    histogram = self._run_cyclictest(seconds)
                    cyclictest_histogram = cyclictest_histogram or DurationHistogram()
                    cyclictest_histogram.merge(histogram)
                else:
                    self._measure_rig(subject, seconds, n, results_by_name)
                self._progress.finish_step(seconds + START_UP_S)
            sentinel_records = self._sentinels.records() if self._sentinels is not None else []
        observed_s = time.monotonic() - start_s
        total_s = sum(s.seconds for s in slices if s.subject.name == ONRIG)
        return RateResults(
            self._rate_hz, total_s, list(results_by_name.values()), cyclictest_histogram, sentinel_records, observed_s
        )

    def _run_cyclictest(self, seconds: float) -> DurationHistogram:
        program = cyclictest.find()
        assert program is not None
        command = cyclictest.command(
            program,
            cpu=self._cpu,
            priority=max(1, self._config.realtime.priority),
            period_us=self._config.period_us,
            seconds=seconds,
        )
        with restrict_to_cpus(CPUS):
            return cyclictest.run(command, seconds)

    def _measure_rig(self, subject: Subject, seconds: float, n: int, results_by_name: dict[str, RigResults]) -> None:
        settings = list(subject.settings)
        has_no_learner = "local_learner=false" in settings or not self._config.local_learner
        if has_no_learner and self._config.policy is None:
            settings.append(f"policy={self._starting_policy(settings, n)}")
        if self._swap_interval_s is not None:  # allow every swapped policy to be admitted
            settings.append(f"link.admissions_per_s={max(1.0, 2.0 / self._swap_interval_s):g}")
        folder = self._folder / f"{n}"
        tally = Tally(period_ns(self._rate_hz))
        has_trace = self._config.device.port is None and "--device" not in subject.flags
        with MeasuredRig(self._name, settings, subject.flags, folder) as rig, contextlib.ExitStack() as stack:
            rig.wait_for_first_tick()
            if self._swap_interval_s is not None:
                stack.enter_context(
                    start_swapper(rig.folder / "config.yaml", f"ipc://{rig.shm}/learner", self._swap_interval_s)
                )
            page = find_page_url(rig.output)
            viewer = stack.enter_context(Viewer(page)) if page is not None else None
            trace = stack.enter_context(contextlib.closing(TraceReader(rig.shm))) if has_trace else None
            failures = []
            try:
                with self._sentinel_aim() as aim_sink:

                    def sink(records: NDArray[np.void]) -> None:
                        tally.add(records, send_times(records, trace))
                        aim_sink(records)

                    rig.follow(_SETTLE_S, aim_sink)
                    tally.n_lost = rig.follow(seconds, sink)
            except RunEnded as end:  # keep the measurements made before the end
                failures.append(f"slice {n}: {end}")
            tally.finish()
            if viewer is not None and not viewer.n_received_bytes and not failures:
                raise RigFailed(f"the live page ({page}) sent no data; exclude it with --without web")
        if not self._keep_folders:
            shutil.rmtree(folder, ignore_errors=True)
        results = results_by_name.get(subject.name)
        if results is None:
            results = results_by_name[subject.name] = RigResults(
                subject.name, Tally(period_ns(self._rate_hz)), [], rig.is_realtime
            )
        results.tally.merge(tally)
        p = [tally.histograms[quantity].percentile_us(q) or 0.0 for quantity in ("lateness", "tick") for q in (50, 99)]
        complete_slices = [] if failures else [SliceFigures(*p)]
        results_by_name[subject.name] = results._replace(
            slices=[*results.slices, *complete_slices], end_reasons=[*results.end_reasons, *failures]
        )

    @contextlib.contextmanager
    def _sentinel_aim(self) -> Iterator[RecordSink]:
        """Yield a sink for records, from which it times the wake-ups of the sentinel on the loop's CPU.

        The sentinel then wakes only while the loop sleeps. The sink ignores the records if the loop's period is at
        least as long as the sentinel's.
        """
        sentinels, cpu = self._sentinels, self._cpu
        if sentinels is None or period_ns(self._rate_hz) >= 1000 * PERIOD_US["timer"]:
            yield lambda records: None
            return
        try:
            yield PhaseTracker(
                period_ns(self._rate_hz), lambda anchor_ns, period: sentinels.aim(cpu, anchor_ns, period)
            ).add
        finally:
            sentinels.clear_aim(cpu)

    def _starting_policy(self, settings: Sequence[str], n: int) -> Path:
        """Write a random policy for slice ``n`` of a run without a learner, and return its path."""
        from onrig.tools.bench.link.rig_end import random_policy  # needs onnx, which may be missing on a board

        path = self._folder / f"policy-{n}.onnx"
        path.write_bytes(random_policy(load_for_rig(self._name, settings)))
        return path.resolve()


_VERB: Final = "bench loop"
_NO_POLICY: Final = (
    "a rig without a learner needs a policy: install 'onrig[learner]' to create one, or use --set policy=FILE"
)


def benchmark(args: Request) -> int:
    """Measure, print the tables and the checks, and return the exit code, which does not depend on the checks."""
    problem = find_problem(args)
    if problem is not None:
        return complain(_VERB, problem)
    resolve_loop_cpu()  # the rig and the placement of all other processes use the same CPU
    name = args.config or CONFIG
    settings = [*(MAX_LOAD_SETTINGS if args.config is None else ()), *args.set]
    excluded_parts = {part for part in args.without.split(",") if part}
    if args.swaps is not None:
        excluded_parts.add("learner")
    plans: list[tuple[float, RunConfig, list[Slice]]] = []
    try:
        if args.device is None and load_for_rig(name).device.port is None:
            # A socket avoids the kernel's tty layer, and the trace contains the twin's send times.
            settings = ["device.twin.line=socket", "device.twin.trace=true", *settings]
        base = load_for_rig(name, [*settings, "device.pace=realtime"])
        if (excluded_parts | set(args.compare)) & {"learner"} and base.policy is None and find_spec("onnx") is None:
            return complain(_VERB, _NO_POLICY, ExitCode.PREFLIGHT)
        for rate_hz in args.rate or RATES_HZ:
            rate_settings = settings_at_rate(base, rate_hz, args.slice)
            subjects = list_subjects(args, excluded_parts, (*settings, *rate_settings))
            configs = [load_for_rig(name, s.settings) for s in subjects]
            if "cyclictest" not in excluded_parts and cyclictest.find() is not None:
                subjects.append(Subject(CYCLICTEST))
            plans.append((rate_hz, configs[0], schedule(subjects, args.seconds, args.slice)))
    except ConfigError as error:
        return print_problems(error)
    if cyclictest.find() is None and "cyclictest" not in excluded_parts:
        print("cyclictest is not installed, so the comparison is omitted: install rt-tests", file=sys.stderr)
    weights = [s.seconds + START_UP_S for _, _, slices in plans for s in slices]
    progress = progress_for(sum(weights))
    results: list[RateResults] = []
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(progress.close)
            folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onrig-loop-")))
            for rate_hz, config, slices in plans:
                session = LoopSession(
                    name,
                    config,
                    rate_hz,
                    folder / f"{rate_hz:g}-Hz",
                    args.swaps,
                    excluded_parts,
                    progress,
                    keep_folders=args.keep is not None,
                )
                results.append(session.measure(slices))
    except (RigFailed, cyclictest.CyclictestFailed) as error:
        return complain(_VERB, str(error), ExitCode.INTERNAL)
    _conclude(build_report(_describe_loop_machine(results, plans[0][1]), results), results, args)
    return ExitCode.OK


def _describe_loop_machine(results: Sequence[RateResults], config: RunConfig) -> dict[str, Fact]:
    machine = describe_machine()
    machine["sched_fifo"] = int(all(rig.is_realtime for rate_results in results for rig in rate_results.rigs))
    machine["priority"] = config.realtime.priority
    cpu = loop_cpu(config.realtime)
    machine["loop_cpu"] = "any" if cpu is None else cpu
    return machine


def _conclude(report: LoopReport, results: Sequence[RateResults], args: Request) -> None:
    if not report.machine["sched_fifo"]:
        print(
            "The loop ran without SCHED_FIFO because it has no permission to use it (`onrig doctor` shows how to "
            "grant it).\n"
        )
    parts = [rows_table(report.rows), misses_table(results)]
    if report.misses:
        parts.append(misses_list(report.misses))
    if any(len(rate_results.rigs) > 1 for rate_results in results):
        parts.append(ratios_table(results))
    parts += [
        f"{rate_results.rate_hz:g} Hz, {rig.name}, {end}"
        for rate_results in results
        for rig in rate_results.rigs
        for end in rig.end_reasons
    ]
    parts.append(checks_table(report.checks))
    conclude(report, parts, args.json)
    if (path := args.plot) is not None:
        from onrig.tools.bench.loop.report import plot

        draw_or_report(str(path), lambda: plot(results, path), lambda line: complain("bench loop", line))
