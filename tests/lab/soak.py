"""``python -m tests.lab.soak``: endurance test of a twin rig and a learner over a bad network, with injected faults.

The twin runs in real time; the learner connects over tcp and CURVE through a proxy that drops and delays data.  Every
few seconds a random fault hits the serial connection, the network or a process.  At the end the ledger of experiences
sent, stored and learned must balance; otherwise the exit code is 70.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.load import load_for_rig, print_problems
from onrig.tools.terminal import VerbParser, draw_or_report, file_problem, plot_problem
from tests.lab.command import add_overrides, complain, execute, program

MAX_MINUTES: Final = 60.0 * 24 * 7


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    p = VerbParser(prog=program("soak"), description=__doc__)
    p.add_argument("config", help="path or shipped name of a configuration that has a twin")
    p.add_argument("--minutes", type=float, default=10.0, metavar="N", help="duration in minutes (default: 10)")
    p.add_argument("--rate", type=float, default=200.0, metavar="HZ", help="sampling rate of the twin (default: 200)")
    p.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between faults (default: 5)")
    p.add_argument("--seed", type=int, default=0, metavar="K", help="seed of the fault schedule (default: 0)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the ledger and all time series to FILE")
    p.add_argument("--plot", type=Path, metavar="FILE", help="plot memory and faults over time to FILE")
    p.add_argument("--keep", type=Path, metavar="DIR", help="keep run folders and outputs in DIR")
    p.add_argument("--plan", action="store_true", help="print the fault schedule and exit")
    add_overrides(p)
    return p


def main(arguments: list[str]) -> int:
    """Run the soak; returns the exit code, 70 if the ledger does not balance."""
    args = parser().parse_args(arguments)
    problem = problem_with(args.minutes, args.rate, args.every, args.seed)
    if problem is not None:
        return complain("soak", problem)
    from tests.lab.endurance.schedule import plan

    faults = plan(60 * args.minutes, args.every, args.seed)
    if args.plan:
        for fault in faults:
            print(f"{fault.at_s:8.1f} s  {fault.kind:<17}  {fault.duration_s:5.2f} s  {fault.amount:.3g}")
        return ExitCode.OK
    if problem := (
        file_problem("json", args.json) or file_problem("plot", args.plot) or plot_problem("plot", args.plot)
    ):
        return complain("soak", problem)
    from tests.lab.endurance.soak_rig import settings_for

    settings = settings_for(args.rate, args.seed, args.overrides)
    try:
        config = load_for_rig(args.config, settings)
    except ConfigError as error:
        return print_problems(error)
    if config.device.twin is None:
        return complain("soak", f"{args.config} names a port; faults are injected only into a twin")
    if args.keep is not None:
        try:
            args.keep.mkdir(parents=True, exist_ok=True)
            empty = not any(args.keep.iterdir())
        except OSError as error:
            return complain("soak", f"--keep: '{args.keep}' cannot be written: {error.strerror}")
        if not empty:
            return complain("soak", f"--keep: '{args.keep}' is not empty; choose another folder")
    return _soak(args, settings)


def problem_with(minutes: float, rate_hz: float, every_s: float, seed: int) -> str | None:
    """Problem with the arguments of a soak, or None."""
    if not 0 < minutes <= MAX_MINUTES:
        return f"--minutes: expected more than 0, at most {MAX_MINUTES:g}, got {minutes:g}"
    if not (rate_hz > 0 and math.isfinite(rate_hz)):
        return f"--rate: expected a positive number, got {rate_hz:g}"
    if not 0.5 <= every_s <= 60 * minutes:
        return f"--every: expected 0.5 s to the length of the soak, {60 * minutes:g} s, got {every_s:g}"
    return f"--seed: expected 0 or more, got {seed}" if seed < 0 else None


def _soak(args: argparse.Namespace, settings: list[str]) -> int:
    from onrig.tools.bench.report import conclude
    from onrig.tools.progress import progress_for
    from tests.lab.endurance.schedule import plan
    from tests.lab.endurance.soak import RigNotStarted, Soak
    from tests.lab.endurance.soak_rig import SoakRig
    from tests.lab.pages import draw_soak, soak_report, soak_text
    from tests.lab.rig.audit import WatchingMirror
    from tests.lab.rig.balance import checks, failed

    length_s = 60.0 * args.minutes
    with ExitStack() as stack:
        if args.keep is not None:
            folder = args.keep.absolute()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onrig-soak-")))
        rig = stack.enter_context(SoakRig(args.config, settings, folder, args.seed))
        mirror = WatchingMirror(rig.config, rig.link.endpoint, rig.keys)
        mirror.start()
        stack.callback(mirror.close)
        soak = Soak(rig, mirror, plan(length_s, args.every, args.seed), length_s)
        progress = progress_for(length_s)
        stack.callback(progress.close)
        done_s = 0.0

        def report_progress(now_s: float, activity: str) -> None:
            nonlocal done_s
            progress.finish_step(max(0.0, now_s - done_s))
            done_s = max(done_s, now_s)
            progress.begin_step(activity)

        start_s = time.monotonic()
        try:
            soak.run(report_progress)
        except RigNotStarted as error:
            return complain("soak", str(error), ExitCode.INTERNAL)
    found = checks(soak.ledger)
    figures = {"minutes": args.minutes, "rate_hz": args.rate, "every_s": args.every, "seed": float(args.seed)}
    report = soak_report(figures, soak.ledger, soak.gauges, found)
    conclude(report, [soak_text(soak.ledger, soak.gauges, found)], args.json)
    if args.plot is not None:
        draw = partial(draw_soak, args.plot, soak.ledger, soak.gauges, soak.counts_from_s)
        if draw_or_report(str(args.plot), draw, lambda line: complain("soak", line)) is False:
            complain("soak", "--plot needs matplotlib: pip install 'onrig[viz]'")
    took = time.monotonic() - start_s
    print(f"\n{took / 60:.1f} minutes, {len(soak.ledger.faults)} faults")
    return ExitCode.INTERNAL if failed(found) else ExitCode.OK


if __name__ == "__main__":
    execute(main)
