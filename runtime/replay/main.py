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
from runtime.control.loop_state import decode_state, encode_state
from runtime.control.realtime import die_with_parent, leave_cpu
from runtime.exit_codes import ExitCode
from runtime.link.keys import KeyFault
from runtime.link.listening import Unreachable, listen
from runtime.log.sink import LogMissing, open_log
from runtime.policy.probation import terms_of
from runtime.record import Kind, RecordLayout
from runtime.replay.checkpoint import CheckpointError
from runtime.replay.checkpoint.upkeep import Present, Upkeep
from runtime.replay.desk import LearnerDesk
from runtime.replay.episodes import EpisodeAccounts, EpisodeFile
from runtime.replay.layout import Flag
from runtime.replay.memory import Memory
from runtime.replay.policy_desk import PolicyDesk, admission_limits
from runtime.replay.policy_watch import PolicyWatch
from runtime.replay.recovery import Point, Recovery, encode_point, recover
from runtime.replay.resynthesis import Resynthesiser
from runtime.replay.run_figures import RunFigures
from runtime.replay.telemetry import Standing, open_telemetry
from runtime.replay.tick_events import TickEvents
from runtime.replay.timing import FILE as TIMING_FILE
from runtime.replay.timing import TimingFile
from runtime.replay.transitions import TransitionBuilder
from runtime.shm.board import BOARD_SCHEMA, Board, Word
from runtime.shm.keepsake import Keepsake
from runtime.shm.ring import RingReader
from runtime.shm.segment import Segment
from runtime.shm.slot import SLOT_SCHEMA, PolicySlot
from runtime.supervise.events import EventFile
from runtime.supervise.report import report
from runtime.supervise.run_folder import FolderBusy, claim

_ME: Final = "replay"
_IDLE_MS: Final = 1
_PROGRESS_S: Final = 0.25
_CLAIM_S: Final = 20.0
"""A predecessor that hangs keeps the folder no longer than this from its successor, which then does not start."""
_FAREWELL_S: Final = 1.0
"""How long the end waits for learners that are busy, so that they hear of it; those silent for long are not awaited."""


