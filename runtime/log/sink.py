"""Destination of a run's records other than its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.completeness import LogAccount
from onrig.runtime.run_state.episodes import EpisodeRow

Event = Callable[..., None]


class Sink(Protocol):
    """Consumer of the loop's records, in order; never raises and never blocks."""

    def add(self, records: npt.NDArray[np.void]) -> None:
        """Take step records (dtype ``RecordLayout.dtype``)."""

    def episode(self, row: EpisodeRow) -> None:
        """Add the row of an ended episode."""

    def turn(self, now_s: float) -> None:
        """Do periodic work; ``now_s``: any monotonic clock."""

    @property
    def logged(self) -> int | None:
        """Number of the first record not on disk; None if the log needs no records retained."""

    def account(self) -> LogAccount | None:
        """Account of the records given and missing; None without a log."""

    def close(self) -> None:
        """Write everything and close."""


class NoLog:
    """Sink that discards everything."""

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
    """A configured log whose library is missing; the message gives the remedy."""


def open_log(
    config: RunConfig,
    folder: Path,
    session: str,
    event: Event,
    loop_state: Callable[[], bytes | None] = lambda: None,
    written: Collection[str] = (),
) -> Sink:
    """Open the log that a configuration asks for, in the run's ``folder``.

    ``session`` names the loop's process: it differs after a resumption, but not after a restart of the replay process.
    ``event`` receives the end of the log and the first failure; ``loop_state`` returns the loop's last stored state
    (``onrig.runtime.shm.latest``); ``written``: files of the run, whose names are never reused, even after deletion.
    Raises LogMissing if the log is requested explicitly and mcap is not installed; by default the run then has no log.
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
    return McapLog(config, folder, session, event, loop_state, written=written)
