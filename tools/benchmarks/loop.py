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
from onrig.tools.benchmarks import loop_cyclictest as cyclictest
from onrig.tools.benchmarks.loop_plan import CYCLICTEST, EVERYTHING, ONRIG, Slice, Subject, at_rate, schedule
from onrig.tools.benchmarks.loop_report import AtRate, LoopReport, build
from onrig.tools.benchmarks.loop_rig import RigFailed
from onrig.tools.benchmarks.loop_session import START_S, LoopSession
from onrig.tools.benchmarks.loop_tables import misses_list, misses_table, ratios_table, rows_table
from onrig.tools.benchmarks.progress import progress_for
from onrig.tools.benchmarks.report import Fact, describe_machine, write_json
from onrig.tools.benchmarks.table import checks_table
from onrig.tools.load import complain, explain, load_for_rig

_VERB: Final = "bench loop"
_CONFIG: Final = "pendulum-hardware"
RATES_HZ: Final = (200.0, 500.0, 1000.0)
_SECONDS: Final = 60.0
_SLICE_S: Final = 30.0
_PARTS: Final = ("burner", "cyclictest", "learner", "log", "sentinel", "web")
_NO_POLICY: Final = "a rig without a learner needs a policy: pip install 'onrig[learner]', or --set policy=FILE"
_COMPARED: Final = ("learner", "log", "web")
"""What a rig can be run with and without."""


def parser() -> argparse.ArgumentParser:
    """Build the benchmark's argument parser."""
    p = argparse.ArgumentParser(prog=f"onrig {_VERB}", description=__doc__)
    p.add_argument(
        "config", nargs="?", metavar="CONFIG", help=f"configuration (default: {_CONFIG} with all that a tick can do)"
    )
    p.add_argument(
        "--rate",
        dest="rates",
        action="append",
        type=float,
        metavar="HZ",
        help=f"repeat for several (default: {', '.join(f'{r:g}' for r in RATES_HZ)})",
    )
    p.add_argument(
        "--seconds", type=float, default=_SECONDS, metavar="S", help=f"per subject and rate (default: {_SECONDS:g})"
    )
    p.add_argument(
        "--slice", type=float, default=_SLICE_S, metavar="S", help=f"subjects change after (default: {_SLICE_S:g})"
    )
    p.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a value")
    p.add_argument(
        "--without", default="", metavar="PART,...", help=f"leave parts out of all of it: {', '.join(_PARTS)}"
    )
    p.add_argument(
        "--compare", action="append", default=[], choices=_COMPARED, help="slices with and without it; repeatable"
    )
    p.add_argument(
        "--against", action="append", default=[], metavar="a.b=c", help="slices with another value beside; repeatable"
    )
    p.add_argument(
        "--swaps",
        type=float,
        nargs="?",
        const=1.0,
        metavar="S",
        help="instead of a learner, a fresh policy every S seconds (default: 1)",
    )
    p.add_argument("--device", metavar="PORT", help="a device on a serial port instead of the twin")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the histograms (PNG, PDF or SVG)")
    p.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders here")
    return p


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code, 0 whether or not the checks hold."""
    args = parser().parse_args(arguments)
    problem = _problem(args)
    if problem is not None:
        return complain(_VERB, problem)
    settle_loop_cpu()  # for the rig, and for all that is to run on its CPU or off it
    name = args.config or _CONFIG
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
            subjects = _subjects(args, without, (*given, *pace))
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


def _problem(args: argparse.Namespace) -> str | None:
    """What is wrong with the arguments, if anything."""
    for option in ("json", "plot"):
        path: Path | None = getattr(args, option)
        if path is not None and not path.absolute().parent.is_dir():
            return f"--{option}: there is no folder '{path.parent}'"
    if args.plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            return "--plot: matplotlib is not installed (pip install 'onrig[viz]')"
    for part in args.without.split(","):
        if part and part not in _PARTS:
            return f"--without: there is no '{part}'; parts are {', '.join(_PARTS)}"
    if not args.seconds >= 1 or not args.slice >= 1:
        return "--seconds, --slice: expected at least 1 s"
    if args.swaps is not None and not args.swaps >= 0.05:
        return f"--swaps: expected at least 0.05 s, got {args.swaps:g}"
    if any(not 1 <= rate <= 10_000 for rate in args.rates or ()):
        return "--rate: expected 1 to 10000 Hz"
    return None


def _subjects(args: argparse.Namespace, without: set[str], settings: tuple[str, ...]) -> list[Subject]:
    """The rig as it is asked for, then each of its variants."""
    flags = ["--device", args.device] if args.device is not None else []
    base = _variant(ONRIG, settings, tuple(flags), without)
    others = [_variant(f"without {part}", settings, tuple(flags), without | {part}) for part in args.compare]
    others += [base._replace(name=change, settings=(*base.settings, change)) for change in args.against]
    return [base, *others]


def _variant(name: str, settings: tuple[str, ...], flags: tuple[str, ...], without: set[str]) -> Subject:
    if "learner" in without:
        settings = (*settings, "local_learner=false")
    if "log" in without:
        settings = (*settings, "log.mcap=false")
    if "web" not in without:
        flags = (*flags, "--web")
    return Subject(name, settings, flags)


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
    print("\n\n".join(parts))
    if args.json is not None:
        write_json(report, args.json)
    if args.plot is not None:
        from onrig.tools.benchmarks.loop_plot import plot

        plot(measured, args.plot)
