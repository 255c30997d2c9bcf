"""Initial experiences and networks of a run, taken from an earlier one and stored in ``start/`` of its folder.

The copy lets a run that is killed before its first checkpoint begin the same way again.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import open_file
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.replay.checkpoint import CheckpointError

EXPERIENCES: Final = "start/experiences.npz"
NETWORKS: Final = "start/learner.npz"
"""Paths of the two files within a run folder."""
FIRST_EPISODE: Final = 1 << 30
"""Number of the first episode of the initial experiences, higher than any episode number of a run."""


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of arrays with their names, types and shapes."""
    sha256 = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha256.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def encode(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of an ``.npz`` file with these arrays."""
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    return archive.getvalue()


def read_seeds(run_folder: Path) -> Transitions:
    """Read a run's initial experiences, oldest first; raises CheckpointError."""
    path = run_folder / EXPERIENCES
    try:
        with open_file(path, None) as file, np.load(file, allow_pickle=False) as saved:
            return Transitions(**{name: saved[name] for name in Transitions._fields})
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: {error}; restore it from a backup, or start a new run") from None
