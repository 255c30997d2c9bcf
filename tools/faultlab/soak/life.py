"""One life of the rig as seen from beside it: its records, its events, and what it leaves behind."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.record import Miss, RecordLayout
from onrig.runtime.replay.memory.transitions import TransitionBuilder
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.event_kinds import times
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment, SegmentError, live_folders
from onrig.tools.faultlab.run_folder import kept_memory, newest_manifest
from onrig.tools.faultlab.soak.ledger import Life, Told
from onrig.tools.faultlab.soak.plan import MISSED, RESTARTED

_AT_WORK: Final = (State.RUNNING, State.FALLBACK)


class EventTail:
    """Reads ``events.jsonl`` as it grows; ``names`` are (monotonic s, how a fault was told of), in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""
        self.names: list[tuple[float, str]] = []
        self.kinds: dict[str, int] = {}
        """How many events of each kind."""
        self.decided_s = 0.0
        """When a policy was admitted or refused last."""

    def read(self) -> None:
        """Take what is new."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    self._take(msgspec.json.decode(line, type=dict[str, object]))

    def _take(self, event: dict[str, object]) -> None:
        kind, now_s = str(event.get("kind")), time.monotonic()
        self.kinds[kind] = self.kinds.get(kind, 0) + times(event)
        if kind in ("policy_admitted", "policy_refused"):
            self.decided_s = now_s
        if kind == "tick":
            if event.get("missed"):
                self.names.append((now_s, MISSED))
            return
        if event.get("fault"):
            self.names.append((now_s, str(event["fault"])))
        if RESTARTED in str(event.get("message", "")):
            self.names.append((now_s, RESTARTED))


class LifeWatch:
    """Attaches to a rig as soon as it has shared memory, and reads along without a trace."""

    def __init__(self, life: Life, config: RunConfig, run_folder: Path, *, resumed: bool) -> None:
        rig = config.rig
        self.life, self.folder = life, run_folder
        self._config = config
        self._layout = RecordLayout.of(rig)
        self._builder = TransitionBuilder(rig)
        self._board: Board | None = None
        self._ring: RingHistory | None = None
        self._segments: list[Segment] = []
        self.events = EventTail(run_folder / "events.jsonl")
        if resumed:
            life.resumed = True
            life.before = told_by_checkpoint(config, run_folder)

    def attach(self, pid: int) -> bool:
        """Find the shared memory of the rig whose supervisor is ``pid``; whether it is there."""
        if self._ring is not None:
            return True
        shm = next((folder for owner, folder in live_folders() if owner == pid), None)
        if shm is None:
            return False
        try:
            ring = Segment.attach(shm / "ring", self._layout.schema)
            board = Segment.attach(shm / "board", BOARD_SCHEMA)
        except SegmentError:
            return False  # it is being made at this moment
        self._segments = [ring, board]
        self._ring, self._board = RingHistory(ring, self._layout), Board(board)
        return True

    @property
    def ticks(self) -> int:
        """Records of ticks so far, of this life."""
        return 0 if self._ring is None else self._ring.written

    @property
    def at_work(self) -> bool:
        """Whether the loop is in an episode."""
        return self._board is not None and self._board[Word.STATE] in _AT_WORK

    def look(self) -> None:
        """Read what has come since the last look."""
        self.events.read()
        if self._ring is None:
            return
        life = self.life
        records = self._ring.since(life.read)
        if len(records):
            life.read += len(records)
            life.produced += len(self._builder.add(records).reward)
            for cause, missed in zip(records["miss"].tolist(), records["missed"].tolist(), strict=True):
                if missed:
                    life.missed[Miss(cause).name.lower()] += missed
        life.written = self._ring.written

    def conclude(self, code: int | None) -> None:
        """Take the last records, and what the rig says for itself."""
        self.look()
        life = self.life
        life.exit_code = code
        life.admitted = self.events.kinds.get("policy_admitted", 0)
        life.refused = self.events.kinds.get("policy_refused", 0)
        life.rolled_back = self.events.kinds.get("policy_rolled_back", 0)
        summary = _summary(self.folder)
        life.graceful = summary is not None and code is not None and code >= 0
        checkpoint = told_by_checkpoint(self._config, self.folder)
        life.told = told_by_summary(summary, checkpoint) if summary is not None and life.graceful else checkpoint
        if self._ring is not None:
            life.told.dropped = self._ring.dropped

    def close(self) -> None:
        """Let go of the shared memory."""
        if self._ring is not None and self._board is not None:
            self._ring.close()
            self._board.close()
            for segment in self._segments:
                segment.close()
            self._ring = self._board = None


def told_by_checkpoint(config: RunConfig, folder: Path) -> Told:
    """What the newest checkpoint says of the counts."""
    manifest, kept = newest_manifest(folder), kept_memory(config, folder)
    if manifest is None or kept is None:
        return Told()
    return Told(
        taken_in=manifest.extra["ticks"],
        missed=manifest.extra["missed"],
        offered=manifest.counts["offered"],
        kept=manifest.counts["inserted"],
        gaps=manifest.extra["gaps"],
        error_batches=manifest.extra.get("error_batches"),
        digest=kept.storage.digest().hex(),
        stored=kept.storage.stored,
        capacity=kept.storage.capacity,
    )


class _Buffer(msgspec.Struct):
    capacity: int
    stored: int
    digest: str


class _Policies(msgspec.Struct):
    offered: int
    admitted: int
    refused: int
    rolled_back: int = 0


class _Learner(msgspec.Struct):
    error_batches: int | None = None


class _Summary(msgspec.Struct):
    ticks: int
    missed_ticks: int
    transitions: int
    gaps: int
    buffer: _Buffer
    policies: _Policies
    learner: _Learner
    mirror_mismatches: int = 0


def _summary(folder: Path) -> _Summary | None:
    try:
        return msgspec.json.decode((folder / "summary.json").read_bytes(), type=_Summary)
    except (OSError, msgspec.DecodeError):
        return None


def told_by_summary(summary: _Summary, checkpoint: Told) -> Told:
    """What the summary says; writes are counted in the checkpoint alone, which is the last one then."""
    return Told(
        taken_in=summary.ticks,
        missed=summary.missed_ticks,
        offered=summary.transitions,
        kept=checkpoint.kept,
        gaps=summary.gaps,
        policies_offered=summary.policies.offered,
        policies_admitted=summary.policies.admitted,
        policies_refused=summary.policies.refused,
        rolled_back=summary.policies.rolled_back,
        mirror_mismatches=summary.mirror_mismatches,
        error_batches=summary.learner.error_batches,
        digest=summary.buffer.digest,
        stored=summary.buffer.stored,
        capacity=summary.buffer.capacity,
    )
