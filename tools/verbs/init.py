"""Write an initial rig, task, run and README.

The files are copied from the plant's template, or generated from a MuJoCo model or from another package's plant. The
first run is on a twin; the README describes the steps to the first run on hardware.

Exit codes: 0 written; 2 DIR is not empty or not writable, or no files exist for this plant.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import File, Folder, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    folder: Folder
    """Folder for the files; the rig is named after it."""
    _: KW_ONLY
    plant: Annotated[str, Value("PLANT", complete="plant")] = "pendulum"
    """Plant to start from: a folder of docs/examples, ``mujoco``, or the kind of an installed plant."""
    model: File | None = None
    """Model for ``--plant mujoco`` (MJCF or URDF)."""


def main(options: Options) -> int:
    """Write the files and return the exit code."""
    from onrig.tools.first_rig import write_first_rig

    return write_first_rig(options.folder, options.plant, options.model)
