"""The checkpoints of a run: what it begins with, when the next one is due, and what is said when one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.replay.checkpoint.blocks import CheckpointError
from onrig.runtime.replay.checkpoint.manifest import Experiences, identity_of
from onrig.runtime.replay.checkpoint.restore import restore
from onrig.runtime.replay.checkpoint.writer import CheckpointWriter
from onrig.runtime.run_config import RunConfig

_LAST_TRIES: Final = 3


class Present(NamedTuple):
    """What goes into a checkpoint beside the memory."""

    extra: Mapping[str, int]
    note: bytes = b"null"
    """JSON."""
    beside: Sequence[Path] = ()
    """Files and folders that must be on disk no later than the checkpoint."""


Counts = Callable[[], Mapping[str, int] | Present]
Say = Callable[[str], object]


def is_due(config: RunConfig, episode: int) -> bool:
    """Whether in lockstep a checkpoint follows this training episode (0: the start); always after the last one."""
    return episode % config.checkpoint_episodes == 0 or episode >= config.episodes


class Upkeep:
    """Restores ``memory`` from ``folder`` if there is something, and keeps the folder up to date.

    In lockstep a checkpoint is written between episodes, and is on disk before the loop goes on; otherwise every
    ``checkpoint_s``, while everything goes on.  ``say`` hears in one line of what goes wrong.  Raises CheckpointError
    as :func:`restore` does.
    """

    def __init__(
        self,
        folder: Path,
        memory: Experiences,
        config: RunConfig,
        say: Say,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """``beat`` is called while a checkpoint is waited for that makes progress."""
        identity = identity_of(memory, config.seed)
        restored = restore(folder, memory, identity)
        self.damaged: Final = restored.damaged if restored is not None else ()
        for line in self.damaged:
            say(f"{line}; the checkpoint before it is used")
        self.restored: Final = restored.extra if restored is not None else None
        """The counts the checkpoint was written with; None when there was none."""
        self.note: Final = restored.note if restored is not None else b"null"
        self._memory, self._say, self._config, self._beat = memory, say, config, beat
        self._writer = CheckpointWriter(folder, identity, restored)
        self._every_s = config.checkpoint_s
        self._due_s: float | None = None
        self._failing = False

    @property
    def durable(self) -> Mapping[str, int] | None:
        """The counts of the newest checkpoint on disk; None when there is none."""
        return self._writer.durable_extra

    def at_time(self, now_s: float, counts: Counts) -> bool:
        """Collect a checkpoint if one is due at ``now_s`` (of any clock that only goes forward).

        True when one was collected: all that it relies on (``Present.beside``) is then on disk before it.  The same
        holds for the other ways to write one.
        """
        if self._due_s is None:
            self._due_s = now_s + self._every_s
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            return self._write(counts, wait=False)
        return False

    def at_episode(self, episode: int, counts: Counts) -> bool:
        """Write a checkpoint if one is due after this episode."""
        return is_due(self._config, episode) and self._write(counts, wait=True)

    def close(self, counts: Counts | None) -> None:
        """Write the last one (None: it is written already, and nothing may follow it)."""
        self._wait()
        if counts is not None:
            for _ in range(_LAST_TRIES):  # the one before may have failed, and is on its way again
                if self._write(counts, wait=True):
                    break
        self._writer.close()

    def _write(self, counts: Counts, *, wait: bool) -> bool:
        written = False
        try:
            now = counts()
            present = now if isinstance(now, Present) else Present(now)
            written = self._writer.write(self._memory, present.extra, present.note, present.beside)
            if wait:
                self._writer.wait(self._beat)
            self._failing = self._failing and not written
        except CheckpointError as error:
            self._complain(error)
        return written

    def _wait(self) -> None:
        try:
            self._writer.wait(self._beat)
        except CheckpointError as error:
            self._complain(error)

    def _complain(self, error: CheckpointError) -> None:
        """Once, until one succeeds again: a full disk is not to fill what is left of it with events."""
        if not self._failing:
            self._say(str(error))
        self._failing = True
