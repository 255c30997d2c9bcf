"""Way of a step record through the replay process: from the ring to memory, accounts, files, log and viewers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.log.sink import Sink
from onrig.runtime.replay.accounts.figures import TickEvents
from onrig.runtime.replay.accounts.telemetry import Telemetry
from onrig.runtime.replay.accounts.timing import TimingFile
from onrig.runtime.replay.horizon import since
from onrig.runtime.replay.parts import Parts


class Intake:
    """Passes records on, in order; those that a process before this one took in are not told or logged again."""

    def __init__(
        self,
        parts: Parts,
        timing: TimingFile,
        log: Sink,
        tick_events: TickEvents,
        telemetry: Telemetry | None,
        *,
        told: int,
        unlogged: int,
    ) -> None:
        self._parts, self._timing, self._log = parts, timing, log
        self._tick_events, self._telemetry = tick_events, telemetry
        self.told: Final = told
        """Number of the first record of which nobody was told before."""
        self.unlogged: Final = unlogged
        """Number of the first record that no process before this one has logged."""

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records of the ring (dtype ``RecordLayout.dtype``, at least one)."""
        parts = self._parts
        parts.memory.insert(parts.builder.add(records))
        parts.figures.add(records)
        parts.watch.add(records)
        parts.policies.follow(records, parts.ring.dropped)
        self._timing.add(records)
        self.log(records)
        untold = since(records, self.told)
        if len(untold):
            self._tick_events.add(untold)
            if self._telemetry is not None:
                self._telemetry.add(untold)
        for row in parts.accounts.add(records):
            parts.rows.append(row)
            if records["seq"][-1] >= self.unlogged:
                self._log.episode(row)
            if row.kind == "train":
                parts.desk.closed = row.episode
                parts.figures.add_training(row)

    def log(self, records: NDArray[np.void]) -> None:
        """Log what of these records no process before this one has logged."""
        self._log.add(since(records, self.unlogged))
