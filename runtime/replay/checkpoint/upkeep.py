"""Checkpoints of a run: restored at its start, written when due, with reports of failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.replay.checkpoint.blocks import CheckpointError
from onrig.runtime.replay.checkpoint.manifest import Experiences, identity_of
from onrig.runtime.replay.checkpoint.restore import restore
from onrig.runtime.replay.checkpoint.writer import CheckpointWriter
from onrig.runtime.run_config import RunConfig

_FINAL_ATTEMPTS: Final = 3


class CheckpointContent(NamedTuple):
    """Content of a checkpoint in addition to the memory."""

    extra: Mapping[str, int]
    note: bytes = b"null"
    """JSON."""
    required_files: Sequence[Path] = ()
    """Files and folders that must be on disk before the checkpoint counts."""


ContentSource = Callable[[], Mapping[str, int] | CheckpointContent]
WarningSink = Callable[[str], object]


def is_due(config: RunConfig, episode: int) -> bool:
    """Whether a checkpoint is due in lockstep after this training episode (0: the start); always after the last."""
    return episode % config.checkpoint_episodes == 0 or episode >= config.episodes


class Upkeep:
    """Restores ``memory`` from the checkpoints in ``folder``, if any, and keeps them up to date.

    In lockstep a checkpoint is written between episodes and is on disk before the loop continues; otherwise one is
    written every ``checkpoint_s`` in the background.  ``warn`` receives each failure as one line.  Raises
    CheckpointError like :func:`restore`.
    """

    def __init__(
        self,
        folder: Path,
        memory: Experiences,
        config: RunConfig,
        warn: WarningSink,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """``on_progress`` is called repeatedly while a checkpoint is being written."""
        identity = identity_of(memory, config.seed)
        restored = restore(folder, memory, identity)
        self.damaged: Final = restored.damaged if restored is not None else ()
        for line in self.damaged:
            warn(f"{line}; the previous checkpoint is used")
        self.restored: Final = restored.extra if restored is not None else None
        """Counts of the restored checkpoint; None if there was none."""
        self.note: Final = restored.note if restored is not None else b"null"
        self._memory, self._warn, self._config, self._on_progress = memory, warn, config, on_progress
        self._writer = CheckpointWriter(folder, identity, restored)
        self._interval_s = config.checkpoint_s
        self._due_s: float | None = None
        self._is_failing = False

    @property
    def durable_counts(self) -> Mapping[str, int] | None:
        """Counts of the newest checkpoint on disk; None if there is none."""
        return self._writer.durable_counts

    def checkpoint_if_due(self, now_s: float, counts: ContentSource) -> bool:
        """Collect a checkpoint if one is due at ``now_s`` (any monotonic clock).

        Return True if one was collected; its ``CheckpointContent.required_files`` will be on disk before it is.  The
        same holds for the other methods that write a checkpoint.
        """
        if self._due_s is None:
            self._due_s = now_s + self._interval_s
        if now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            return self._write(counts, wait=False)
        return False

    def checkpoint_episode(self, episode: int, counts: ContentSource) -> bool:
        """Write a checkpoint if one is due after this episode."""
        return is_due(self._config, episode) and self._write(counts, wait=True)

    def close(self, counts: ContentSource | None) -> None:
        """Write the last checkpoint, unless ``counts`` is None, and stop."""
        self._wait()
        if counts is not None:
            for _ in range(_FINAL_ATTEMPTS):  # the previous one may have failed and be awaiting a retry
                if self._write(counts, wait=True):
                    break
        self._writer.close()

    def _write(self, counts: ContentSource, *, wait: bool) -> bool:
        is_collected = False
        try:
            content = counts()
            full_content = content if isinstance(content, CheckpointContent) else CheckpointContent(content)
            is_collected = self._writer.write(
                self._memory, full_content.extra, full_content.note, full_content.required_files
            )
            if wait:
                self._writer.wait(self._on_progress)
            self._is_failing = self._is_failing and not is_collected
        except CheckpointError as error:
            self._report(error)
        return is_collected

    def _wait(self) -> None:
        try:
            self._writer.wait(self._on_progress)
        except CheckpointError as error:
            self._report(error)

    def _report(self, error: CheckpointError) -> None:
        """Report once until a checkpoint succeeds again, so that events do not fill an almost full disk."""
        if not self._is_failing:
            self._warn(str(error))
        self._is_failing = True
