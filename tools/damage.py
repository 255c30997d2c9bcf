"""Detection of damaged files in a run folder; every verb that reads the files reports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.replay.evidence import Fault, faults, read_evidence
from onrig.runtime.run_state.checksums import difference
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX
from onrig.runtime.run_state.policy_index import read_index
from onrig.runtime.run_state.running import find_running

LOG_PATTERNS: Final = ("log*.mcap",)
POLICY_PATTERNS: Final = ("policies/*",)
REPORT_PATTERNS: Final = ("episodes.csv", "events.jsonl", "summary.json", "timing.json", "meta.json", "post-mortem/*")
"""Files that reports and pages are built from."""


def path_matcher(*patterns: str) -> Callable[[str], bool]:
    """Return a predicate that tests whether a path in a run folder matches one of the patterns."""
    return lambda name: any(fnmatch(name, pattern) for pattern in patterns)


def find_damage(folder: Path, *patterns: str) -> list[Fault]:
    """Compare the matching files of a finished run with their checksums, and return one fault per damaged file. Return
    an empty list for a run in progress.
    """
    if find_running(folder) is not None:
        return []
    return faults(folder, read_evidence(folder), path_matcher("config.yaml", *patterns))


def print_damage(verb: str, folder: Path, *patterns: str) -> list[str]:
    """Print the faults that `find_damage` finds to stderr, and return them as lines of text."""
    lines = [f"{folder}: {fault}" for fault in find_damage(folder, *patterns)]
    for line in lines:
        sys.stderr.write(f"onrig {verb}: {line}\n")
    return lines


def exit_code_with_damage(code: int, damage: Sequence[str]) -> int:
    """Return the exit code of a verb that continued despite damage."""
    return ExitCode.INCOMPLETE if damage and code == ExitCode.OK else code


def policy_damage(path: Path) -> str | None:
    """Describe the damage to a policy file in a run folder. Return None if it is intact or not in a run folder."""
    index = read_index(path.absolute().parent / Path(POLICY_INDEX).name)
    expected_entry = index.get(int(path.stem)) if path.suffix == ".onnx" and path.stem.isdecimal() else None
    return None if expected_entry is None else difference(path, expected_entry)