class ReplayProcess:
    """Everything the process owns, and its turn of work."""

    def __init__(
        self,
        config: RunConfig,
        run_folder: Path,
        shm: Path,
        resynthesiser: Resynthesiser | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        rig = config.rig
        layout = RecordLayout(len(rig.sensors), len(rig.signals), len(rig.actuators))
        self._config, self._folder = config, run_folder
        board = Segment.attach(shm / "board", BOARD_SCHEMA)
        self._board, self._keepsake = Board(board), Keepsake(board)
        self._board[Word.REPLAY_PID] = os.getpid()
        self._ring = RingReader(Segment.attach(shm / "ring", layout.schema), layout)
        slot = PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA))
        self.takes_over = slot.version > 0
        """Whether a policy is at work already: another replay process was here before this one."""
        self._events = EventFile(run_folder / "events.jsonl")
        self._server = listen(f"ipc://{shm}/learner", config.link)
        self._memory = Memory(config, resynthesiser)
        self._upkeep = Upkeep(run_folder / "buffer", self._memory, config, lambda line: report(_ME, "warning", line))
        self.recovery = self._recover() if resumes and not self.takes_over else None
        """What a resumed run goes on from."""
        self._log = open_log(config, run_folder, shm.name, self._events.write, self._keepsake.take)
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
        self._watch = PolicyWatch(terms_of(config), config.rate_hz, self._events.write, self._desk.rule)
        self._timing = TimingFile(run_folder / TIMING_FILE, lockstep=config.lockstep)
        self._telemetry = open_telemetry(shm, layout, self._memory.storage, self._standing, lockstep=config.lockstep)
        if self._telemetry is not None:
            self._memory.on_errors = self._telemetry.replayed
        self._reported_s = 0.0
        self._dropped_before = 0
        self._written_at = -1
        """Episode of the checkpoint that this process began with, which need not be written again."""
        self._synced_policy = 0
        self.policy = 0
        """Id of the policy that a resumed run goes on with; 0 without one."""
        self._resume(self._upkeep.restored)
        if self.recovery is not None:
            self._go_on(self.recovery)
        self._desk.closed = max(self._desk.closed, self._closed_before())

    def _resume(self, counts: Mapping[str, int] | None) -> None:
        """Go on counting where the checkpoint was written that the memory comes from."""
        if counts is None:
            if self.takes_over:
                report(_ME, "warning", "there is no checkpoint yet: the memory begins empty")
            return
        self._desk.closed, self._desk.error_batch = counts["closed"], counts["error_batch"]
        self._desk.error_batches = counts.get("error_batches", 0)
        self._figures.resume(counts)
        self._builder.gaps = counts["gaps"]
        self._events.write("memory_restored", inserted=self._memory.storage.inserted, closed=self._desk.closed)

    def _recover(self) -> Recovery:
        try:
            return recover(
                self._folder,
                self._upkeep.restored,
                self._upkeep.note,
                lockstep=self._config.lockstep,
                warn=lambda line: report(_ME, "warning", line),
            )
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or self._folder}: {error.strerror}; the run is not resumed"
            ) from None

    def _go_on(self, recovery: Recovery) -> None:
        """Be where the run was, and tell the loop where that is."""
        counts = self._upkeep.restored
        if counts is not None:
            self._policies.resume(counts)
            self._desk.updates, self._desk.mismatches = counts["updates"], counts["mismatches"]
            self._desk.error_batch = 0  # its learner, too, is a new one
            self._dropped_before = counts["dropped"]
            self._synced_policy = counts["next_policy"] - 1
            self._written_at = recovery.start.episode if self._config.lockstep else -1
        if recovery.durations is not None:
            self._figures.restore_durations(recovery.durations)
        self._figures.follow(recovery.rows, recovery.unrecorded)
        self._desk.closed = recovery.start.episode
        self.policy = self._policies.reinstate()
        if self._keepsake.take() is None:  # else there is a loop already, and it says itself where it is
            self._keepsake.put(encode_state(recovery.start))
        self._events.write(
            "resumed",
            episode=recovery.start.episode,
            policy=self.policy,
            rows_cut=recovery.cut["rows"],
            policies_cut=recovery.cut["policies"],
            bytes_cut=recovery.cut["bytes"],
            episodes_newer_than_memory=len(recovery.unrecorded),
            checkpoint_damaged=bool(self._upkeep.damaged),
        )

    def _present(self) -> Present:
        """What goes into a checkpoint beside the memory."""
        extra = {
            "closed": self._desk.closed,
            "error_batch": self._desk.error_batch,
            "error_batches": self._desk.error_batches,
            "gaps": self._builder.gaps,
            "rows": self._rows.count,
            "dropped": self._dropped_before + self._ring.dropped,
            "updates": self._desk.updates,
            "mismatches": self._desk.mismatches,
            **self._figures.counts(),
            **self._policies.counts(),
        }
        note = encode_point(Point(decode_state(self._keepsake.take()), self._figures.durations()))
        beside = [self._folder / "episodes.csv"]
        if not self._config.lockstep:  # there the loop waits for it, and nothing relies on them
            beside.append(self._folder / "events.jsonl")
        if not self._synced_policy:  # the names of these files are new
            beside.append(self._folder)
        policies = self._folder / "policies"
        if extra["next_policy"] - 1 > self._synced_policy:
            beside += [policies / f"{n}.onnx" for n in range(self._synced_policy + 1, extra["next_policy"])]
            beside.append(policies)
            self._synced_policy = extra["next_policy"] - 1
        return Present(extra, note, beside)

    def _is_at_rest(self) -> bool:
        """Whether everything that has happened belongs to episodes that are over, with all that follows from them.

        In lockstep only such a moment can be gone on from bit for bit; in real time any will do.
        """
        loop = decode_state(self._keepsake.take())
        last = self._rows.last
        kind = "eval" if loop.evaluated else "train"
        stands = last is not None and (last.episode, last.kind) == (loop.episode, kind)
        done = self._desk.done == self._desk.closed == loop.episode
        return not self._config.lockstep or (self._accounts.whole and stands and done)

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
        if self._desk.heard_ns:
            self._board[Word.LEARNER_NS] = self._desk.heard_ns
        for key in self._server.refused_keys():
            self._events.write("learner_turned_away", key=key)
        done = self._desk.done
        if self._config.lockstep and done + 1 > self._board[Word.BARRIER] and done <= self._board[Word.CLOSED]:
            if done > self._written_at:
                self._upkeep.at_episode(done, self._present)
            self._board[Word.BARRIER] = done + 1
        now = time.monotonic()
        if not self._config.lockstep:
            self._upkeep.at_time(now, self._present)
        if now - self._reported_s > _PROGRESS_S:
            self._reported_s = now
            self._report_progress()
        if self._telemetry is not None:
            self._telemetry.turn(now)
        self._log.turn(now)
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
        self._watch.add(records)
        self._timing.add(records)
        self._log.add(records)
        if self._telemetry is not None:
            self._telemetry.add(records)
        for row in self._accounts.add(records):
            self._rows.append(row)
            self._log.episode(row)
            if row.kind == "train":
                self._desk.closed = row.episode
                self._figures.add_training(row)

    def _standing(self) -> Standing:
        score = self._figures.normalized_last20
        return Standing(
            episode=self._figures.episode,
            offered=self._memory.offered,
            dropped=self._ring.dropped,
            gaps=self._builder.gaps,
            updates=self._desk.updates,
            updates_per_s=self._desk.updates_per_s,
            normalized_last20=float("nan") if score is None else score,
            policies_offered=self._policies.offered,
            policies_admitted=self._policies.admitted,
            policies_refused=self._policies.refused,
        )

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
            policy_age_s=round(self._watch.age_s, 3),
            policy_behind=self._desk.updates_behind(self._board[Word.POLICY]),
            stored=self._memory.storage.stored,
        )

    def finish(self) -> None:
        """Tell the learners that the run is over, and write the summary."""
        rolled_back = self._board[Word.ROLLED_BACK] - 1
        told = rolled_back < 0 or self._policies.was_rolled_back(rolled_back)
        self._watch.close(None if told else rolled_back)
        self._dismiss()
        self._upkeep.close(self._present if self._is_at_rest() else None)
        self._report_progress()
        storage = self._memory.storage
        summary = {
            "episodes": self._desk.closed,
            **self._figures.summary(),
            "transitions": self._memory.offered,
            "gaps": self._builder.gaps,
            "dropped_records": self._dropped_before + self._ring.dropped,
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
                "rolled_back": self._policies.rolled_back,
                "active": self._board[Word.POLICY],
            },
            "mirror_mismatches": self._desk.mismatches,
            "learner": {
                "updates": self._desk.updates,
                "updates_per_s": self._desk.updates_per_s,
                "error_batches": self._desk.error_batches,
            },
        }
        try:
            fresh = self._folder / "summary.json.tmp"
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
            fresh.replace(self._folder / "summary.json")
            self._timing.write()
        except OSError as error:
            report(_ME, "error", f"summary.json is not written: {error.strerror}")
        if self._telemetry is not None:
            self._telemetry.close()
        self._log.close()
        self._rows.close()
        self._events.close()
        self._server.close()


