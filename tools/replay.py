"""Replay of a recorded run in a terminal: comparison, differences and verdict."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.record import Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.completeness import ItemCount
from onrig.tools.damage import LOG_PATTERNS, POLICY_PATTERNS, exit_code_with_damage, print_damage
from onrig.tools.plugins import plugin_difference, third_party_plugins
from onrig.tools.progress import progress_for
from onrig.tools.replaying.verification import OtherEvaluator, Verification
from onrig.tools.terminal import Table, complain, reason

_MCAP_MISSING_MESSAGE: Final = "reading a log needs mcap: pip install 'onrig[log]'"


def replay(folder: Path, tolerance: float) -> int:
    """Replay a run, and return the exit code: 0 if equal, 70 if different, 6 if equal but the log is incomplete, 2 if
    there is nothing to replay.
    """
    if not (folder / "config.yaml").is_file():
        return complain("replay", f"'{folder}' contains no run (config.yaml)")
    if not 0 <= tolerance <= 1:
        return complain("replay", f"--tolerance: expected 0 to 1, got {tolerance:g}")
    if find_spec("mcap") is None:
        return complain("replay", _MCAP_MISSING_MESSAGE, ExitCode.PREFLIGHT)
    try:
        config = load_resolved(folder / "config.yaml")
    except ConfigError as error:
        return complain("replay", str(error.problems[0]))
    if difference := plugin_difference(read_fields(folder / "meta.json"), third_party_plugins(config)):
        return complain("replay", f"'{folder}': {difference}")
    damage = print_damage("replay", folder, *LOG_PATTERNS, *POLICY_PATTERNS)
    return exit_code_with_damage(_replay(folder, config, tolerance), damage)


def _replay(folder: Path, config: RunConfig, tolerance: float) -> int:
    from onrig.runtime.log.reading import LogDamagedError, count_steps, read_log
    from onrig.runtime.log.staged_file import log_files

    if not log_files(folder):
        return complain(
            "replay", f"'{folder}' contains no log (log.mcap): log.mcap was false, or mcap was not installed"
        )
    verification = Verification(config, folder, tolerance)
    progress = progress_for(max(count_steps(folder), 1))
    n_verified = 0

    def add_records(records: int) -> None:
        nonlocal n_verified
        n_verified += records
        progress.begin_step(f"{n_verified} ticks")
        progress.finish_step(records)

    try:
        verification.run(
            read_log(folder, config.rig, behaviour=config.stochastic, inputs=config.input_names), add_records
        )
    except OtherEvaluator as error:
        return complain("replay", str(error))
    except LogDamagedError as error:
        return complain("replay", str(error), ExitCode.INTERNAL)
    finally:
        progress.close()
    try:
        counts = verification.missing_ticks()
    except (OSError, ValueError) as error:
        return complain("replay", f"{folder / 'episodes.csv'}: {reason(error)}", ExitCode.INTERNAL)
    print(table(folder, verification, counts))
    return verdict(verification, counts)


def verdict(verification: Verification, counts: ItemCount) -> int:
    """Print any problem to stderr, and return the exit code."""
    comparison = verification.comparison
    if comparison.first is not None:
        return complain("replay", f"first difference: {comparison.first}", ExitCode.INTERNAL)
    if verification.altered:
        return complain("replay", verification.altered[0], ExitCode.INTERNAL)
    if not comparison.ticks.total():
        return complain("replay", "no tick could be verified")
    if counts.present < counts.expected:
        return complain("replay", f"equal, but {_describe_absent_ticks(counts)}", ExitCode.INCOMPLETE)
    return ExitCode.OK


def _describe_absent_ticks(counts: ItemCount) -> str:
    return f"{counts.expected - counts.present} of the run's {counts.expected} ticks are missing from its log"


def table(folder: Path, verification: Verification, counts: ItemCount) -> Table:
    """Return a table of the ticks that were compared, that differ, and that could not be verified."""
    comparison = verification.comparison
    episodes, ticks = verification.episodes, comparison.ticks
    rows = [
        ("sessions", str(verification.sessions)),
        ("episodes", ", ".join(f"{episodes[k]} {k.name.lower()}" for k in Kind if episodes[k] or k is not Kind.RESET)),
        ("ticks compared", f"{ticks.total()} ({', '.join(f'{ticks[k]} {k.name.lower()}' for k in Kind if ticks[k])})"),
        ("ticks that differ", str(comparison.n_differing)),
    ]
    difference_counts = {name: comparison.fields[name] for name in (*comparison.decisions, *comparison.fields)}
    rows += [(f"  {name}", str(count)) for name, count in difference_counts.items()]
    rows += [("not verified", f"{count} ticks: {reason}") for reason, count in verification.unverified.most_common()]
    rows += [("", line) for line in verification.missing]
    if counts.present < counts.expected:
        rows.append(("not verified", _describe_absent_ticks(counts)))
    rows += [("altered", line) for line in verification.altered]
    rows += [("log", line) for line in (*verification.remarks, _describe_volume(folder, verification))]
    return Table(f"replay of {folder}", (), tuple(rows))


def _describe_volume(folder: Path, verification: Verification) -> str:
    from onrig.runtime.log.reading import log_size

    size, steps = log_size(folder), max(verification.records, 1)
    per_step = size / steps
    return f"{size / 1e6:.3g} MB, {per_step:.0f} bytes per tick: {per_step * 200 * 3600 / 1e6:.0f} MB/h at 200 Hz"
