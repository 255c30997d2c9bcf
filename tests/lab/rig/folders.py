"""Synthetic folders of ended runs."""

from __future__ import annotations

import msgspec

from onrig.runtime.run_loading import load_run
from onrig.runtime.run_state.episodes import EpisodeRow
from tests.lab.rig.run_folder import Episode, FolderContents, LoggedRun, ReportedCounts

STEPS = 200
CONFIG = msgspec.structs.replace(load_run("pendulum"), episodes=4, evaluate_every=2)


def row(episode: int, kind: str = "train", steps: int = STEPS) -> EpisodeRow:
    return EpisodeRow(episode, kind, steps, -1.0, -0.1, 0.5, 1.0, 0, 0, episode, 1000 * episode)


def complete_folder() -> FolderContents:
    """Return a folder with four episodes and two evaluations, without losses."""
    rows = [row(1), row(2), row(2, "eval"), row(3), row(4), row(4, "eval")]
    episodes = {(r.episode, r.kind): Episode(r.steps, frozenset({r.policy_id})) for r in rows}
    return FolderContents(
        summary={"exit_reason": "completed", "whole": {"complete": True, "rows": {"expected": 6, "present": 6}}},
        rows=rows,
        rows_problem="",
        policies=frozenset({1, 2, 3, 4}),
        log=LoggedRun(0, episodes, ""),
        checkpoint=ReportedCounts(offered=4 * STEPS, digest="d"),
        unfinished_files=[],
    )
