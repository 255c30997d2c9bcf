"""The learner's own states on disk: the last few, each named after the training episode that it follows.

A run that is resumed goes back to a checkpoint of the rig's memory, and its learner to the state that belongs to it.
So there is always one more than the rig keeps checkpoints, and each is on disk before the rig may rely on it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from onrig.learner.agent import Agent

KEPT: Final = 3
"""The rig keeps two checkpoints, and may be on its way to a third."""
_NAME: Final = re.compile(r"learner-(\d{8,})\.npz")


class States:
    """The states in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def episodes(self) -> list[int]:
        """Episodes that there are states of, the newest first."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, episode: int) -> Path:
        """Where the state after an episode lies."""
        return self._folder / f"learner-{episode:08d}.npz"

    def save(self, agent: Agent, settled: int | None = None) -> None:
        """Write the state after ``agent.handled``, durably, and forget the oldest; raises OSError.

        ``settled``: episode of the rig's newest checkpoint, to which it may come back (lockstep); the state that
        belongs to it stays, however old it is.
        """
        agent.save(self.path(agent.handled))
        for episode in self.episodes()[KEPT:]:
            if settled is None or episode < settled:
                self.path(episode).unlink(missing_ok=True)

    def restore(self, agent: Agent, upto: int | None) -> bool:
        """Go on from the newest state that is whole, of an episode not after ``upto``; False when there is none.

        Later ones are deleted: their episodes have not happened yet.
        """
        for episode in self.episodes():
            if upto is not None and episode > upto:
                self.path(episode).unlink(missing_ok=True)
            elif agent.restore(self.path(episode)):
                return True
        return False
