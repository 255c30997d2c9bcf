"""``python -m tests.lab.attack``: fuzzing, hostile peers, killed processes and exhausted resources against a rig.

Fuzzed configurations, hostile models, garbage and connection floods on every interface, processes killed and stopped at
random, disk, shared memory and file descriptors exhausted, stops over a bad line.  Each finished piece is saved in the
output folder; the same command resumes an interrupted attack.  Only this machine is attacked.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.tools.terminal import VerbParser, file_problem
from tests.lab.attacks.campaign import Campaign, Fuzzing, RecordedPieces, Verdict, run_piece, verdict
from tests.lab.attacks.deaths import DeadHosts
from tests.lab.attacks.doors import Crowds, Garbage, ModelsOverTheLink, Returning
from tests.lab.attacks.lockstep import Exhaustion, LockstepHits, ReferenceRun
from tests.lab.attacks.realtime import RealtimeHits, Stops
from tests.lab.command import complain, execute, program


class Size(NamedTuple):
    """Size of each campaign: pieces, and cases per piece."""

    configurations: tuple[int, int]
    models: tuple[int, int]
    link_models: tuple[int, int]
    garbage: tuple[int, int]
    crowds: tuple[int, int]
    returning: tuple[int, int]
    lockstep: tuple[int, int]
    realtime: tuple[int, int]
    exhaustion: int
    deaths: tuple[int, int]
    stops: int
    episodes: int
    """Length of a lockstep run."""
    max_stop_s: float | None
    """Longest time that a process is stopped or a resource exhausted; None includes permanently."""


FULL: Final = Size(
    (10, 1000), (5, 2000), (2, 500), (2, 50_000), (4, 4000), (4, 40), (25, 2), (10, 5), 10, (6, 10), 20, 16, None
)
QUICK: Final = Size((1, 40), (1, 80), (1, 20), (1, 300), (1, 50), (2, 40), (1, 1), (1, 1), 1, (1, 2), 1, 6, 0.5)


def campaigns(seed: int, size: Size = FULL) -> list[Campaign]:
    """All campaigns in execution order."""
    reference_run, max_stop_s = ReferenceRun(seed, size.episodes), size.max_stop_s
    return [
        Fuzzing("configurations", "fuzzed configurations", seed, *size.configurations, case_s=0.1, steady=False),
        Fuzzing("models", "hostile or mutated models at the door", seed, *size.models, case_s=0.005),
        ModelsOverTheLink(seed, *size.link_models),
        Garbage(seed, *size.garbage),
        Crowds(seed, *size.crowds),
        Returning(seed, *size.returning),
        *(
            LockstepHits(reference_run, seed, *size.lockstep, stop=stop, max_stop_s=max_stop_s)
            for stop in (False, True)
        ),
        *(RealtimeHits(seed, *size.realtime, stop=stop, max_stop_s=max_stop_s) for stop in (False, True)),
        *(
            Exhaustion(exhausted, seed, size.exhaustion, max_stop_s=max_stop_s)
            for exhausted in ("disk", "shm", "descriptors")
        ),
        DeadHosts(seed, *size.deaths),
        Stops(seed, size.stops),
    ]


NAMES: Final = tuple(campaign.name for campaign in campaigns(0, QUICK))
ReportProgress = Callable[[str, float], object]
"""Progress callback: current activity and the seconds of the total it accounts for."""


def attack(chosen: Sequence[Campaign], out: Path, report_progress: ReportProgress) -> list[Verdict]:
    """Run the unfinished pieces of each campaign; results go to ``out``."""
    verdicts = []
    for campaign in chosen:
        recorded = RecordedPieces(out / f"{campaign.name}.jsonl")
        for number in recorded.missing(campaign.pieces):
            report_progress(f"{campaign.name} {number + 1}/{campaign.pieces}", 0.0)
            recorded.add(run_piece(campaign, number, out / "kept" / f"{campaign.name}-{number}"))
            report_progress(campaign.name, campaign.piece_s)
        verdicts.append(verdict(campaign, recorded.pieces))
    return verdicts


_DEFAULT: Final = "attack"


class StartArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments that an attack was started with."""

    seed: int
    quick: bool


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    p = VerbParser(
        prog=program("attack"), description=__doc__, epilog="exit codes: 0 all requirements held, 70 otherwise"
    )
    p.add_argument("--quick", action="store_true", help="a few cases of each part; takes a minute or two")
    p.add_argument("--only", metavar="NAME,...", help="run only these parts (see --list)")
    p.add_argument("--list", action="store_true", help="list the parts and exit")
    p.add_argument("--seed", type=int, default=0, metavar="K", help="random seed (default: 0)")
    p.add_argument("--out", type=Path, default=Path(_DEFAULT), metavar="DIR", help=f"default: {_DEFAULT}")
    p.add_argument("--markdown", type=Path, metavar="FILE", help="write the results table to FILE as Markdown")
    p.add_argument("--json", type=Path, metavar="FILE", help="write findings and figures to FILE")
    return p


