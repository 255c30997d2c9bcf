"""``python -m tests.lab.faults``: the fault matrix on the twin in real time, measured by the device's own clock."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.bench.report import Check, Report, Row, check_at_most, conclude, describe_machine
from onrig.tools.progress import progress_for
from onrig.tools.reports.sheet import markdown_table
from onrig.tools.terminal import VerbParser, align, file_problem
from tests.lab.command import complain, execute, parser_of
from tests.lab.fault_matrix import CASES, Case, Outcome
from tests.lab.rig.processes import WaitTimeout
from tests.lab.rig.rig import WatchedRig

_CASE_S: Final = 12.0
_HEAD: Final = ("fault", "named", "safe after (worst)", "bound", "nothing durable lost", "re-arming works", "")


def parser() -> VerbParser:
    """Build the argument parser."""
    p = parser_of("faults", __doc__)
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to FILE as Markdown (for SAFETY.md)")
    p.add_argument("--repeats", type=int, default=3, metavar="N", help="repetitions of each fault (default: 3)")
    p.add_argument("--only", action="append", default=[], metavar="CASE", choices=[c.name for c in CASES])
    p.add_argument("--keep", type=Path, metavar="DIR", help="keep the run folders in DIR")
    return p


def main(arguments: list[str]) -> int:
    """Inject every fault; returns the exit code, 0 whether or not the checks hold."""
    args = parser().parse_args(arguments)
    if args.repeats < 1:
        return complain("faults", "--repeats: expected at least 1")
    for option, file in (("json", args.json), ("markdown", args.markdown)):
        if problem := file_problem(option, file):
            return complain("faults", problem)
    if args.keep is not None and args.keep.exists() and any(args.keep.iterdir()):
        return complain("faults", f"--keep: '{args.keep}' is not empty; choose another folder")
    cases = [c for c in CASES if not args.only or c.name in args.only]
    found: dict[str, list[Outcome]] = {}
    bound_ms = 0.0
    with (
        contextlib.closing(progress_for(len(cases) * args.repeats * _CASE_S)) as progress,
        tempfile.TemporaryDirectory(prefix="onrig-faults-") as temporary,
    ):
        for case in cases:
            for n in range(args.repeats):
                progress.begin_step(f"{case.name}, {n + 1} of {args.repeats}")
                folder = Path(args.keep or temporary) / f"{case.name.replace(' ', '-')}-{n + 1}"
                outcome, bound_ms = _try(case, folder)
                found.setdefault(case.name, []).append(outcome)
                progress.finish_step(_CASE_S)
                if args.keep is None:
                    shutil.rmtree(folder, ignore_errors=True)
    rows = [_cells(case, found[case.name], bound_ms) for case in cases]
    conclude(report(cases, found, bound_ms), [align([_HEAD, *rows])], args.json)
    if args.markdown is not None:
        args.markdown.write_text(markdown_table([_HEAD, *rows], len(_HEAD)) + "\n", encoding="utf-8")
    return ExitCode.OK


def _try(case: Case, folder: Path) -> tuple[Outcome, float]:
    folder.mkdir(parents=True)
    with WatchedRig(folder, learner=case.learner, twin_faults=case.twin_faults, more=case.settings) as rig:
        bound_ms = (rig.config.rig.lease_periods + 1) * rig.config.period_us / 1000
        try:
            return case.attempt(rig), bound_ms
        except WaitTimeout as error:
            return Outcome(None if case.unaffected else float("inf"), False, False, False, str(error)), bound_ms


def worst_ms(outcomes: Sequence[Outcome]) -> float | None:
    """Longest time to the safe output; None if the loop must continue."""
    times = [o.safe_ms for o in outcomes if o.safe_ms is not None]
    return max(times) if times else None


def _cells(case: Case, outcomes: Sequence[Outcome], bound_ms: float) -> tuple[str, ...]:
    worst = worst_ms(outcomes)
    n = len(outcomes)

    def all_of(held: list[bool]) -> str:
        return "yes" if all(held) else f"{sum(held)} of {n}"

    named = case.fault if all(o.named for o in outcomes) else f"NOT {case.fault}"
    notes = [o.note for o in outcomes if not (o.named and o.kept and o.rearmed)] or [outcomes[-1].note]
    return (
        case.name,
        named,
        "no need" if worst is None else f"{worst:.1f} ms",
        "" if worst is None else f"{bound_ms:.0f} ms",
        all_of([o.kept for o in outcomes]),
        all_of([o.rearmed for o in outcomes]),
        notes[0],
    )


def report(cases: Sequence[Case], found: dict[str, list[Outcome]], bound_ms: float) -> Report:
    """Return the figures as a benchmark report."""
    rows, checks = [], []
    for case in cases:
        outcomes = found[case.name]
        worst = worst_ms(outcomes)
        if worst is not None:
            times = sorted(o.safe_ms for o in outcomes if o.safe_ms is not None)
            rows.append(Row(case.name, "onrig", "ms_until_safe", times[len(times) // 2], worst, worst, worst))
            checks.append(check_at_most(f"{case.name}: ms until the safe output", worst, bound_ms))
        for name, held in (
            ("named", [o.named for o in outcomes]),
            ("nothing durable lost", [o.kept for o in outcomes]),
            ("re-arming works", [o.rearmed for o in outcomes]),
        ):
            checks.append(Check(f"{case.name}: {name}, share of repetitions", sum(held) / len(held), 1.0, all(held)))
    return Report(describe_machine(), 0.0, rows, checks)


if __name__ == "__main__":
    execute(main)
