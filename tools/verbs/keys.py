"""Generate key pairs for a rig and its learners.

Copy DIR/rig to the rig (link.keys) and DIR/learner to the learner (onrig learn --keys), with mode 0700. Existing keys
are never overwritten.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Folder, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    folder: Folder
    """Folder for the keys; it must not exist when the rig's keys are generated."""
    _: KW_ONLY
    learner: Annotated[str, Value("NAME")] = "learner"
    """Name of the learner; if the folder already exists, this learner is added to it."""


def main(options: Options) -> int:
    """Generate keys and return the exit code."""
    from onrig.tools.key_folder import make_keys

    return make_keys(options.folder, options.learner)
