"""The replay process: ``python -m runtime.replay.main RUN_FOLDER SHM_FOLDER``.

Drains the ring, keeps the memory and the run folder, answers learners, admits policies.  It may die without harm: the
loop goes on under its last policy, and a new replay process takes over the same ring.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime.config.resolve import load_resolved
from runtime.config.schema import RunConfig
from runtime.control.realtime import die_with_parent, leave_cpu
from runtime.exit_codes import ExitCode
from runtime.link.keys import KeyFault
from runtime.link.listening import Unreachable, listen
from runtime.record import Kind, RecordLayout
from runtime.replay.checkpoint import CheckpointError
from runtime.replay.checkpoint.upkeep import Upkeep
from runtime.replay.desk import LearnerDesk
from runtime.replay.episodes import EpisodeAccounts, EpisodeFile
from runtime.replay.layout import Flag
from runtime.replay.memory import Memory
from runtime.replay.policy_desk import PolicyDesk, admission_limits
from runtime.replay.resynthesis import Resynthesiser
from runtime.replay.run_figures import RunFigures
from runtime.replay.tick_events import TickEvents
from runtime.replay.transitions import TransitionBuilder
from runtime.shm.board import BOARD_SCHEMA, Board, Word
from runtime.shm.ring import RingReader
from runtime.shm.segment import Segment
from runtime.shm.slot import SLOT_SCHEMA, PolicySlot
from runtime.supervise.events import EventFile
from runtime.supervise.report import report

_ME: Final = "replay"
_IDLE_MS: Final = 1
_PROGRESS_S: Final = 0.25
_FAREWELL_S: Final = 1.0
"""How long the end waits for learners that are busy, so that they hear of it; those silent for long are not awaited."""


class ReplayProcess:
    """Everything the process owns, and its turn of work."""

    def __init__(
        self, config: RunConfig, run_folder: Path, shm: Path, resynthesiser: Resynthesiser | None = None
    ) -> None:
        rig = config.rig
        layout = RecordLayout(len(rig.sensors), len(rig.signals), len(rig.actuators))
        self._config, self._folder = config, run_folder
        self._board = Board(Segment.attach(shm / "board", BOARD_SCHEMA))
        self._board[Word.REPLAY_PID] = os.getpid()
        self._ring = RingReader(Segment.attach(shm / "ring", layout.schema), layout)
        slot = PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA))
        self.takes_over = slot.version > 0
        """Whether a policy is at work already: another replay process was here before this one."""
        self._events = EventFile(run_folder / "events.jsonl")
        self._server = listen(f"ipc://{shm}/learner", config.link)
        self._memory = Memory(config, resynthesiser)
        self._policies = PolicyDesk(
            rig,
            config.rate_hz,
            config.seed,
            admission_limits(config),
            slot,
            run_folder / "policies",
            self._events.write,
        )
        config_text = (run_folder / "config.yaml").read_bytes()
        self._desk = LearnerDesk(
            self._memory,
            self._policies,
            run_id=_run_id(config, run_folder, config_text),
            config_text=config_text,
            lockstep=config.lockstep,
            event=self._events.write,
            is_gone=self._server.is_gone,
        )
        self._builder = TransitionBuilder(rig)
        self._accounts = EpisodeAccounts(config.task)
        self._rows = EpisodeFile(run_folder / "episodes.csv")
        self._figures = RunFigures(lockstep=config.lockstep)
        self._tick_events = TickEvents(self._events.write)
        self._reported_s = 0.0
        self._upkeep = Upkeep(run_folder / "buffer", self._memory, config, lambda line: report(_ME, "warning", line))
        self._resume(self._upkeep.restored)
        self._desk.closed = max(self._desk.closed, self._closed_before())

    def _resume(self, counts: Mapping[str, int] | None) -> None:
        """Go on counting where the checkpoint was written that the memory comes from."""
        if counts is None:
            if self.takes_over:
                report(_ME, "warning", "there is no checkpoint yet: the memory begins empty")
            return
        self._desk.closed, self._desk.error_batch = counts["closed"], counts["error_batch"]
        self._figures.resume(counts)
        self._builder.gaps = counts["gaps"]
        self._events.write("memory_restored", inserted=self._memory.storage.inserted, closed=self._desk.closed)

    def _counts(self) -> dict[str, int]:
        return {
            "closed": self._desk.closed,
            "error_batch": self._desk.error_batch,
            "gaps": self._builder.gaps,
            **self._figures.counts(),
        }

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where learners connect."""
        return self._server.endpoints

    def admit_file(self, path: Path) -> str | None:
        """Admit the policy a configuration starts with; the reason if it is refused."""
        verdict = self._policies.adopt(path.read_bytes())
        return None if verdict.accepted else f"{verdict.stage}: {verdict.reason}"

    def turn(self) -> bool:
        """Do what there is to do; False when there was nothing."""
        records = self._ring.peek()
        if len(records):
            self._take(records)
            self._ring.release(len(records))
        self._server.serve(self._desk.handle)
        for ticket, answer in self._desk.due():
            self._server.send(ticket, answer)
        for key in self._server.refused_keys():
            self._events.write("learner_turned_away", key=key)
        if self._config.lockstep and self._desk.done + 1 > self._board[Word.BARRIER]:
            self._upkeep.at_episode(self._desk.done, self._counts)
            self._board[Word.BARRIER] = self._desk.done + 1
        now = time.monotonic()
        if not self._config.lockstep:
            self._upkeep.at_time(now, self._counts)
        if now - self._reported_s > _PROGRESS_S:
            self._reported_s = now
            self._report_progress()
        return len(records) > 0

    def idle(self) -> None:
        """Wait for a request, briefly: the ring gives no sign of its own."""
        self._server.wait(_IDLE_MS)

    @property
    def finished(self) -> bool:
        """Whether the loop has ended and everything it wrote has been taken in."""
        return self._board[Word.ENDED] == 1 and len(self._ring) == 0

    def _closed_before(self) -> int:
        """Last training episode of which the ring holds nothing (any more): what is not in the memory never will be."""
        closed = self._board[Word.CLOSED]
        waiting = self._ring.peek(1)
        if not len(waiting):
            return closed
        return int(waiting[0]["episode"]) - int(waiting[0]["kind"] == Kind.TRAIN)

    def _dismiss(self) -> None:
        """Tell learners that the run is over: at once those that wait, the others when they ask again."""
        self._desk.ending = True
        limit = time.monotonic() + _FAREWELL_S
        while True:
            for ticket, answer in self._desk.due():
                self._server.send(ticket, answer)
            if not self._desk.expects_somebody or time.monotonic() > limit:
                return
            self._server.wait(20)
            self._server.serve(self._desk.handle)

    def _take(self, records: NDArray[np.void]) -> None:
        self._memory.insert(self._builder.add(records))
        self._figures.add(records)
        self._tick_events.add(records)
        for row in self._accounts.add(records):
            self._rows.append(row)
            if row.kind == "train":
                self._desk.closed = row.episode
                self._figures.add_training(row)

    def _report_progress(self) -> None:
        figures = self._figures
        report(
            _ME,
            "progress",
            episode=figures.episode,
            normalized=figures.normalized_last20,
            ticks=figures.ticks,
            missed=figures.missed,
            updates=self._desk.updates,
            updates_per_s=self._desk.updates_per_s,
            policy=self._board[Word.POLICY],
            stored=self._memory.storage.stored,
        )

    def finish(self) -> None:
        """Tell the learners that the run is over, and write the summary."""
        self._dismiss()
        self._upkeep.close(self._counts)
        self._report_progress()
        storage = self._memory.storage
        summary = {
            "episodes": self._desk.closed,
            **self._figures.summary(),
            "transitions": self._memory.offered,
            "gaps": self._builder.gaps,
            "dropped_records": self._ring.dropped,
            "buffer": {
                "capacity": storage.capacity,
                "stored": storage.stored,
                "bytes": storage.nbytes + self._memory.keeper.nbytes,
                "strategy": str(self._memory.strategy),
                "synthetic": int(np.count_nonzero(storage.meta & Flag.SYNTHETIC)),
                "digest": storage.digest().hex(),
            },
            "policies": {
                "offered": self._policies.offered,
                "admitted": self._policies.admitted,
                "refused": self._policies.refused,
                "rolled_back": 0,
                "active": self._board[Word.POLICY],
            },
            "mirror_mismatches": self._desk.mismatches,
            "learner": {"updates": self._desk.updates, "updates_per_s": self._desk.updates_per_s},
        }
        try:
            fresh = self._folder / "summary.json.tmp"
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
            fresh.replace(self._folder / "summary.json")
        except OSError as error:
            report(_ME, "error", f"summary.json is not written: {error.strerror}")
        self._rows.close()
        self._events.close()
        self._server.close()


