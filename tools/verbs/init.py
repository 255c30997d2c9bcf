"""Write an initial rig, task, run and README.

They are generated from a shipped configuration. The run starts on a twin; the README leads from there to the first run
on hardware.

Exit codes: 0 written, 2 DIR is not empty or cannot be written.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from onrig.tools.options import Folder


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    folder: Folder
    """Folder to write to; the rig is named after it."""
    _: KW_ONLY
    plant: Literal["magman", "pendulum"] = "pendulum"
    """Plant to start from."""


def main(options: Options) -> int:
    """Write the files; returns the exit code."""
    from onrig.tools.first_rig import write

    return write(options.folder, options.plant)
