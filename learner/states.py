"""The learner's last few states on disk."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from onrig.hw.native import Executor, difference_from_this_process, read_executor
from onrig.runtime.files import open_file

if TYPE_CHECKING:
    from onrig.learner.agent import Agent


MAX_STATES: Final = 3
"""Number of states on disk: the rig keeps two checkpoints and may be writing a third."""
_STATE_NAME: Final = re.compile(r"learner-(\d{8,})\.npz")


class StatesConflictError(Exception):
    """Raised for a folder with states of another run or executor; the message names the file."""


class _Header(NamedTuple):
    """Origin of a saved state."""

    run: str
    """Identity of the run that saved it; "" in states of earlier versions."""
    episode: int
    executor: Executor | None
    """Executor that computed its updates; None in states of earlier versions."""


def state_name(episode: int) -> str:
    """Return the file name of the state after an episode."""
    return f"learner-{episode:08d}.npz"


def state_fault(path: Path, run: str) -> str | None:
    """Return what is wrong with the state from which ``run`` is to resume; None if it is intact."""
    if not path.exists():
        return "is missing"
    header = _header(path)
    if header is None:
        return "is damaged"
    if header.run != run:
        return "belongs to another run"
    return None if state_name(header.episode) == path.name else f"is the state after episode {header.episode}"


def _header(path: Path) -> _Header | None:
    """Return the origin of a state with correct checksums; None for any other file."""
    try:
        with open_file(path, None) as file, zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return None
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive_arrays:
                run = archive_arrays["run"].tobytes().decode() if "run" in archive_arrays.files else ""
                executor = (
                    msgspec.json.decode(archive_arrays["executor"].tobytes())
                    if "executor" in archive_arrays.files
                    else None
                )
                return _Header(run, int(archive_arrays["handled"]), read_executor(executor))
    except (OSError, EOFError, KeyError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return None


class States:
    """Folder of the agent's last few states, each named after the training episode that it follows.

    A resumed run returns to a checkpoint of the rig's memory, and its learner to the matching state.  Therefore one
    more state is kept than the rig has checkpoints, and each is on disk before the rig may depend on it.
    """

    def __init__(self, folder: Path, warn: Callable[[str], object]) -> None:
        self._folder, self._warn = folder, warn
        self._run = ""
        self.has_save_failed = False
        """Whether the newest state could not be written."""

    def claim(self, run: str) -> None:
        """Claim the folder for a run.

        Raises StatesConflictError, and changes nothing, if its states belong to another run, or were computed by a
        different executor from this process's.
        """
        headers = {episode: _header(self.path(episode)) for episode in self.episodes()}
        run_headers = [header for header in headers.values() if header is not None and header.run == run]
        other_runs = [episode for episode, header in headers.items() if header is not None and header.run != run]
        if other_runs:
            raise StatesConflictError(
                f"{self.path(other_runs[0])} belongs to another run; choose another folder with --state, or move it"
            )
        if headers and not run_headers:
            raise StatesConflictError(
                f"{self.path(next(iter(headers)))} is damaged and may belong to another run; move it elsewhere"
            )
        for header in run_headers[:1]:
            if difference := difference_from_this_process(header.executor):
                raise StatesConflictError(
                    f"{self.path(header.episode)}: {difference}; or choose another folder with --state"
                )
        self._run = run

    def episodes(self) -> list[int]:
        """Return the episodes that have a saved state, newest first."""
        matches = (_STATE_NAME.fullmatch(path.name) for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def executor(self) -> Executor | None:
        """Return the executor that computed the newest intact state; None if unknown."""
        headers = (_header(self.path(episode)) for episode in self.episodes())
        return next((header.executor for header in headers if header is not None), None)

    def path(self, episode: int) -> Path:
        return self._folder / state_name(episode)

    def save(self, agent: Agent, checkpoint_episode: int | None = None) -> None:
        """Durably write the state after the agent's last completed episode; warn about the first of consecutive
        failures.

        The oldest states are deleted, and so are those of later episodes, which the run has lost.
        ``checkpoint_episode``: episode of the rig's newest checkpoint (lockstep), whose state is kept no matter how old
        it is.
        """
        try:
            self._write(agent, checkpoint_episode)
        except OSError as error:
            if not self.has_save_failed:
                self._warn(f"cannot save the learner's state: {error.strerror or error}; will retry")
            self.has_save_failed = True
        else:
            self.has_save_failed = False

    def _write(self, agent: Agent, checkpoint_episode: int | None) -> None:
        agent.save(self.path(agent.last_completed_episode), self._run)
        saved_episodes = self.episodes()
        later_episodes = [episode for episode in saved_episodes if episode > agent.last_completed_episode]
        expired_episodes = [
            episode
            for episode in saved_episodes[len(later_episodes) :][MAX_STATES:]
            if checkpoint_episode is None or episode < checkpoint_episode
        ]
        for episode in later_episodes + expired_episodes:
            self.path(episode).unlink(missing_ok=True)

    def restore(self, agent: Agent, last_episode: int | None) -> bool:
        """Restore the newest intact state up to ``last_episode`` (None: of any episode); return False if none exists.

        Later states are deleted, because their episodes are repeated.
        """
        for episode in self.episodes():
            if last_episode is not None and episode > last_episode:
                self.path(episode).unlink(missing_ok=True)
                continue
            fault = state_fault(self.path(episode), self._run)
            if fault is None and agent.restore(self.path(episode)):
                return True
            self._warn(f"{self.path(episode)} {fault or 'does not fit this learner'}; it is skipped")
        return False