def _run_id(config: RunConfig, run_folder: Path, config_text: bytes) -> str:
    """What policies call their parent run: its folder; in lockstep, where equal runs give equal policies, a digest."""
    if not config.lockstep:
        return run_folder.name
    return f"{config.rig.name}-{hashlib.blake2b(config_text, digest_size=8).hexdigest()}"


def main(arguments: list[str], resynthesiser_for: Callable[[RunConfig, Path], Resynthesiser] | None = None) -> int:
    """Run the replay process until the loop has ended, or until SIGTERM.

    ``resynthesiser_for`` makes, of the configuration and the run folder, what replaces experiences by synthetic ones.
    """
    die_with_parent()
    run_folder, shm = Path(arguments[0]), Path(arguments[1])
    stop = False

    def request_stop(signum: int, frame: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = load_resolved(run_folder / "config.yaml")
    if not config.lockstep:
        leave_cpu(config.realtime)
    resynthesiser = resynthesiser_for(config, run_folder) if resynthesiser_for is not None else None
    try:
        process = ReplayProcess(config, run_folder, shm, resynthesiser)
    except CheckpointError as error:
        report(_ME, "error", str(error))
        return ExitCode.CONFIGURATION
    except KeyFault as error:
        report(_ME, "error", str(error))
        return ExitCode.PREFLIGHT
    except Unreachable as error:
        report(_ME, "error", str(error))
        return ExitCode.HARDWARE
    if config.policy is not None and not process.takes_over:
        reason = process.admit_file(Path(config.policy))
        if reason is not None:
            report(_ME, "error", f"{config.policy}: refused: {reason}")
            process.finish()
            return ExitCode.CONFIGURATION
    report(_ME, "ready", " and ".join(process.endpoints))
    while not stop and not process.finished:
        if not process.turn():
            process.idle()
    while process.turn():
        pass
    process.finish()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
