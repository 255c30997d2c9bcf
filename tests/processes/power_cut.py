"""Comparison of a run that was cut off and resumed with an undisturbed one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.episodes import read_rows
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import Run


class Outcome(NamedTuple):
    """Results of a finished run that must be equal."""

    episodes: bytes
    memory: object
    policies: dict[str, bytes]
    counts: dict[str, object]


def complete_run(folder: Path, config: str, *settings: str, resume: bool = False) -> Path:
    """Run to the end; returns the run folder."""
    with Run(folder, config, *settings, resume=resume) as run:
        assert run.ended(4 * PATIENCE_S) == ExitCode.OK
        assert run.leftover_paths() == []
    return folder


def outcome_of(folder: Path) -> Outcome:
    """Read the results of a finished run."""
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
    assert summary["exit_reason"] == "completed"
    buffer = msgspec.convert(summary["buffer"], dict[str, object])
    policies = {path.name: path.read_bytes() for path in (folder / "policies").glob("*.onnx")}
    learner = msgspec.convert(summary["learner"], dict[str, object])
    counted = ("episodes", "ticks", "missed_ticks", "interventions", "faults", "transitions", "gaps", "policies")
    counts = {name: summary[name] for name in (*counted, "normalized_last20", "mirror_mismatches")}
    return Outcome(
        (folder / "episodes.csv").read_bytes(), buffer["digest"], policies, {**counts, "updates": learner["updates"]}
    )


def last_episode(folder: Path) -> int:
    """Number of the last recorded training episode."""
    return max((row.episode for row in read_rows(folder / "episodes.csv").rows), default=0)


def resumptions_of(folder: Path) -> Sequence[dict[str, object]]:
    """Events that report where a resumed run continued."""
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    events = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
    return [event for event in events if event["kind"] == "resumed"]
