"""``python -m tests.lab.seeds``: learning reliability of a run through the complete stack, over seeds 0, 1, 2, ...

The measure is the normalised score of its noise-free evaluations (0 random, 1 reference).  Finished seeds are rows of
the file --out; the same command continues from there. A seed takes as long as the run: --dry-run shows the remaining
work.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onrig.learner.trials.intervals import median_bounds, paired_difference
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.episodes import read_rows as read_episodes
from onrig.tools.bench.report import Report, conclude, describe_machine, percentiles
from onrig.tools.experiments.spec import cell_id
from onrig.tools.load import load_for_rig
from onrig.tools.quantity import format_duration, format_estimate, format_share
from onrig.tools.terminal import VerbParser, align, file_problem
from tests.lab.command import add_overrides, complain, execute, parser_of
from tests.lab.trials_file import append_rows, read_rows

_NAME: Final = "seeds"
GOAL: Final = 0.8
"""Normalised performance at which a task counts as learned, as in the rise time of de Bruin et al. 2018 (§5.1)."""
LAST: Final = 20
"""Number of evaluations whose mean is the final performance."""
COLUMNS: Final = ("run", "seed", "episodes", "final", "reached", "wall_s", "cell")


class Seed(NamedTuple):
    """A finished run."""

    run: str
    """Arguments of ``onrig run``, without the seed."""
    seed: int
    episodes: int
    final: float
    """Mean of the last evaluations."""
    reached: int | None
    """First training episode whose last ``LAST`` evaluations averaged ``GOAL``; None if there is none, or if unknown.
    """
    wall_s: float | None
    cell: str
    """Digest of its configuration (``cell_id``); empty if unknown."""


class _Failed(Exception):
    """Reason for a missing result, with the exit code."""

    def __init__(self, message: str, code: int = ExitCode.INTERNAL) -> None:
        super().__init__(message)
        self.code = code


def parser() -> VerbParser:
    """Build the argument parser."""
    p = parser_of(_NAME, __doc__)
    p.add_argument("config", metavar="CONFIG", help="a run, as for `onrig run`")
    add_overrides(p)
    p.add_argument("--out", type=Path, default=Path("runs/seeds.csv"), metavar="FILE", help="default: %(default)s")
    p.add_argument("--seeds", type=int, default=10, metavar="N", help="number of seeds (default: %(default)s)")
    p.add_argument("--at-once", type=int, default=1, metavar="N", help="number of parallel runs (default: %(default)s)")
    p.add_argument(
        "--against",
        metavar="RUN",
        help="also compare with the seeds of another run in FILE, given as one word ('CONFIG --set a.b=c')",
    )
    p.add_argument("--dry-run", action="store_true", help="print the remaining work, run nothing")
    return p


def main(arguments: list[str]) -> int:
    """Run the missing seeds, then report all results; returns the exit code."""
    args = parser().parse_args(arguments)
    for option, value in (("seeds", args.seeds), ("at-once", args.at_once)):
        if not 1 <= value <= 1000:
            return complain(_NAME, f"--{option}: expected 1 to 1000, got {value}")
    if problem := file_problem("json", args.json):
        return complain(_NAME, problem)
    try:
        config = load_for_rig(args.config, args.overrides)
    except ConfigError as error:
        print("\n".join(map(str, error.problems)), file=sys.stderr)
        return ExitCode.CONFIGURATION
    if config.task.normalization is None:
        return complain(_NAME, f"task {config.task.name} has no references: give task.normalization to compare by")
    if not 0 < config.evaluate_every <= config.episodes:
        message = f"evaluate_every is {config.evaluate_every}, episodes {config.episodes}"
        return complain(_NAME, f"{message}: without noise-free evaluations there is nothing to compare")
    try:
        against = shlex.split(args.against or "")
    except ValueError as error:
        return complain(_NAME, f"--against: {error}: '{args.against}'")
    words = [args.config, *(word for setting in args.overrides for word in ("--set", setting))]
    try:
        others = rows_of(against, args.out)
        if against and not others:
            return complain(_NAME, f"--against: '{args.out}' has no seeds of '{args.against}'")
        finished = {row.seed for row in rows_of(words, args.out)}
        todo = [seed for seed in range(args.seeds) if seed not in finished]
        print(f"{args.out}: {len(todo)} of {args.seeds} seeds to run, {config.episodes} episodes each", flush=True)
        if args.dry_run:
            return ExitCode.OK
        args.out.parent.mkdir(parents=True, exist_ok=True)
        _run_all(words, todo, args.out, args.at_once)
        rows = [row for row in rows_of(words, args.out) if row.seed < args.seeds]
        finals = percentiles(f"{shlex.join(words)}, final", "onrig", "normalised", [row.final for row in rows])
        sections = [summary_table(rows)]
        if others:
            sections.append(paired_table(rows, others, args.against))
        conclude(Report(describe_machine(), 0.0, [finals], []), sections, args.json)
    except _Failed as error:
        return complain(_NAME, str(error), error.code)
    except OSError as error:
        return complain(_NAME, f"'{error.filename or args.out}': {error.strerror or error}")
    except KeyboardInterrupt:
        return complain(_NAME, "stopped; the same command continues from here", ExitCode.INTERRUPTED)
    return ExitCode.OK


def _run_all(words: Sequence[str], seeds: Sequence[int], out: Path, at_once: int) -> None:
    """Run and record these seeds; if one fails, the others that have begun end as well, and its error is raised."""

    def run(seed: int) -> None:
        row = run_seed(words, seed)
        append_rows(out, COLUMNS, [["" if value is None else value for value in row]])
        print(f"seed {row.seed}: {row.final:.3f}, {_when(row)}, {format_duration(row.wall_s or 0.0)}", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for job in as_completed([pool.submit(run, seed) for seed in seeds]):
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_seed(words: Sequence[str], seed: int) -> Seed:
    """Run one seed in a folder that is deleted afterwards; raises _Failed."""
    start_s, cell = time.monotonic(), _cell_of(words)
    with tempfile.TemporaryDirectory(prefix="onrig-seed-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "onrig.tools.cli", "run", *words, "--set", f"seed={seed}"]
        process = subprocess.run(
            [*command, "--run-dir", str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if process.returncode:
            message = process.stderr.strip().splitlines() or ["no message"]
            code = process.returncode if process.returncode > 0 else ExitCode.INTERNAL
            raise _Failed(f"seed {seed} ended with exit code {process.returncode}: {message[-1]}", code)
        rows = read_episodes(run_dir / "episodes.csv").rows
    if _cell_of(words) != cell:
        raise _Failed(f"the settings changed while seed {seed} ran: run it again", ExitCode.CONFIGURATION)
    evaluations = [(row.episode, row.normalized) for row in rows if row.kind == "eval" and row.normalized is not None]
    final, reached = performance(evaluations)
    wall_s = round(time.monotonic() - start_s, 1)
    return Seed(shlex.join(words), seed, rows[-1].episode, round(final, 4), reached, wall_s, cell)


def performance(evaluations: Sequence[tuple[int, float]]) -> tuple[float, int | None]:
    """Return the final performance and the time it was reached, from (training episode, evaluation) pairs."""
    values = np.array([value for _, value in evaluations])
    means = sliding_window_view(values, LAST).mean(axis=1) if len(values) >= LAST else np.zeros(0)
    finished = np.flatnonzero(means >= GOAL)
    return float(values[-LAST:].mean()), evaluations[finished[0] + LAST - 1][0] if len(finished) else None


def rows_of(words: Sequence[str], path: Path) -> list[Seed]:
    """Read the finished seeds of a run, each once, however many processes ran it; returns none without a file.

    Raises OSError, and _Failed for other files and for seeds of the run with other settings.
    """

    def parse(row: Sequence[str]) -> Seed:
        run, seed, episodes, final, reached, wall_s, cell = row
        at = int(reached) if reached else None
        return Seed(run, int(seed), int(episodes), float(final), at, float(wall_s) if wall_s else None, cell)

    try:
        rows = [row for row in read_rows(path, COLUMNS, parse) if row.run == shlex.join(words)]
    except ValueError as error:
        raise _Failed(f"'{path}' cannot be read: {error}", ExitCode.CONFIGURATION) from None
    known = {row.cell for row in rows} - {""}
    if known and known != {_cell_of(words)}:
        message = f"'{path}' has seeds of '{shlex.join(words)}' from before its settings changed"
        raise _Failed(f"{message}: give another --out, or delete their rows", ExitCode.CONFIGURATION)
    return list({row.seed: row for row in rows}.values())


def _cell_of(words: Sequence[str]) -> str:
    """Return the digest of the configuration of a run; raises _Failed if it cannot be loaded."""
    try:
        return cell_id(load_for_rig(words[0], list(words[2::2])))
    except ConfigError as error:
        raise _Failed(str(error.problems[0]), ExitCode.CONFIGURATION) from None


def summary_table(rows: Sequence[Seed]) -> str:
    """Tabulate the seeds, and summarise them."""
    ordered = sorted(rows, key=lambda row: row.seed)
    table = [["seed", "episodes", "final", f"{GOAL} reached"]]
    table += [[str(row.seed), str(row.episodes), f"{row.final:.3f}", _when(row)] for row in ordered]
    finals = np.array([row.final for row in rows])
    median, enough = format_estimate(median_bounds(finals), 3), int((finals >= GOAL).sum())
    note = (
        f"Final: mean of the last {LAST} noise-free evaluations, normalised; median of all seeds with its 95 % "
        f"interval {median}, lowest {finals.min():.3f}, mean {finals.mean():.3f}; "
        f"{format_share(enough, len(rows))} end at "
        f"{GOAL} or more. Reached: the first training episode at which {LAST} evaluations in a row averaged that."
    )
    return f"{align(table)}\n\n{note}"


def paired_table(rows: Sequence[Seed], others: Sequence[Seed], name: str) -> str:
    """Tabulate the differences from the same seeds of another run, labelled ``name``."""
    of_seed = {row.seed: row for row in others}
    pairs = [(row, of_seed[row.seed]) for row in rows if row.seed in of_seed]
    if not pairs:
        return f"No seed of '{name}' is among these."
    final = paired_difference(*(np.array([pair[k].final for pair in pairs]) for k in (0, 1)))
    message = (
        f"Minus '{name}', {len(pairs)} pairs of seeds, medians with 95 % intervals and p of a sign test: final "
        f"{format_estimate(final, 3, signed=True)}, p = {final.p:.2g}"
    )
    times = [(a.reached, b.reached) for a, b in pairs]
    later = np.array([(a, b) for a, b in times if a is not None and b is not None], np.float64)
    if not len(later):
        return f"{message}; in no pair are both known to have reached {GOAL}."
    reached = paired_difference(later[:, 0], later[:, 1])
    message += f", episodes until {GOAL} was reached {format_estimate(reached, 0, signed=True)}, p = {reached.p:.2g}"
    some = (
        "" if len(later) == len(pairs) else f" (in the {len(later)} pairs in which both are known to have reached it)"
    )
    return f"{message}{some}."


def _when(row: Seed) -> str:
    return "-" if row.reached is None else f"at episode {row.reached}"


if __name__ == "__main__":
    execute(main)
