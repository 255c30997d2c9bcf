"""Results folder of an experiment: its spec, and one file per finished trial.

The folder contains ``spec.yaml`` (a copy), ``cells.json`` (id, label and resolved configuration of every cell),
``meta.json`` (machine, versions and time) and ``trials/CELL/SEED.npz``. The file of a trial is written atomically and
never changes; a damaged one counts as missing and is created again when the experiment is resumed.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.step_run import REPLAY_MEASURES, SHIELD_COUNTS, StepRun
from onrig.runtime.config.pieces import register_resolved
from onrig.runtime.config.problem import suggestion
from onrig.runtime.files import MAX_JSON_BYTES, open_file, read_file
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.python_files import NotTrusted
from onrig.runtime.run_config import RunConfig
from onrig.tools.experiments.spec import Spec, load_copied_spec, short_name

SPEC: Final = "spec.yaml"
CELLS: Final = "cells.json"
META: Final = "meta.json"
TRIALS: Final = "trials"
CALLED_KEY: Final = "called"
"""Label key for the name of a cell, which replaces the values of its block."""
_UNFINISHED: Final = ".unfinished"


class _Labelled(msgspec.Struct, frozen=True):
    """One combination of values in a grid; its trials differ only in their seed."""

    id: str
    """Short digest of the resolved configuration without its seed."""
    label: dict[str, str | float | int]
    """``config`` (the run's name) or ``world``, and the values of every axis and of the block's ``set``, by short name;
    values other than text and numbers are JSON."""


class Cell(_Labelled, frozen=True):
    """A cell of a run."""

    config: RunConfig

    @property
    def points(self) -> int:
        """Number of scores of a trial: one per episode."""
        return self.config.episodes

    def updates_until(self, points: int) -> float:
        """Return the number of batch updates, which take most of a trial's time, before its first ``points`` scores."""
        updates_per_point = self.config.learner.get("updates_per_episode")
        return (float(updates_per_point) if isinstance(updates_per_point, int | float) else 1.0) * points


class WorldCell(_Labelled, frozen=True):
    """A cell in a world."""

    config: StepRun

    @property
    def points(self) -> int:
        """Number of scores of a trial: one per evaluation."""
        return self.config.points

    def updates_until(self, points: int) -> float:
        """Return the number of batch updates, which take most of a trial's time, before its first ``points`` scores."""
        algorithm = self.config.learner.algorithm_config
        iterations = self.config.updates_until(points * self.config.evaluation.every)
        updates_per_iteration = (
            algorithm.replays * algorithm.batch_steps / algorithm.batch if algorithm.batch_steps else 1
        )
        return float(iterations * updates_per_iteration)


AnyCell = Cell | WorldCell


class Trial(NamedTuple):
    """Stored results of one trial of E episodes, or of E evaluations in a world."""

    train: NDArray[np.float64]
    """(E,) mean raw reward per step of each training episode; in a world, the mean return of the training episodes that
    ended since the previous evaluation, NaN if there were none.
    """
    evaluation: NDArray[np.float64]
    """(E,) scores of the noise-free evaluation before each episode's updates; in a world, the score of each
    evaluation.
    """
    batch_noise: NDArray[np.float64] | None = None
    """(n_obs + n_act,) mean absolute noise in the replayed experiences over the run, in normalised units."""
    replayed: NDArray[np.float64] | None = None
    """(k, E) quantities of ``REPLAY_MEASURES`` before each evaluation; only in a world."""
    shield: NDArray[np.float64] | None = None
    """(k, E) quantities of ``SHIELD_COUNTS`` before each evaluation; only in a world."""


class CellTrials(NamedTuple):
    """Finished trials of a cell: T trials of E episodes, by ascending seed."""

    seeds: NDArray[np.int64]
    """(T,)"""
    train: NDArray[np.float64]
    """(T, E), as in ``Trial``."""
    evaluation: NDArray[np.float64]
    """(T, E)"""
    batch_noise: NDArray[np.float64] | None
    """(T, n_obs + n_act); None without noise."""
    replayed: NDArray[np.float64] | None
    """(T, k, E); None if unknown for some trials."""
    shield: NDArray[np.float64] | None
    """(T, k, E), NaN for trials of versions without counts; None if no trial has any."""


def scores_of(trials: CellTrials) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the scores of a run's trials (T, E), from evaluations or, if there are none, from training, and which
    episodes have scores (E,).
    """
    scores = trials.train if np.isnan(trials.evaluation).all() else trials.evaluation
    has_score = ~np.isnan(scores).all(axis=0)
    # If every trial has diverged, later episodes lack scores; assume that multiples of the first scored one have one.
    has_score |= np.arange(1, scores.shape[1] + 1) % (int(has_score.argmax()) + 1) == 0
    return scores, has_score


def finite_trials(cell: AnyCell, trials: CellTrials) -> NDArray[np.bool_]:
    """Return which trials (T,) have only finite scores; the others have diverged."""
    if isinstance(cell, WorldCell):
        return np.asarray(np.isfinite(trials.evaluation).all(axis=1))
    scores, has_score = scores_of(trials)
    return np.asarray(np.isfinite(scores[:, has_score]).all(axis=1) & bool(has_score.any()))


def read_spec(folder: Path) -> Spec:
    """Read the spec in an experiment's folder. Raises ConfigError if it is invalid."""
    return load_copied_spec(folder / SPEC).spec


def read_cells(folder: Path) -> list[AnyCell]:
    """Read every cell of an experiment, in the order of its spec.

    Raises OSError if the file cannot be read, ValueError if it is invalid.
    """
    try:
        documents = msgspec.json.decode(read_file(folder / CELLS, MAX_JSON_BYTES), type=list[dict[str, msgspec.Raw]])
        for document in documents:
            register_resolved(document.get("config", b"{}"))
        cells = [msgspec.json.decode(msgspec.json.encode(cell), type=_kind(cell)) for cell in documents]
        for cell in cells:
            parse_strategy(cell.config.selection.strategy)
            if not cell.label.keys() & {"config", "world"}:
                raise ValueError(f"cell {cell.id!r} has neither 'config' nor 'world' in its label")
    except NotTrusted as error:
        raise ValueError(f"'{folder / CELLS}' {error}") from None
    except ValueError as error:
        raise ValueError(f"'{folder / CELLS}' is damaged or from another version of Onrig: {error}") from None
    return cells


def _kind(cell: dict[str, msgspec.Raw]) -> type[Cell] | type[WorldCell]:
    config = msgspec.json.decode(cell.get("config", b"{}"), type=dict[str, msgspec.Raw])
    return WorldCell if "world" in config else Cell


def read_trials(folder: Path, cell: AnyCell) -> CellTrials:
    """Read the finished trials of a cell; T is 0 if there are none yet. Raises ValueError for a damaged archive."""
    archived_trials = _read_archive(folder, cell)
    own_trials = {
        seed: read_trial(folder, cell, seed) for seed in _seeds_with_file(folder, cell) - archived_trials.keys()
    }
    trials = dict(sorted({**archived_trials, **{seed: t for seed, t in own_trials.items() if t is not None}}.items()))
    shape = (len(trials), cell.points)

    def stack(name: str) -> NDArray[np.float64] | None:
        arrays = [values for trial in trials.values() if (values := getattr(trial, name)) is not None]
        return np.array(arrays) if arrays and len(arrays) == len(trials) else None

    unknown_counts = np.full((len(SHIELD_COUNTS), cell.points), np.nan)
    counts = [unknown_counts if trial.shield is None else trial.shield for trial in trials.values()]
    return CellTrials(
        np.array(list(trials), dtype=np.int64),
        np.array([trial.train for trial in trials.values()], dtype=np.float64).reshape(shape),
        np.array([trial.evaluation for trial in trials.values()], dtype=np.float64).reshape(shape),
        stack("batch_noise"),
        stack("replayed"),
        np.array(counts) if any(np.isfinite(count).any() for count in counts) else None,
    )


def archive_path(folder: Path, cell: AnyCell) -> Path:
    """Return the path of the archive of a cell's published trials (``onrig.tools.experiments.archive``)."""
    return folder / TRIALS / f"{cell.id}.npz"


def _read_archive(folder: Path, cell: AnyCell) -> dict[int, Trial]:
    """Return a cell's published trials by seed."""
    path = archive_path(folder, cell)
    if not path.exists():
        return {}
    try:
        with open_file(path, None) as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        for name in ("train", "evaluation"):
            if f"{name}.codes" in arrays:
                codes = arrays[f"{name}.codes"]
                arrays[name] = np.where(codes == 65535, np.nan, arrays[f"{name}.low"] + arrays[f"{name}.step"] * codes)
        shape = (len(arrays["seeds"]), cell.points)
        columns = [arrays[name] if name in arrays else [None] * shape[0] for name in Trial._fields]
        if not arrays["train"].shape == arrays["evaluation"].shape == shape:
            raise ValueError("unexpected shapes")
        return {int(seed): Trial(*values) for seed, *values in zip(arrays["seeds"], *columns, strict=True)}
    except Exception as error:  # truncated or altered; zipfile and numpy raise a dozen types
        raise ValueError(f"'{path}' is damaged ({error}): restore it from the repository") from None


def read_trial(folder: Path, cell: AnyCell, seed: int) -> Trial | None:
    """Read one trial. Return None if there is no complete one."""
    try:
        with open_file(_trial_path(folder, cell, seed), None) as file, np.load(file, allow_pickle=False) as arrays:
            optional_arrays = {
                name: arrays[name] for name in ("batch_noise", "replayed", "shield") if name in arrays.files
            }
            if "replayed" in optional_arrays and len(optional_arrays["replayed"]) < len(
                REPLAY_MEASURES
            ):  # written by a version with fewer measures
                unknown_rows = np.full(
                    (len(REPLAY_MEASURES) - len(optional_arrays["replayed"]), *optional_arrays["replayed"].shape[1:]),
                    np.nan,
                )
                optional_arrays["replayed"] = np.concatenate((optional_arrays["replayed"], unknown_rows))
            trial = Trial(arrays["train"], arrays["evaluation"], **optional_arrays)
        shape = (cell.points,)
        columns = (
            trial.train,
            trial.evaluation,
            *optional_arrays.get("replayed", ()),
            *optional_arrays.get("shield", ()),
        )
    except Exception:  # missing, truncated or altered; zipfile and numpy raise a dozen types
        return None
    return trial if all(a.shape == shape and a.dtype == np.float64 for a in columns) else None


def missing_seeds(folder: Path, cell: AnyCell, seeds: Iterable[int]) -> list[int]:
    """Return the seeds without a complete trial. Raises ValueError for a damaged archive."""
    archived_trials, stored_seeds = _read_archive(folder, cell), _seeds_with_file(folder, cell)
    return [
        seed
        for seed in seeds
        if seed not in archived_trials and (seed not in stored_seeds or read_trial(folder, cell, seed) is None)
    ]


def write_trial(folder: Path, cell: AnyCell, seed: int, trial: Trial) -> None:
    """Save a trial unless a complete one exists.  Raises OSError."""
    if read_trial(folder, cell, seed) is not None:
        return
    path, content = _trial_path(folder, cell, seed), io.BytesIO()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(content, **{name: array for name, array in trial._asdict().items() if array is not None})
    write_atomically(path, content.getvalue())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically through a temporary file.  Raises OSError."""
    temporary_path = path.with_name(f".{path.name}{_UNFINISHED}")
    try:
        with temporary_path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut could leave the name without the content
        temporary_path.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary_path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_cells(folder: Path, cells: Sequence[AnyCell]) -> None:
    """Write ``cells.json``.  Raises OSError."""
    write_atomically(folder / CELLS, msgspec.json.format(msgspec.json.encode(cells), indent=1) + b"\n")


def remove_unfinished(folder: Path) -> None:
    """Remove the half-written files of an interrupted run."""
    for path in (*folder.glob(f".*{_UNFINISHED}"), *(folder / TRIALS).glob(f"*/.*{_UNFINISHED}")):
        path.unlink(missing_ok=True)


def _trial_path(folder: Path, cell: AnyCell, seed: int) -> Path:
    return folder / TRIALS / cell.id / f"{seed}.npz"


def _seeds_with_file(folder: Path, cell: AnyCell) -> set[int]:
    names = (path.stem for path in (folder / TRIALS / cell.id).glob("*.npz"))
    return {int(name) for name in names if name.isdecimal()}


class NoSuchCells(Exception):
    """No cell matches; the message lists the alternatives."""


def select_cells(cells: Sequence[AnyCell], conditions: Sequence[str]) -> list[AnyCell]:
    """Return the cells that match all conditions ``AXIS=VALUE``; several values of one axis are alternatives.

    Raises NoSuchCells.
    """
    values_by_axis: dict[str, set[str]] = {}
    for condition in conditions:
        axis, equals, value = (part.strip() for part in condition.partition("="))
        if not equals:
            raise NoSuchCells(f"expected AXIS=VALUE, got '{condition}'")
        axis = short_name(axis)
        known_axes = {axis: None for cell in cells for axis in cell.label}
        if axis not in known_axes:
            raise NoSuchCells(f"the grid has no axis '{axis}' ({suggestion(axis, list(known_axes))})")
        values = list(dict.fromkeys(str(cell.label[axis]) for cell in cells if axis in cell.label))
        matching_values = {v for v in values if v == value or _same_number(v, value)}
        if not matching_values:
            raise NoSuchCells(f"no cell has '{axis}' {value} ({suggestion(value, values)})")
        values_by_axis.setdefault(axis, set()).update(matching_values)
    matching_cells = [
        cell for cell in cells if all(str(cell.label.get(axis)) in values for axis, values in values_by_axis.items())
    ]
    if not matching_cells:
        raise NoSuchCells(f"no cell has all of {', '.join(conditions)}")
    return matching_cells


def _same_number(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return False
