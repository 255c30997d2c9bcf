"""What can be wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(Exception):
    """One line: which file, what is wrong with it, what to do."""


class Damage(Exception):
    """A file is not what was written; the checkpoint before may still be good."""
