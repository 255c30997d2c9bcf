"""Published trials of an experiment: one compressed file per cell, small enough for the repository.

The folder has the layout of an experiment's folder (``onrig.tools.experiments.store``), with ``trials/CELL.npz`` in
place of ``trials/CELL/SEED.npz``. ``onrig report`` reads it like any other, and a copy of it can be resumed. The two
scores of every episode of a run are rounded to 16 bits over their range in the cell, with an error of at most 8e-6 of
this range; everything else is exact.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import read_fields
from onrig.tools.experiments.cost import COSTS
from onrig.tools.experiments.store import (
    CELLS,
    META,
    SPEC,
    TRIALS,
    AnyCell,
    CellTrials,
    WorldCell,
    archive_path,
    read_trials,
    write_atomically,
)

DATA_FOLDER: Final = "data"
"""Folder of the archives next to the published pages."""
_ROUNDED_ARRAYS: Final = ("train", "evaluation")
_PRIVATE_FIELDS: Final = frozenset({"command"})
"""Fields of ``meta.json`` that contain local paths."""


def write_archive(folder: Path, target: Path, cells: Sequence[AnyCell]) -> None:
    """Write all finished trials of an experiment's folder to ``target``, replacing the archives there. Raises
    OSError.
    """
    (target / TRIALS).mkdir(parents=True, exist_ok=True)
    for name in (SPEC, CELLS, COSTS):
        if (folder / name).exists():
            shutil.copyfile(folder / name, target / name)
    meta = msgspec.json.encode(_drop_private(read_fields(folder / META)))
    write_atomically(target / META, msgspec.json.format(meta, indent=1) + b"\n")
    written_paths = set()
    for cell in cells:
        trials = read_trials(folder, cell)
        if len(trials.seeds):
            content = io.BytesIO()
            np.savez_compressed(content, **pack(trials, keep_exact=isinstance(cell, WorldCell)))
            path = archive_path(target, cell)
            write_atomically(path, content.getvalue())
            written_paths.add(path)
    for path in (target / TRIALS).glob("*.npz"):
        if path not in written_paths:
            path.unlink()


def pack(trials: CellTrials, *, keep_exact: bool) -> dict[str, Any]:
    """Return the arrays of an archive by name, with rounded scores as ``NAME.codes``, ``NAME.low`` and
    ``NAME.step``.
    """
    arrays: dict[str, Any] = {}
    for name, values in trials._asdict().items():
        if values is None:
            continue
        rounded_arrays = None if keep_exact or name not in _ROUNDED_ARRAYS else _to_16_bits(values)
        arrays |= (
            {name: values}
            if rounded_arrays is None
            else {f"{name}.{suffix}": array for suffix, array in rounded_arrays.items()}
        )
    return arrays


def _to_16_bits(values: NDArray[np.float64]) -> Mapping[str, NDArray[np.generic]] | None:
    """Encode values as 0 to 65534 over their range, and NaN as 65535. Return None if the range is not finite."""
    is_missing = np.isnan(values)
    low, high = (float(f(values, where=~is_missing, initial=i)) for f, i in ((np.min, np.inf), (np.max, -np.inf)))
    if not np.isfinite(high - low):
        return None
    step = (high - low) / 65534 or 1.0
    codes = np.where(is_missing, 65535, np.round((np.where(is_missing, low, values) - low) / step)).astype(np.uint16)
    return {"codes": codes, "low": np.array(low), "step": np.array(step)}


def _drop_private(fields: object) -> object:
    if isinstance(fields, dict):
        return {name: _drop_private(value) for name, value in fields.items() if name not in _PRIVATE_FIELDS}
    return [_drop_private(value) for value in fields] if isinstance(fields, list) else fields
