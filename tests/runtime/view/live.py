"""A run as seen from outside: its folder and its shared memory, with a telemetry driven by the test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import RecordLayout
from onrig.runtime.replay.accounts.telemetry import ProcessFigures, Telemetry, open_telemetry
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import save_resolved
from onrig.runtime.run_state.running import Running, announce
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board
from onrig.runtime.shm.ring import RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from onrig.runtime.shm.view_segment import view_bytes, view_schema
from tests.runtime.samples import PENDULUM, Records

FIGURES = ProcessFigures(
    episode=3,
    offered=40,
    dropped=1,
    gaps=2,
    updates=500,
    updates_per_s=1500.0,
    score_last20=0.5,
    policies_offered=4,
    policies_admitted=3,
    policies_refused=1,
)


class LiveRun:
    """Context manager; ``shm`` is a folder of the test."""

    def __init__(self, folder: Path, shm: Path, config: RunConfig = PENDULUM) -> None:
        self.folder, self.shm, self.config = folder, shm, config
        folder.mkdir(exist_ok=True)
        shm.mkdir(exist_ok=True)
        save_resolved(config, folder / "config.yaml")
        rig = config.rig
        self.layout = layout = RecordLayout.for_rig(rig)
        Segment.create(shm / "view", view_bytes(layout), view_schema(layout)).close()
        self._ring_segment = Segment.create(shm / "ring", ring_bytes(layout, 1024), layout.schema)
        self._board_segment = Segment.create(shm / "board", BOARD_BYTES, BOARD_SCHEMA)
        self.board = Board(self._board_segment)
        self.ring = RingWriter(self._ring_segment, layout)
        self.memory = Memory(config)
        self.figures = FIGURES
        self.telemetry = self.make_telemetry()
        self.running = Running(1, shm, folder)
        announce(shm, folder)

    def make_telemetry(self) -> Telemetry:
        """Shared memory as opened by a replay process."""
        telemetry = open_telemetry(
            self.shm, self.layout, self.memory.storage, lambda: self.figures, lockstep=self.config.lockstep
        )
        assert telemetry is not None
        self.memory.on_errors = telemetry.on_replay
        return telemetry

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.telemetry.close()
        self.board.close()
        self.ring.close()
        self._board_segment.close()
        self._ring_segment.close()

    def push(self, records: Records) -> None:
        """Write records like the loop, and tally them like the replay process."""
        for row in records:
            self.ring.push(tuple(_flatten(row.tolist()[1:-1])))
        self.telemetry.add(records)

    def insert_random(self, n: int, rng: np.random.Generator) -> None:
        """Let the memory keep some experiences."""
        storage = self.memory.storage
        for _ in range(n):
            slot = self.memory.keeper.place()
            pair: NDArray[np.float32] = rng.uniform(-1, 1, 2).astype(np.float32)
            storage.insert(slot, pair, pair[:1], -1.0, pair, 0, 7, float(rng.random()))
            self.memory.keeper.on_write(slot, 0.0, 1)


def _flatten(values: Iterable[object]) -> Iterable[float]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield from value.tolist()
        else:
            assert isinstance(value, int | float)
            yield value
