"""``onrig bench loop``: how punctual the real control loop is on this board, beside ``cyclictest``.

Starts the whole rig (`onrig run`: supervisor, twin, control, replay, learner) at each rate, beside a process that
keeps the other CPUs busy, and reads every step record along.  Slices of the rig and of cyclictest, on the same CPU at
the same priority and interval, take turns; sentinels above both note when the machine itself stood still.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.realtime import loop_cpu, settle_loop_cpu
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.tools.arguments import complain
from onrig.tools.bench import cyclictest
from onrig.tools.bench.loop.display import misses_list, misses_table, ratios_table
from onrig.tools.bench.loop.plan import (
    CONFIG,
    CYCLICTEST,
    EVERYTHING,
    RATES_HZ,
    Slice,
    Subject,
    at_rate,
    parser,
    problem_of,
    schedule,
    subjects_of,
)
from onrig.tools.bench.loop.report import AtRate, LoopReport, build
from onrig.tools.bench.loop.rig import RigFailed
from onrig.tools.bench.loop.session import START_S, LoopSession
from onrig.tools.bench.progress import progress_for
from onrig.tools.bench.report import Fact, checks_table, conclude, describe_machine, rows_table
from onrig.tools.load import explain, load_for_rig

_VERB: Final = "bench loop"
_NO_POLICY: Final = "a rig without a learner needs a policy: pip install 'onrig[learner]', or --set policy=FILE"


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code, 0 whether or not the checks hold."""
    args = parser(__doc__).parse_args(arguments)
    problem = problem_of(args)
    if problem is not None:
        return complain(_VERB, problem)
    settle_loop_cpu()  # for the rig, and for all that is to run on its CPU or off it
    name = args.config or CONFIG
    given = [*(EVERYTHING if args.config is None else ()), *args.overrides]
    without = {part for part in args.without.split(",") if part}
    if args.swaps is not None:
        without.add("learner")
    elif "learner" not in without and find_spec("torch") is None:
        print("torch is not installed: the rig runs without a learner of its own", file=sys.stderr)
        without.add("learner")
    plans: list[tuple[float, RunConfig, list[Slice]]] = []
    try:
        if args.device is None and load_for_rig(name).device.port is None:
            # The loop, without the kernel's tty layer; and the twin tells when it really sent what.
            given = ["device.twin.line=socket", "device.twin.trace=true", *given]
        base = load_for_rig(name, [*given, "device.pace=realtime"])
        if (without | set(args.compare)) & {"learner"} and base.policy is None and find_spec("onnx") is None:
            return complain(_VERB, _NO_POLICY, ExitCode.PREFLIGHT)
        for rate_hz in args.rates or RATES_HZ:
            pace = at_rate(base, rate_hz, args.slice)
            subjects = subjects_of(args, without, (*given, *pace))
            configs = [load_for_rig(name, s.settings) for s in subjects]
            if "cyclictest" not in without and cyclictest.find() is not None:
                subjects.append(Subject(CYCLICTEST))
            plans.append((rate_hz, configs[0], schedule(subjects, args.seconds, args.slice)))
    except ConfigError as error:
        return explain(error)
    if cyclictest.find() is None and "cyclictest" not in without:
        print("cyclictest is not there: install rt-tests to see Onrig beside it", file=sys.stderr)
    weights = [s.seconds + START_S for _, _, slices in plans for s in slices]
    progress = progress_for(sum(weights))
    measured: list[AtRate] = []
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
                    without,
                    progress,
                    keep=args.keep is not None,
                )
                measured.append(session.measure(slices))
    except (RigFailed, cyclictest.CyclictestFailed) as error:
        return complain(_VERB, str(error), ExitCode.INTERNAL)
    _conclude(build(_machine(measured, plans[0][1]), measured), measured, args)
    return ExitCode.OK


def _machine(measured: Sequence[AtRate], config: RunConfig) -> dict[str, Fact]:
    machine = describe_machine()
    machine["sched_fifo"] = int(all(rig.realtime for found in measured for rig in found.rigs))
    machine["priority"] = config.realtime.priority
    cpu = loop_cpu(config.realtime)
    machine["loop_cpu"] = "any" if cpu is None else cpu
    return machine


def _conclude(report: LoopReport, measured: Sequence[AtRate], args: argparse.Namespace) -> None:
    if not report.machine["sched_fifo"]:
        print("without SCHED_FIFO: the loop had no permission for it (`onrig doctor` tells how to give it)\n")
    parts = [rows_table(report.rows), misses_table(measured)]
    if report.misses:
        parts.append(misses_list(report.misses))
    if any(len(found.rigs) > 1 for found in measured):
        parts.append(ratios_table(measured))
    parts += [
        f"{found.rate_hz:g} Hz, {rig.name}, {end}" for found in measured for rig in found.rigs for end in rig.ended
    ]
    parts.append(checks_table(report.checks))
    conclude(report, parts, args.json)
    if args.plot is not None:
        from onrig.tools.bench.loop.display import plot

        plot(measured, args.plot)
