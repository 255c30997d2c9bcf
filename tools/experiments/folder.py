"""Opening an experiment's folder, new or to be resumed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from onrig.hw.native import Executor, difference_here
from onrig.runtime.files import read_fields
from onrig.runtime.run_state.folder_access import check_folder as check_own
from onrig.runtime.run_state.folder_access import check_path, lock
from onrig.runtime.supervise.run_folder import environment_facts, recorded_executor
from onrig.tools.experiments.grid import shown
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
from onrig.tools.foreign import Piece, difference, pieces_of, record_pieces

RUNS: Final = Path("runs")
_RESUMED: Final = "resumed"


class Unsuitable(Exception):
    """The folder cannot be used for this experiment; the message gives the reason and the remedy."""


def next_folder(name: str) -> Path:
    """The folder of a new run of an experiment: ``runs/NAME-1`` and so on."""
    return RUNS / f"{name}-{max(_numbers(name), default=0) + 1}"


def last_folder(name: str) -> Path | None:
    """The folder of the latest run of an experiment; None if there is none."""
    number = max(_numbers(name), default=None)
    return None if number is None else RUNS / f"{name}-{number}"


def check_folder(folder: Path, cells: Sequence[AnyCell], *, resume: bool) -> None:
    """Raise Unsuitable if these cells cannot be run in a folder."""
    if not folder.exists():
        if resume:
            raise Unsuitable(f"'{folder}' does not exist; leave out --resume to start it")
        return
    if not folder.is_dir():
        raise Unsuitable(f"'{folder}' is not a folder")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if not names:
        return
    if any((folder / TRIALS).glob("*.npz")):
        raise Unsuitable(f"'{folder}' holds published trials, which cannot be extended; choose another folder")
    if not names & {SPEC, CELLS, TRIALS}:
        raise Unsuitable(f"'{folder}' is not empty and holds no experiment; choose another folder")
    if not resume:
        raise Unsuitable(f"'{folder}' holds an experiment already; add --resume to continue it, or choose another")
    _check_cells(folder, {cell.id: cell for cell in cells})
    if what := difference(read_fields(folder / META), pieces_of(*(cell.config for cell in cells))):
        raise Unsuitable(f"'{folder}': {what}")


def check_executor(folder: Path) -> Executor | None:
    """Return the executor of the trials in a folder; None if unknown. Raises Unsuitable if this process has another
    one.
    """
    recorded = recorded_executor(read_fields(folder / META), _RESUMED)
    if what := difference_here(recorded):
        raise Unsuitable(f"the trials in '{folder}' were {what}; or choose another folder")
    return recorded


@contextlib.contextmanager
def lock_folder(folder: Path, spec: bytes, cells: Sequence[AnyCell], verb: str = "experiment") -> Iterator[None]:
    """Lock a folder that passed `check_folder`, and write spec and cells. Raises OSError if it cannot be written, and
    Unsuitable while another process holds it.
    """
    check_path(folder)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    check_own(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not lock(fd):
            raise Unsuitable(f"'{folder}': in use by another `onrig {verb}`")
        remove_unfinished(folder)
        write_atomically(folder / SPEC, spec)
        write_cells(folder, cells)
        yield
    finally:
        os.close(fd)


def _check_cells(folder: Path, cells: dict[str, AnyCell]) -> None:
    remedy = "resume it with its own spec (blocks and trials may be added), or choose another folder"
    try:
        before = read_cells(folder)
    except FileNotFoundError:
        before = []
    except (OSError, ValueError):
        # Damaged: the trials' folders are named by their cells.
        trials = folder / TRIALS
        unknown = [path.name for path in trials.iterdir() if path.name not in cells] if trials.is_dir() else []
        if unknown:
            raise Unsuitable(
                f"'{folder}' holds trials of a cell {unknown[0]} that is not in this spec; {remedy}"
            ) from None
        return
    named = {shown(cell): cell for cell in cells.values()}
    for cell in before:
        if cell.id not in cells:
            now = named.get(shown(cell))
            if isinstance(now, WorldCell) and isinstance(cell, WorldCell) and equal_settings(now.config, cell.config):
                what = f"'{folder}' was begun with other settings in the run behind '{now.config.world}'"
                raise Unsuitable(f"{what}; restore it, or choose another folder")
            raise Unsuitable(f"'{folder}' holds a cell that is not in this spec ({shown(cell)}); {remedy}")
        if not equal_settings(cell.config, cells[cell.id].config):
            what = f"'{folder}' was made by a version of Onrig with other defaults for {shown(cell)}"
            raise Unsuitable(f"{what}; choose another folder")


def record_start(folder: Path, of: Literal["trials", "costs"], pieces: list[Piece]) -> None:
    """Record machine, versions and time in ``meta.json``: for the first trials at the top level, later under
    ``resumed``, for measured costs under ``costs``.  Raises OSError."""
    now, meta = {**environment_facts(), **record_pieces(pieces)}, read_fields(folder / META)
    if of == "trials" and not meta.keys() & now.keys():
        meta = {**now, **meta}
    else:
        under = _RESUMED if of == "trials" else "costs"
        before = meta.get(under)
        meta[under] = [*(before if isinstance(before, list) else []), now]
    write_atomically(folder / META, msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")


def _numbers(name: str) -> Iterator[int]:
    pattern = re.compile(rf"{re.escape(name)}-(\d{{1,9}})")
    for path in RUNS.iterdir() if RUNS.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match is not None:
            yield int(match[1])
