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

EventWriter = Callable[..., None]


class Sink(Protocol):
    """Consumer of the loop's records, in order; never raises and never blocks."""

    def add(self, records: npt.NDArray[np.void]) -> None:
        """Process step records (dtype ``RecordLayout.dtype``)."""

    def episode(self, row: EpisodeRow) -> None:
        """Add the row of an ended episode."""

    def poll(self, now_s: float) -> None:
        """Do periodic work; ``now_s``: any monotonic clock."""

    @property
    def first_unlogged(self) -> int | None:
        """Number of the first record not on disk; None if no records need to be retained for the log."""

    def account(self) -> LogAccount | None:
        """Return how many records were passed to the log, and how many are missing from it; None without a log."""

    def close(self) -> None:
        """Write everything and close."""


class NoLog:
    """Sink that discards everything."""

    def add(self, records: npt.NDArray[np.void]) -> None:
        pass

    def episode(self, row: EpisodeRow) -> None:
        pass

    def poll(self, now_s: float) -> None:
        pass

    @property
    def first_unlogged(self) -> int | None:
        return None

    def account(self) -> LogAccount | None:
        return None

    def close(self) -> None:
        pass


class LogMissing(Exception):
    """Raised if the library for a configured log is missing; the message gives the remedy."""


def open_log(
    config: RunConfig,
    folder: Path,
    session: str,
    event: EventWriter,
    loop_state: Callable[[], bytes | None] = lambda: None,
    reserved_names: Collection[str] = (),
) -> Sink:
    """Open the log requested by a configuration, in the run's ``folder``.

    ``session`` identifies the loop's process: it changes when the run is resumed, but not when the replay process is
    restarted. ``event`` reports the end of the log and the first failure; ``loop_state`` returns the loop's last stored
    state (``onrig.runtime.shm.latest``); ``reserved_names``: files of the run, whose names are never reused, even after
    deletion. Raises LogMissing if the log is requested explicitly but mcap is not installed; by default the run then
    has no log.
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
    return McapLog(config, folder, session, event, loop_state, reserved_names=reserved_names)
