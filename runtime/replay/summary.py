"""Figures from the replay process's parts, for the progress line, viewers and ``summary.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.files import replace_own_file
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.replay.accounts.figures import RunFigures
from onrig.runtime.replay.accounts.telemetry import ProcessFigures
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.learner_requests import LearnerRequests
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_watch import PolicyWatch
from onrig.runtime.replay.promise_watch import PromiseWatch
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeFile
from onrig.runtime.shm.latest import Latest
from onrig.runtime.shm.ring import RingReader


class Parts(NamedTuple):
    """Parts of the replay process, in the order in which a record passes through them."""

    ring: RingReader
    loop_state: Latest
    builder: TransitionBuilder
    memory: Memory
    figures: RunFigures
    accounts: EpisodeAccounts
    rows: EpisodeFile
    policies: PolicyAdmission
    requests: LearnerRequests
    watch: PolicyWatch
    promise: PromiseWatch | None
    """None if there is no plant to predict the rig's steps."""


FILE: Final = "summary.json"


def progress(parts: Parts, *, active_policy: int, policy_age_s: float) -> dict[str, float | str | None]:
    """Return the fields of the progress line; ``active_policy`` has acted for ``policy_age_s``."""
    figures, requests = parts.figures, parts.requests
    return {
        "episode": figures.episode,
        "normalized": figures.normalized_last20,
        "return": figures.return_last20,
        "ticks": figures.ticks,
        "missed": figures.missed,
        "updates": requests.updates,
        "updates_per_s": requests.updates_per_s,
        "policy": active_policy,
        "policy_age_s": round(policy_age_s, 3),
        "policy_behind": requests.updates_behind(active_policy),
        "stored": parts.memory.storage.stored,
        "policies_too_soon": parts.policies.n_too_soon,
    }


def process_figures(parts: Parts, *, dropped: int) -> ProcessFigures:
    """Return the figures that viewers get in addition to the step records; ``dropped`` as in ``summary_content``."""
    figures = parts.figures
    score = figures.return_last20 if figures.normalized_last20 is None else figures.normalized_last20
    return ProcessFigures(
        episode=parts.figures.episode,
        offered=parts.memory.offered,
        dropped=dropped,
        gaps=parts.builder.gaps,
        updates=parts.requests.updates,
        updates_per_s=parts.requests.updates_per_s,
        score_last20=float("nan") if score is None else score,
        policies_offered=parts.policies.n_offered,
        policies_admitted=parts.policies.n_admitted,
        policies_refused=parts.policies.n_refused,
    )


def summary_content(parts: Parts, *, dropped: int, active_policy: int) -> dict[str, object]:
    """Return the content of ``summary.json``, in the file's order, for the current state of the run.

    ``dropped``: records lost because the ring was full, over the run's lifetime.  ``active_policy``: id of the policy
    that acted last.
    """
    policies, requests = parts.policies, parts.requests
    return {
        "episodes": requests.feed.last_closed_episode,
        **parts.figures.summary(),
        "transitions": parts.memory.offered,
        "gaps": parts.builder.gaps,
        "dropped_records": dropped,
        "buffer": _buffer(parts.memory),
        "policies": {
            "offered": policies.n_offered,
            "admitted": policies.n_admitted,
            "refused": policies.n_refused,
            "too_soon": policies.n_too_soon,
            "rolled_back": policies.rolled_back,
            "active": active_policy,
        },
        "mirror_mismatches": requests.mismatches,
        "learner": {
            "updates": requests.updates,
            "updates_per_s": requests.updates_per_s,
            "error_batches": requests.feedback.batches,
        },
    }


def _buffer(memory: Memory) -> dict[str, object]:
    storage = memory.storage
    return {
        "capacity": storage.capacity,
        "stored": storage.stored,
        "refused": memory.keeper.n_rejected,
        "bytes": storage.nbytes + memory.keeper.nbytes,
        "strategy": str(memory.strategy),
        "synthetic": int(np.count_nonzero(storage.meta & Flag.SYNTHETIC)),
        "digest": storage.digest().hex(),
    }


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Write ``summary.json`` atomically; raises OSError."""
    replace_own_file(folder / FILE, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
