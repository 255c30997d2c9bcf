"""The checkpoints of a run: what it begins with, when the next one is due, and what is said when one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from runtime.config.schema import RunConfig
from runtime.replay.checkpoint.identity import Experiences, identity_of
from runtime.replay.checkpoint.problem import CheckpointError
from runtime.replay.checkpoint.restore import restore
from runtime.replay.checkpoint.writer import CheckpointWriter

Counts = Callable[[], Mapping[str, int]]
Say = Callable[[str], object]


class Upkeep:
    """Restores ``memory`` from ``folder`` if there is something, and keeps the folder up to date.

    In lockstep a checkpoint is written between episodes, every so many that they take ``checkpoint_s`` of the rig's
    time, and is on disk before the loop goes on; otherwise every ``checkpoint_s``, while everything goes on.
    ``say`` hears in one line of what goes wrong.  Raises CheckpointError as :func:`restore` does.
    """

    def __init__(self, folder: Path, memory: Experiences, config: RunConfig, say: Say) -> None:
        identity = identity_of(memory, config.seed)
        restored = restore(folder, memory, identity)
        for line in restored.damaged if restored is not None else ():
            say(f"{line}; the checkpoint before it is used")
        self.restored: Final = restored.extra if restored is not None else None
        """The counts the checkpoint was written with; None when there was none."""
        self._memory, self._say = memory, say
        self._writer = CheckpointWriter(folder, identity, restored)
        self._every_s = config.checkpoint_s
        self._every_episodes = max(1, int(config.checkpoint_s / config.task.episode_s))
        self._due_s: float | None = None
        self._failing = False

    def at_time(self, now_s: float, counts: Counts) -> None:
        """Collect a checkpoint if one is due at ``now_s`` (of any clock that only goes forward)."""
        if self._due_s is None:
            self._due_s = now_s + self._every_s
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self._write(counts, wait=False)

    def at_episode(self, episode: int, counts: Counts) -> None:
        """Write a checkpoint if one is due after this episode."""
        if episode % self._every_episodes == 0:
            self._write(counts, wait=True)

    def close(self, counts: Counts) -> None:
        """Write the last one."""
        self._wait()
        self._write(counts, wait=True)
        self._writer.close()

    def _write(self, counts: Counts, *, wait: bool) -> None:
        try:
            written = self._writer.write(self._memory, counts())
            if wait:
                self._writer.wait()
            self._failing = self._failing and not written
        except CheckpointError as error:
            self._complain(error)

    def _wait(self) -> None:
        try:
            self._writer.wait()
        except CheckpointError as error:
            self._complain(error)

    def _complain(self, error: CheckpointError) -> None:
        """Once, until one succeeds again: a full disk is not to fill what is left of it with events."""
        if not self._failing:
            self._say(str(error))
        self._failing = True
