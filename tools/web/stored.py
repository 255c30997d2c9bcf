"""What the memory of a finished run held at its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.accounts.telemetry import Surprise, sample_of
from onrig.runtime.replay.checkpoint.blocks import CheckpointError
from onrig.runtime.replay.checkpoint.identity import identity_of
from onrig.runtime.replay.checkpoint.restore import restore
from onrig.runtime.replay.memory import Memory
from onrig.runtime.run_config import RunConfig, capacity_of

_LARGEST: Final = 4_000_000
"""Experiences; a larger memory is not read back for a picture."""


class Stored(NamedTuple):
    """A sample and what it is a sample of."""

    sample: NDArray[np.void]
    inserted: int
    stored: int
    capacity: int


def stored_sample(config: RunConfig, folder: Path) -> Stored | None:
    """Read the newest good checkpoint of a run folder; None where there is none."""
    if not (folder / "buffer").is_dir() or capacity_of(config) > _LARGEST:
        return None
    memory = Memory(config)
    try:
        if restore(folder / "buffer", memory, identity_of(memory, config.seed)) is None:
            return None
    except (CheckpointError, OSError):
        return None
    storage = memory.storage
    sample = sample_of(storage, Surprise().sampled(storage.stored))
    return Stored(sample, storage.inserted, storage.stored, storage.capacity)
