"""Result of a race: its file in the race's folder, and its entry in the ``meta.json`` of a run that uses it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.tools.load import load

ADVICE_FILE: Final = "advice.json"
META_KEY: Final = "advised"
"""Key in a run's ``meta.json``."""


class Advice(msgspec.Struct, frozen=True):
    """Content of ``advice.json``: the best candidate, and its score on the twin."""

    config: str
    """Path or shipped name of the configuration."""
    rig: str
    task: str
    rate_hz: float
    episodes: int
    """Training episodes of each trial."""
    objective: str
    best: str
    recipe: str | None
    """Recipe file of the best candidate, relative to the race's folder; None if it is the unchanged configuration."""
    pairs: int
    mean: float
    low: float
    high: float
    """Simultaneous 95 % bounds on the objective, over all remaining candidates."""
    run_low: float
    run_high: float
    """95 % bounds on the objective of a single run."""
    undecided: tuple[str, ...]
    """Candidates that the race could not distinguish from the best one."""


def read_advice(folder: Path) -> Advice:
    """Read the advice in a folder. Raises Failure if it is missing or invalid."""
    try:
        return msgspec.json.decode(read_file(folder / ADVICE_FILE, MAX_JSON_BYTES), type=Advice)
    except OSError:
        raise Failure(
            f"'{folder}' contains no advice ({ADVICE_FILE}): create it with `onrig advise CONFIG --out {folder}`"
        ) from None
    except msgspec.MsgspecError as error:
        raise Failure(f"{folder / ADVICE_FILE}: {error}; write it again with `onrig advise --resume`") from None


def recipe_overrides(folder: Path, advice: Advice) -> tuple[str, ...]:
    """Return the overrides that apply the advice to a run."""
    return () if advice.recipe is None else (f"recipe={folder / advice.recipe}",)


def check_same_rig(folder: Path, advice: Advice, name: str, overrides: tuple[str, ...]) -> None:
    """Raise Failure if the advice is for a different rig, task or rate, and ConfigError for an invalid
    configuration.
    """
    config = load(name, overrides)
    for quantity, configured_value, advised_value in (
        ("rig", config.rig.name, advice.rig),
        ("task", config.task.name, advice.task),
        ("rate", f"{config.rate_hz:g} Hz", f"{advice.rate_hz:g} Hz"),
    ):
        if configured_value != advised_value:
            mismatch = f"'{folder}' is for {quantity} {advised_value}, not {configured_value}"
            raise Failure(f"--advised: {mismatch}: run `onrig advise {name}`")


def advice_facts(advice: Advice) -> dict[str, Any]:
    """Return the advice as an entry for a run's ``meta.json``."""
    return {META_KEY: msgspec.to_builtins(advice)}


def advice_from_meta(meta: Mapping[str, object]) -> Advice | None:
    """Return the advice recorded in a run's ``meta.json``, or None if it is missing or damaged."""
    try:
        return msgspec.convert(meta[META_KEY], Advice)
    except (KeyError, msgspec.ValidationError):
        return None
