"""The ``learner`` section of a run's configuration; reading it needs no torch."""

from __future__ import annotations

import msgspec

from learner.ddpg_config import DdpgConfig


class LearnerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What learns, how much, and on how many threads."""

    ddpg: DdpgConfig = DdpgConfig()
    updates_per_episode: int | None = None
    """Batch updates after every training episode (000 §B.1; 100 for its 200 steps)."""
    updates_per_transition: float | None = None
    """Batch updates per experience, as they come in, instead (real time only)."""
    threads: int = 1
    """torch threads; one in lockstep, whatever stands here."""
    backlog: int = 2000
    """Most updates the learner may owe in real time; what it cannot keep up with is not made up for later."""


def settings_problems(settings: LearnerSettings, *, lockstep: bool) -> list[tuple[str, str]]:
    """List what does not fit together, as (path, message) pairs."""
    problems = []
    if (settings.updates_per_episode is None) == (settings.updates_per_transition is None):
        problems.append(("", "expected exactly one of 'updates_per_episode' and 'updates_per_transition'"))
    if settings.updates_per_episode is not None and settings.updates_per_episode < 1:
        problems.append(("updates_per_episode", "expected at least 1"))
    if settings.updates_per_transition is not None and not 0 < settings.updates_per_transition <= 100:
        problems.append(("updates_per_transition", "expected more than 0, at most 100"))
    if lockstep and settings.updates_per_transition is not None:
        problems.append(("updates_per_transition", "lockstep learns between episodes: use 'updates_per_episode'"))
    if settings.threads < 1:
        problems.append(("threads", "expected at least 1"))
    if settings.backlog < 1:
        problems.append(("backlog", "expected at least 1"))
    return problems
