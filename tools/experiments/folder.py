"""Checks and lock for the folder of a new or resumed experiment."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from onrig.hw.native import Executor, difference_from_this_process
from onrig.runtime.files import read_fields, try_lock
from onrig.runtime.run_state.folder_access import check_folder as check_own
from onrig.runtime.run_state.folder_access import check_path
from onrig.runtime.supervise.run_folder import environment_facts, find_executor
from onrig.tools.experiments.grid import cell_text
from onrig.tools.experiments.spec import equal_settings
from onrig.tools.experiments.store import (
    CELLS,
    META,
    SPEC,
    TRIALS,
    AnyCell,
    WorldCell,
    read_cells,
    remove_unfinished,
    write_atomically,
    write_cells,
)
from onrig.tools.plugins import Plugin, plugin_difference, plugin_records, third_party_plugins

RUNS: Final = Path("runs")
_RESUMED: Final = "resumed"


class UnsuitableFolder(Exception):
    """The folder cannot be used for this experiment; the message gives the reason and the remedy."""


def next_folder(name: str) -> Path:
    """Return the folder for a new run of an experiment: ``runs/NAME-1`` and so on."""
    return RUNS / f"{name}-{max(_run_numbers(name), default=0) + 1}"


def last_folder(name: str) -> Path | None:
    """Return the folder of the latest run of an experiment, or None if there is none."""
    number = max(_run_numbers(name), default=None)
    return None if number is None else RUNS / f"{name}-{number}"


def check_folder(folder: Path, cells: Sequence[AnyCell], *, resume: bool) -> None:
    """Check that these cells can be run in a folder. Raises UnsuitableFolder if they cannot."""
    if not folder.exists():
        if resume:
            raise UnsuitableFolder(f"'{folder}' does not exist; omit --resume to start the experiment")
        return
    if not folder.is_dir():
        raise UnsuitableFolder(f"'{folder}' is not a folder")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if not names:
        return
    if not names & {SPEC, CELLS, TRIALS}:
        raise UnsuitableFolder(f"'{folder}' is not empty but contains no experiment; choose another folder")
    if not resume:
        raise UnsuitableFolder(
            f"'{folder}' already contains an experiment; add --resume to continue it, or choose another"
        )
    _check_cells(folder, {cell.id: cell for cell in cells})
    if difference := plugin_difference(
        read_fields(folder / META), third_party_plugins(*(cell.config for cell in cells))
    ):
        raise UnsuitableFolder(f"'{folder}': {difference}")


def check_executor(folder: Path) -> Executor | None:
    """Return the executor of the trials in a folder, or None if it is unknown.

    Raises UnsuitableFolder if it differs from the executor of this process.
    """
    recorded_executor = find_executor(read_fields(folder / META), _RESUMED)
    if difference := difference_from_this_process(recorded_executor):
        raise UnsuitableFolder(f"the trials in '{folder}' were {difference}; or choose another folder")
    return recorded_executor


@contextlib.contextmanager
def lock_folder(folder: Path, spec: bytes, cells: Sequence[AnyCell], verb: str = "experiment") -> Iterator[None]:
    """Context manager that locks a folder that has passed `check_folder`, and writes the spec and the cells to it.

    Raises OSError if the folder cannot be written, and UnsuitableFolder if another process holds the lock.
    """
    check_path(folder)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    check_own(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not try_lock(fd):
            raise UnsuitableFolder(f"'{folder}' is in use by another `onrig {verb}`")
        remove_unfinished(folder)
        write_atomically(folder / SPEC, spec)
        write_cells(folder, cells)
        yield
    finally:
        os.close(fd)


def _check_cells(folder: Path, cells: dict[str, AnyCell]) -> None:
    remedy = "resume it with its own spec (blocks and trials may be added), or choose another folder"
    try:
        existing_cells = read_cells(folder)
    except FileNotFoundError:
        existing_cells = []
    except (OSError, ValueError):
        # If the list is damaged, the names of the trials' folders identify the cells.
        trials = folder / TRIALS
        unknown_names = [path.name for path in trials.iterdir() if path.name not in cells] if trials.is_dir() else []
        if unknown_names:
            raise UnsuitableFolder(
                f"'{folder}' contains trials of a cell {unknown_names[0]} that is not in this spec; {remedy}"
            ) from None
        return
    cells_by_name = {cell_text(cell): cell for cell in cells.values()}
    for cell in existing_cells:
        if cell.id not in cells:
            namesake = cells_by_name.get(cell_text(cell))
            if (
                isinstance(namesake, WorldCell)
                and isinstance(cell, WorldCell)
                and equal_settings(namesake.config, cell.config)
            ):
                problem = f"'{folder}' was started with other settings in the run of '{namesake.config.world}'"
                raise UnsuitableFolder(f"{problem}; restore it, or choose another folder")
            raise UnsuitableFolder(f"'{folder}' contains a cell that is not in this spec ({cell_text(cell)}); {remedy}")
        if not equal_settings(cell.config, cells[cell.id].config):
            problem = f"'{folder}' was written by a version of Onrig with other defaults for {cell_text(cell)}"
            raise UnsuitableFolder(f"{problem}; choose another folder")


def record_start(folder: Path, subject: Literal["trials", "costs"], plugins: list[Plugin]) -> None:
    """Record machine, versions and time in ``meta.json``. Raises OSError.

    The record is at the top level for the first trials, under ``resumed`` for later ones, and under ``costs`` for
    measured costs.
    """
    facts, meta = {**environment_facts(), **plugin_records(plugins)}, read_fields(folder / META)
    if subject == "trials" and not meta.keys() & facts.keys():
        meta = {**facts, **meta}
    else:
        key = _RESUMED if subject == "trials" else "costs"
        previous = meta.get(key)
        meta[key] = [*(previous if isinstance(previous, list) else []), facts]
    write_atomically(folder / META, msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")


def _run_numbers(name: str) -> Iterator[int]:
    pattern = re.compile(rf"{re.escape(name)}-(\d{{1,9}})")
    for path in RUNS.iterdir() if RUNS.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match is not None:
            yield int(match[1])
