"""A soak's observers of the running rig: events, records, and progress of its mirror."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.files import LineTail
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.record import Miss
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_state.events import n_occurrences
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment, SegmentError
from tests.lab.endurance.schedule import MISSED, RESTARTED
from tests.lab.endurance.soak_rig import SoakRig
from tests.lab.rig.audit import WatchingMirror
from tests.lab.rig.balance import Lifetime
from tests.lab.rig.run import Run
from tests.lab.rig.run_folder import FolderContents, checkpoint_counts

_AT_WORK: Final = (State.RUNNING, State.FALLBACK)


class EventLog:
    """New lines of ``events.jsonl``; ``names`` are (monotonic s, fault name), in order."""

    def __init__(self, path: Path) -> None:
        self._tail = LineTail(path, from_end=True)
        self.names: list[tuple[float, str]] = []
        self.kinds: dict[str, int] = {}
        """Number of events of each kind."""
        self.last_decision_s = 0.0
        """Time of the last admission or refusal of a policy."""

    def read(self) -> None:
        """Read new lines."""
        while lines := self._tail.lines():
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    self._take(msgspec.json.decode(line, type=dict[str, object]))

    def _take(self, event: dict[str, object]) -> None:
        kind, now_s = str(event.get("kind")), time.monotonic()
        self.kinds[kind] = self.kinds.get(kind, 0) + n_occurrences(event)
        if kind in ("policy_admitted", "policy_refused"):
            self.last_decision_s = now_s
        if kind == "tick":
            if event.get("missed"):
                self.names.append((now_s, MISSED))
            return
        if event.get("fault"):
            self.names.append((now_s, str(event["fault"])))
        if RESTARTED in str(event.get("message", "")):
            self.names.append((now_s, RESTARTED))


class LifeWatch:
    """Observer of one lifetime of the rig, from its ring and events; enters its counts in the ledger."""

    def __init__(self, life: Lifetime, config: RunConfig, run: Run) -> None:
        rig = config.rig
        self.life, self.folder = life, run.folder
        self._run = run
        self._layout = record_layout(config)
        self._builder = TransitionBuilder(rig, config.signals)
        self._segment: Segment | None = None
        self._ring: RingHistory | None = None
        self.events = EventLog(run.folder / "events.jsonl")
        if life.resumed and (reported := checkpoint_counts(config, run.folder)) is not None and reported.digest:
            life.before = reported

    @property
    def ticks(self) -> int:
        """Number of tick records of this lifetime."""
        return 0 if self._ring is None else self._ring.n_written

    @property
    def in_episode(self) -> bool:
        """Whether the loop is in an episode."""
        return self._ring is not None and self._run.word(Word.STATE) in _AT_WORK

    def poll(self) -> None:
        """Read new records and events."""
        self.events.read()
        if self._ring is None and not self._attached():
            return
        assert self._ring is not None
        life = self.life
        records = self._ring.records_since(life.read)
        if len(records):
            life.read += len(records)
            life.produced += len(self._builder.add(records).reward)
            for cause, missed in zip(records["miss"].tolist(), records["missed"].tolist(), strict=True):
                if missed:
                    life.missed[Miss(cause).name.lower()] += missed
        life.written = self._ring.n_written

    def _attached(self) -> bool:
        if self._run.shm is None:
            return False
        try:
            self._segment = Segment.attach(self._run.shm / "ring", self._layout.schema)
        except SegmentError:
            return False  # it is just being created
        self._ring = RingHistory(self._segment, self._layout)
        return True

    def finish(self, code: int | None, contents: FolderContents) -> None:
        """Read the last records, and the run's account."""
        self.poll()
        life, kinds = self.life, self.events.kinds
        life.exit_code = code
        life.admitted = kinds.get("policy_admitted", 0)
        life.refused = kinds.get("policy_refused", 0)
        life.rolled_back = kinds.get("policy_rolled_back", 0)
        life.replay_kills = sum(name == RESTARTED for _, name in self.events.names)
        summary = contents.counts_from_summary
        life.graceful = summary is not None and code is not None and code >= 0
        life.reported = summary if summary is not None and life.graceful else contents.counts_from_checkpoint
        if self._ring is not None:
            life.reported.dropped = self._ring.n_dropped

    def close(self) -> None:
        """Release the shared memory."""
        if self._ring is not None and self._segment is not None:
            self._ring.close()
            self._segment.close()
            self._ring = self._segment = None


class Scene:
    """Observable state for fault injection: the rig, its current lifetime, and the mirror."""

    def __init__(self, rig: SoakRig, mirror: WatchingMirror) -> None:
        self.rig, self.mirror = rig, mirror
        self.life_number = 0
        """Number of the current or last lifetime."""
        self.watch: LifeWatch | None = None
        self._names: list[tuple[float, str]] = []
        self._last_decision_s = 0.0

    def observe(self, life: Lifetime, run: Run) -> None:
        """Observe another lifetime from now on."""
        self.life_number = life.number
        self.watch = LifeWatch(life, self.rig.config, run)
        self.mirror.folder = run.folder

    def stop_observing(self) -> None:
        """Stop observing, and keep the fault names."""
        if self.watch is not None:
            self._names += self.watch.events.names
            self._last_decision_s = self.learner_at_work_s
            self.watch.close()
            self.watch = None

    @property
    def running(self) -> bool:
        """Whether the rig's supervisor is running."""
        return self.rig.running

    @property
    def ticks(self) -> int:
        """Number of ticks of this lifetime."""
        return 0 if self.watch is None else self.watch.ticks

    @property
    def at_work(self) -> bool:
        """Whether the loop is in an episode."""
        return self.watch is not None and self.watch.in_episode

    @property
    def learner_at_work_s(self) -> float:
        """Monotonic time at which the rig last decided on one of the learner's policies."""
        return max(self._last_decision_s, 0.0 if self.watch is None else self.watch.events.last_decision_s)

    def names_since(self, at_s: float) -> list[str]:
        """Fault names since this time."""
        here = [] if self.watch is None else self.watch.events.names
        return [name for reported_s, name in (*self._names, *here) if reported_s >= at_s]
