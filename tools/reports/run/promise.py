"""What a race promises of a run, and what the run made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from onrig.learner.trials.objectives import OBJECTIVES
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.runtime.view.run_view import RunFiles
from onrig.tools.load import load
from onrig.tools.reports.sheet import Sheet

ADVICE: Final = "advice.json"
KEY: Final = "advised"
"""Key of the promise in a run's ``meta.json``."""


class Promise(msgspec.Struct, frozen=True):
    """Content of ``advice.json``: what the twin promises of the best candidate."""

    config: str
    """Configuration, as named."""
    rig: str
    task: str
    rate_hz: float
    objective: str
    best: str
    recipe: str | None
    """File of its recipe, relative to the folder; None for the configuration as it is."""
    pairs: int
    mean: float
    low: float
    high: float
    """Bounds of the objective, 95 % for all candidates that are left together."""
    run_low: float
    run_high: float
    """Bounds of the objective of a single run, 95 %."""
    undecided: tuple[str, ...]
    """Others that may be better."""


def read_promise(folder: Path) -> Promise:
    """Read the advice in a folder; raises Failure."""
    try:
        return msgspec.json.decode(read_file(folder / ADVICE, MAX_JSON_BYTES), type=Promise)
    except OSError:
        raise Failure(f"'{folder}' holds no advice ({ADVICE}): `onrig advise CONFIG --out {folder}`") from None
    except msgspec.MsgspecError as error:
        raise Failure(f"{folder / ADVICE}: {error}; write it again with `onrig advise --resume`") from None


def recipe_of(folder: Path, promise: Promise) -> tuple[str, ...]:
    """Overrides with which a run takes the advice."""
    return () if promise.recipe is None else (f"recipe={folder / promise.recipe}",)


def check_same_rig(folder: Path, promise: Promise, name: str, overrides: tuple[str, ...]) -> None:
    """Raise Failure for a configuration that the advice is not for, and ConfigError for a wrong one."""
    config = load(name, overrides)
    for what, own, advised in (
        ("rig", config.rig.name, promise.rig),
        ("task", config.task.name, promise.task),
        ("rate", f"{config.rate_hz:g} Hz", f"{promise.rate_hz:g} Hz"),
    ):
        if own != advised:
            raise Failure(f"--advised: '{folder}' is for {what} {advised}, not {own}: run `onrig advise {name}`")


def facts_of(promise: Promise) -> dict[str, Any]:
    """The promise as facts of a run."""
    return {KEY: msgspec.to_builtins(promise)}


def promise_of(meta: Mapping[str, object]) -> Promise | None:
    """The promise that a run was begun with; None without one, or for a damaged one."""
    try:
        return msgspec.convert(meta[KEY], Promise)
    except (KeyError, msgspec.ValidationError):
        return None


def kept_score(m: RunFiles, promise: Promise) -> float | None:
    """What the run has of the objective; None before its end, or without evaluations."""
    column = np.array(m.evaluation["normalized"], np.float64)
    if not len(column) or len(m.train["episode"]) < m.config.episodes:
        return None
    return float(OBJECTIVES[promise.objective].scores(column[None])[0])


def verdict(score: float, promise: Promise) -> str:
    """How a run's score compares with the promise."""
    if score < promise.run_low:
        return "below the promise"
    return "above the promise" if score > promise.run_high else "as promised"


def advised_sheet(m: RunFiles) -> Sheet | None:
    """The promise of `onrig advise` and the run's score; None for a run that does not follow one."""
    promise = promise_of(m.meta)
    if promise is None:
        return None
    score = kept_score(m, promise)
    kept = "not yet known" if score is None else f"{score:.3f}, {verdict(score, promise)}"
    rows = (
        ("promised by the twin", f"{promise.run_low:.3f} to {promise.run_high:.3f}, mean {promise.mean:.3f}"),
        ("this run", kept),
    )
    title = OBJECTIVES[promise.objective].title
    note = (
        f"{promise.best}: {title}. The range is that of a single run (95 %), from {promise.pairs} pairs of a seed and "
        "a plant: a run outside of it suggests that the rig is none of the plants that the twin was given."
    )
    return Sheet("Advice", 1, ("", promise.objective), rows, (note,))


def broken_promise(m: RunFiles) -> str | None:
    """Warning about a run that differs from its promise by more than the bounds allow."""
    promise = promise_of(m.meta)
    score = None if promise is None else kept_score(m, promise)
    if promise is None or score is None or verdict(score, promise) == "as promised":
        return None
    told = f"{score:.3f} where {promise.run_low:.3f} to {promise.run_high:.3f} was promised"
    return f"This run is {verdict(score, promise)} of `onrig advise` ({told}): identify the rig again, and ask again."
