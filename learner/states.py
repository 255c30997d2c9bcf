"""The learner's last few states on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onrig.learner.agent import Agent

KEPT: Final = 3
"""States on disk: the rig keeps two checkpoints and may be writing a third."""
_STATE_NAME: Final = re.compile(r"learner-(\d{8,})\.npz")


class States:
    """Folder of the agent's last few states, each named after the training episode that it follows.

    A resumed run returns to a checkpoint of the rig's memory, and its learner to the matching state.  So there is one
    more state than the rig keeps checkpoints, each on disk before the rig may depend on it.
    """

    def __init__(self, folder: Path, warn: Callable[[str], object]) -> None:
        self._folder, self._warn = folder, warn
        self.unwritten = False
        """Whether the newest state could not be written."""

    def episodes(self) -> list[int]:
        """Episodes with a saved state, newest first."""
        found = (_STATE_NAME.fullmatch(path.name) for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, episode: int) -> Path:
        """Where the state after an episode lies."""
        return self._folder / f"learner-{episode:08d}.npz"

    def save(self, agent: Agent, settled: int | None = None) -> None:
        """Write the state after ``agent.handled``, durably; where that fails, warn once, until it succeeds again.

        Deletes the oldest, and those of later episodes, which are of a run before, or of one that lost its end.
        ``settled``: episode of the rig's newest checkpoint, to which it may return (lockstep); the state of that
        episode stays, however old.
        """
        try:
            self._write(agent, settled)
        except OSError as error:
            if not self.unwritten:
                self._warn(f"cannot save the learner's state: {error.strerror or error}; will retry")
            self.unwritten = True
        else:
            self.unwritten = False

    def _write(self, agent: Agent, settled: int | None) -> None:
        agent.save(self.path(agent.handled))
        known = self.episodes()
        later = [episode for episode in known if episode > agent.handled]
        old = [episode for episode in known[len(later) :][KEPT:] if settled is None or episode < settled]
        for episode in later + old:
            self.path(episode).unlink(missing_ok=True)

    def restore(self, agent: Agent, upto: int | None) -> bool:
        """Restore the newest intact state of an episode up to ``upto``; False if there is none.

        Later states are deleted: their episodes have not happened yet.
        """
        for episode in self.episodes():
            if upto is not None and episode > upto:
                self.path(episode).unlink(missing_ok=True)
            elif agent.restore(self.path(episode)):
                return True
        return False
