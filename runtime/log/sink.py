"""Where the records of a run go besides its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.run_state.wholeness import LogAccount

Event = Callable[..., None]


class Sink(Protocol):
    """Takes what the loop wrote, in order; never raises and never waits for anybody."""

    def add(self, records: npt.NDArray[np.void]) -> None:
        """Take step records (dtype ``RecordLayout.dtype``)."""

    def episode(self, row: EpisodeRow) -> None:
        """Take the row of an episode that has ended."""

    def turn(self, now_s: float) -> None:
        """Do what time asks for; ``now_s`` on any clock that only goes forward."""

    @property
    def logged(self) -> int | None:
        """Number of the first record that is not on the disk; None where none needs to be kept for the log."""

    def account(self) -> LogAccount | None:
        """What it has of the records that it was given; None where there is no log."""

    def close(self) -> None:
        """Bring everything to its place."""


class NoLog:
    """Takes everything and keeps nothing."""

    def add(self, records: npt.NDArray[np.void]) -> None:
        """Nothing."""

    def episode(self, row: EpisodeRow) -> None:
        """Nothing."""

    def turn(self, now_s: float) -> None:
        """Nothing."""

    @property
    def logged(self) -> int | None:
        """Nothing waits."""
        return None

    def account(self) -> LogAccount | None:
        """Nothing was to be kept."""
        return None

    def close(self) -> None:
        """Nothing."""


class LogMissing(Exception):
    """The configuration wants a log that cannot be written here; the message says what to do."""


def open_log(
    config: RunConfig, folder: Path, session: str, event: Event, loop_state: Callable[[], bytes | None] = lambda: None
) -> Sink:
    """Open the log that a configuration asks for, in the run's ``folder``.

    ``session`` names the run of the loop that the records are of: a resumed run has another one, a replay process that
    was started anew the same.  ``event`` hears of the log's end, and once of what goes wrong; ``loop_state`` gives what
    the loop kept last (``onrig.runtime.shm.latest``).  Raises LogMissing where the log is asked for by name and mcap
    is not installed; where it is merely the default, the run goes without.
    """
    if config.log.mcap is False:
        return NoLog()
    try:
        from onrig.runtime.log.mcap_log import McapLog
    except ImportError as error:
        remedy = "pip install 'onrig[log]'"
        if config.log.mcap is True:
            raise LogMissing(f"log.mcap: {error.name} is not installed; {remedy}, or set log.mcap=auto") from None
        event("log_off", reason=f"{error.name} is not installed; {remedy}, or set log.mcap=false")
        return NoLog()
    return McapLog(config, folder, session, event, loop_state)