def main(arguments: list[str]) -> int:
    """Run the attack; returns the exit code, 70 if a requirement was violated."""
    args = parser().parse_args(arguments)
    chosen = campaigns(args.seed, QUICK if args.quick else FULL)
    if args.list:
        for campaign in chosen:
            print(f"{campaign.name:<20}  {campaign.description}")
        return ExitCode.OK
    if args.seed < 0:
        return complain("attack", f"--seed: expected 0 or more, got {args.seed}")
    only = args.only.split(",") if args.only else list(NAMES)
    if unknown := [name for name in only if name not in NAMES]:
        return complain("attack", f"--only: unknown part '{unknown[0]}'; choose from {', '.join(NAMES)}")
    if problem := file_problem("markdown", args.markdown) or file_problem("json", args.json):
        return complain("attack", problem)
    out = args.out.absolute()
    problem = _begin(out, StartArguments(args.seed, args.quick))
    if problem is not None:
        return complain("attack", problem)

    from onrig.tools.bench.report import conclude
    from onrig.tools.progress import progress_for
    from tests.lab.attacks.campaign import RecordedPieces
    from tests.lab.pages import attack_line, attack_markdown, attack_report, attack_text

    chosen = [campaign for campaign in chosen if campaign.name in only]
    finished_s = [
        c.piece_s * (c.pieces - len(RecordedPieces(out / f"{c.name}.jsonl").missing(c.pieces))) for c in chosen
    ]
    progress = progress_for(sum(c.pieces * c.piece_s for c in chosen) - sum(finished_s) or 1.0)

    def report_progress(activity: str, seconds: float) -> None:
        progress.begin_step(activity)
        progress.finish_step(seconds)

    verdicts = []
    try:
        for campaign in chosen:
            verdicts += attack([campaign], out, report_progress)
            print(attack_line(verdicts[-1]), flush=True)
    finally:
        progress.close()
    conclude(attack_report(args.seed, verdicts), [f"\n{attack_text(verdicts)}"], args.json)
    if args.markdown is not None:
        args.markdown.write_text(attack_markdown(verdicts), encoding="utf-8")
    return ExitCode.OK if all(v.holds for v in verdicts) else ExitCode.INTERNAL


def _begin(out: Path, arguments: StartArguments) -> str | None:
    """Start in a folder, or continue an attack with the same arguments; returns the problem, or None."""
    file = out / "attack.json"
    if file.exists():
        try:
            before = msgspec.json.decode(read_file(file, MAX_JSON_BYTES), type=StartArguments)
        except (OSError, msgspec.DecodeError) as error:
            return f"--out: '{file}' cannot be read: {error}"
        if before != arguments:
            quick = " --quick" if before.quick else ""
            return f"--out: '{out}' holds an attack with --seed {before.seed}{quick}; choose another folder"
        return None
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return f"--out: '{out}' is not empty; choose another folder"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(arguments))
    except OSError as error:
        return f"--out: '{out}' cannot be written: {error.strerror}"
    return None


if __name__ == "__main__":
    execute(main)
