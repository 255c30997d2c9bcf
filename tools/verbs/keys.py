"""Generate key pairs for a rig and its learners.

Copy DIR/rig to the rig (link.keys) and DIR/learner to the learner (onrig learn --keys), mode 0700. No key is ever
overwritten.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Folder, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    folder: Folder
    """Folder for the keys; must not exist the first time."""
    _: KW_ONLY
    learner: Annotated[str, Value("NAME")] = "learner"
    """Generate keys for this learner; adds one to an existing folder."""


def main(options: Options) -> int:
    """Generate keys; returns the exit code."""
    from onrig.tools.key_folder import make_keys

    return make_keys(options.folder, options.learner)