def _run_id(config: RunConfig, run_folder: Path, config_text: bytes) -> str:
    """What policies call their parent run: its folder; in lockstep, where equal runs give equal policies, a digest."""
    if not config.lockstep:
        return run_folder.name
    return f"{config.rig.name}-{hashlib.blake2b(config_text, digest_size=8).hexdigest()}"


def _resumed(process: ReplayProcess, recovery: Recovery) -> str:
    """What is said of a resumed run; that nothing learned is left must not be overlooked."""
    if process.policy:
        return f"{recovery.says}, under policy {process.policy}"
    report(
        _ME,
        "warning",
        "no policy was admitted before the run ended: the learner's first one, maybe untrained, will act",
    )
    return recovery.says


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
        claim(run_folder, _CLAIM_S)
        process = ReplayProcess(config, run_folder, shm, resynthesiser, resumes="--resume" in arguments[2:])
    except (CheckpointError, FolderBusy) as error:
        report(_ME, "error", str(error))
        return ExitCode.CONFIGURATION
    except LogMissing as error:
        report(_ME, "error", str(error))
        return ExitCode.PREFLIGHT
    except KeyFault as error:
        report(_ME, "error", str(error))
        return ExitCode.PREFLIGHT
    except Unreachable as error:
        report(_ME, "error", str(error))
        return ExitCode.HARDWARE
    if config.policy is not None and not process.takes_over and not process.policy:
        reason = process.admit_file(Path(config.policy))
        if reason is not None:
            report(_ME, "error", f"{config.policy}: refused: {reason}")
            process.finish()
            return ExitCode.CONFIGURATION
    where = " and ".join(process.endpoints)
    report(_ME, "ready", where if process.recovery is None else f"{where}; {_resumed(process, process.recovery)}")
    while not stop and not process.finished:
        if not process.turn():
            process.idle()
    while process.turn():
        pass
    process.finish()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
