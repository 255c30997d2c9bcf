"""Replay process: its parts, their connections, and its turn of work."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.files import read_file
from onrig.runtime.link.server import listen
from onrig.runtime.log.sink import open_log
from onrig.runtime.memory.transitions import Resynthesiser, TransitionBuilder
from onrig.runtime.policy.probation import terms_of
from onrig.runtime.replay.accounts.figures import FILE as TIMING_FILE
from onrig.runtime.replay.accounts.figures import RunFigures, TickEvents, TimingFile
from onrig.runtime.replay.accounts.telemetry import Standing as ViewStanding
from onrig.runtime.replay.accounts.telemetry import open_telemetry
from onrig.runtime.replay.checkpoint.upkeep import Upkeep
from onrig.runtime.replay.continuity import Continuity, Standing, files_at, recovered
from onrig.runtime.replay.evidence import run_identity
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.growth import Growth
from onrig.runtime.replay.intake import Horizon, Intake, Looks, closed_before, takable
from onrig.runtime.replay.learners.admission_rate import admission_rate
from onrig.runtime.replay.learners.admission_terms import admission_limits
from onrig.runtime.replay.learners.desk import LearnerDesk, run_id
from onrig.runtime.replay.learners.policy_desk import PolicyDesk
from onrig.runtime.replay.learners.policy_watch import PolicyWatch
from onrig.runtime.replay.scoring import ring_reader
from onrig.runtime.replay.summary import FILE as SUMMARY_FILE
from onrig.runtime.replay.summary import Parts, progress, standing, summarised, write_summary
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_state.checksums import read_list, write_list
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeFile
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.run_state.report import report
from onrig.runtime.run_state.wholeness import whole_of
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.latest import MAX_POLICY_BYTES, SLOT_SCHEMA, PolicySlot, loop_state_in
from onrig.runtime.shm.segment import Segment

NAME: Final = "replay"
"""Name of the process in reports."""
_PROGRESS_S: Final = 0.25
_FAREWELL_S: Final = 5.0
"""Shutdown grace for busy learners; those silent for long are not awaited.  A remote one that is not told waits for the
rig to come back."""
_ROOM_S: Final = 5.0
"""Timeout for writing the last rows to a full disk."""
_BLOCKED_S: Final = 20.0
"""Timeout for the learner at the end of a lockstep run, between two conclusions."""


class Rewind(Exception):
    """Request to return to the checkpoint: in lockstep a new learner repeats the work of its predecessor since."""


def _warn(line: str) -> None:
    report(NAME, "warning", line)


class ReplayProcess:
    """Parts of the replay process, and its turn of work."""

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
        layout = record_layout(config)
        self._folder, self._lockstep = run_folder, config.lockstep
        board = Segment.attach(shm / "board", BOARD_SCHEMA)
        self._board, loop_state = Board(board), loop_state_in(board)
        self._board[Word.REPLAY_PID] = os.getpid()
        self._ring = ring_reader(config, Segment.attach(shm / "ring", layout.schema), layout, lambda: self.ended)
        slot = PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA))
        config_text = read_file(run_folder / "config.yaml", MAX_BYTES)
        standing = Standing(
            self._board[Word.LIFE],
            took_over=self._board[Word.REPLAY_LOOKS] > 0,
            run=run_identity(run_folder),
            config_text=config_text.decode(),
        )
        self.took_over = standing.took_over
        """Whether this process replaces another one beside the same loop."""
        self.begins = not standing.took_over
        """Whether this process starts the run from the beginning."""
        self._events = EventFile(run_folder / "events.jsonl")
        self._server = listen(f"ipc://{shm}/learner", config.link)
        self._memory = Memory(config, resynthesiser)
        upkeep = Upkeep(run_folder / "buffer", self._memory, config, _warn, self._beat)
        if config.lockstep and upkeep.restored is None:
            self.begins = True
        goes_back = config.lockstep if standing.took_over else resumes
        self.recovery = (
            recovered(run_folder, upkeep, lockstep=config.lockstep, warn=_warn, beside_loop=standing.took_over)
            if goes_back
            else None
        )
        """Recovery of a resumed or taken-over run."""
        written = {*read_list(run_folder).files, *files_at(upkeep)}
        self._log = open_log(config, run_folder, shm.name, self._events.write, loop_state.take, written)
        self._policies = PolicyDesk(
            rig,
            config.rate_hz,
            config.seed,
            admission_limits(config),
            slot,
            run_folder / "policies",
            self._events.write,
            admission_rate(config),
            lockstep=config.lockstep,
            stochastic=config.stochastic,
            signals=config.signals,
        )
        self._desk = LearnerDesk(
            self._memory,
            self._policies,
            run=standing.run,
            run_id=run_id(config, run_folder, config_text),
            config_text=config_text,
            lockstep=config.lockstep,
            event=self._events.write,
            is_gone=self._server.is_gone,
        )
        self._rows = EpisodeFile(run_folder / "episodes.csv")
        if not standing.took_over:
            self._board[Word.ROWS_BEFORE] = self._rows.count
        self._watch = PolicyWatch(terms_of(config), config.rate_hz, self._events.write, self._desk.rule)
        self._timing = TimingFile(run_folder / TIMING_FILE, lockstep=config.lockstep)
        self._telemetry = open_telemetry(shm, layout, self._memory.storage, self._standing, lockstep=config.lockstep)
        if self._telemetry is not None:
            self._memory.on_errors = self._telemetry.replayed
        self._reported_s = 0.0
        self._told_full = False
        self._parts = Parts(
            self._ring,
            loop_state,
            TransitionBuilder(rig, config.signals),
            self._memory,
            RunFigures(lockstep=config.lockstep),
            EpisodeAccounts(config.task, config.rate_hz),
            self._rows,
            self._policies,
            self._desk,
            self._watch,
        )
        self._continuity = Continuity(config, run_folder, upkeep, self._parts, self._log, self._events.write, standing)
        self.policy = self._continuity.begin(self.recovery)
        """Id of the policy that a resumed run continues with; 0 without one."""
        self._intake = Intake(
            self._parts,
            self._timing,
            self._log,
            TickEvents(self._events.write),
            self._telemetry,
            told=self._board[Word.TAKEN],
            unlogged=self._board[Word.LOGGED],
        )
        if self._continuity.context is not None:
            self._intake.log(self._continuity.context)
            self._watch.follow(self._continuity.context, told=True, ruled=True)
        self._desk.closed = max(self._desk.closed, closed_before(self._ring, self._board[Word.CLOSED]))
        self._horizon = Horizon(self._ring, lockstep=config.lockstep)
        self._growth = Growth(self._memory.storage.nbytes)
        self._opened = -1
        """Last training episode concluded by this process."""
        self._episodes = config.episodes
        self._ended_s: float | None = None
        self._looks = Looks(lockstep=config.lockstep)
        self._no_records = self._ring.peek(0)
        self._concluded_s = 0.0

    def _standing(self) -> ViewStanding:
        return standing(self._parts, dropped=self._continuity.dropped)

    def _beat(self) -> None:
        """Signal progress."""
        self._board[Word.REPLAY_LOOKS] += 1

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints for learners."""
        return self._server.endpoints

    @property
    def learner_heard(self) -> bool:
        """Whether a learner has asked anything yet."""
        return self._desk.heard_ns > 0

    def admit_file(self, path: Path) -> str | None:
        """Admit the configured initial policy; return the reason if it is refused."""
        verdict = self._policies.adopt(read_file(path, MAX_POLICY_BYTES))
        return None if verdict.accepted else f"{verdict.stage}: {verdict.reason}"

    def turn(self) -> bool:
        """Do all pending work; False if there was none.  Raises Rewind or Overgrown."""
        self._beat()
        records = self._next_records()
        if len(records):
            self._looks.took(time.monotonic())
            self._intake.add(records)
            self._ring.take(len(records))
            self._tell_if_full()
            self._board[Word.TAKEN] = max(self._ring.taken, self._intake.told)
        self._server.serve(self._desk.handle)
        for ticket, answer in self._desk.due():
            self._server.send(ticket, answer)
        if self._desk.heard_ns:
            self._board[Word.LEARNER_NS] = self._desk.heard_ns
        for key in self._server.refused_keys():
            self._events.write("learner_turned_away", key=key)
        for address, why, connections in self._server.shed():
            self._events.write("connections_ended", address=address, why=why, connections=connections)
        if self._desk.replaced:
            self._replace_learner()
        now = time.monotonic()
        self._growth.look(now)
        if self._lockstep:
            self._conclude(self._desk.done)
        else:
            self._continuity.at_time(now)
        self._horizon.advance(self._continuity.durable, self._log.logged)
        if now - self._reported_s > _PROGRESS_S:
            self._reported_s = now
            self._rows.flush()
            self._report_progress()
        if self._telemetry is not None:
            self._telemetry.turn(now)
        self._log.turn(now)
        self._tell_logged()
        return len(records) > 0

    def _tell_if_full(self) -> None:
        """Warn once where a memory that keeps everything has no room any more."""
        if self._memory.overflows and not self._told_full:
            self._told_full = True
            capacity = self._memory.storage.capacity
            _warn(f"the memory is full ({capacity} experiences) and takes no more: selection.capacity")

    def _tell_logged(self) -> None:
        if (logged := self._log.logged) is not None:
            self._board[Word.LOGGED] = max(logged, self._intake.unlogged)

    def _next_records(self) -> NDArray[np.void]:
        if not (self.ended or self._looks.due(self._ring.waiting, time.monotonic())):
            return self._no_records
        records = self._ring.peek()
        if not self._lockstep or not len(records):
            return records
        return records[: takable(records, self._desk.done)]

    def _conclude(self, done: int) -> None:
        """Lockstep: open the barrier after an episode that all have concluded, once its checkpoint is on disk."""
        self._board[Word.DONE] = done + 1
        if done <= self._opened or done > self._board[Word.CLOSED]:
            return
        self._concluded_s = time.monotonic()
        # During a repetition the loop is ahead of the episode, so its state is not the checkpoint's.
        if self._board[Word.BARRIER] <= done and self._desk.learner_kept and self._continuity.at_episode(done):
            self._desk.settle(done)
        self._opened = done
        self._board[Word.BARRIER] = max(self._board[Word.BARRIER], done + 1)

    def _replace_learner(self) -> None:
        """Lockstep: handle a new learner that replaces the one of the last episodes."""
        self._desk.replaced = False
        if not self._horizon.uncovered:
            raise Rewind
        self._desk.admit_replacement()
        self._events.write("not_reproducible", reason="a new learner joined while no checkpoint could be written")

    def idle(self) -> None:
        """Wait briefly for a request; the ring is polled."""
        self._looks.paused(heard=self._server.wait(self._looks.pause_ms(time.monotonic())))

    @property
    def finished(self) -> bool:
        """Whether the loop has ended and all its records have been read, or never will be."""
        if not self.ended:
            return False
        now_s = time.monotonic()
        self._ended_s = now_s if self._ended_s is None else self._ended_s
        if now_s - max(self._ended_s, self._concluded_s) > _BLOCKED_S:
            return True
        complete = self._lockstep and self._board[Word.CLOSED] >= self._episodes
        return self._ring.waiting == 0 and not (complete and self._desk.done < self._desk.closed)

    @property
    def ended(self) -> bool:
        """Whether the loop has ended."""
        return self._board[Word.ENDED] == 1

    def _dismiss(self) -> None:
        """Tell learners that the run is over: waiting ones at once, the others at their next request."""
        self._desk.ending = True
        limit = time.monotonic() + _FAREWELL_S
        while True:
            for ticket, answer in self._desk.due():
                self._server.send(ticket, answer)
            if not self._desk.expects_somebody or time.monotonic() > limit:
                return
            self._server.wait(20)
            self._server.serve(self._desk.handle)

    def _report_progress(self) -> None:
        self._events.look()
        told = progress(self._parts, active_policy=self._board[Word.POLICY], policy_age_s=self._watch.age_s)
        report(NAME, "progress", "", **told)

    def finish(self) -> None:
        """Tell the learners that the run is over, and write the summary."""
        rolled_back = self._board[Word.ROLLED_BACK] - 1
        told = rolled_back < 0 or self._policies.was_rolled_back(rolled_back)
        self._watch.close(None if told else rolled_back)
        self._dismiss()
        self._await_room()
        self._continuity.close()
        self._report_progress()
        self._log.close()
        active = self._board[Word.POLICY]
        summary = summarised(self._parts, dropped=self._continuity.dropped, active_policy=active)
        account = self._continuity.account(self._board[Word.ROWS_BEFORE] + self._board[Word.ROWS])
        listed = read_list(self._folder)
        files = {**listed.files, **self._continuity.files()}
        summary["whole"] = whole_of(account, self._folder, files=files, damaged=listed.damaged)
        try:
            write_summary(self._folder, summary)
            self._timing.write()
            write_list(self._folder, files, listed.damaged)
        except OSError as error:
            report(NAME, "error", f"{SUMMARY_FILE} is not written: {error.strerror}")
        self._close()

    def _await_room(self) -> None:
        """Wait a limited time for a full disk to accept pending rows."""
        limit = time.monotonic() + _ROOM_S
        while not self._rows.flush() and time.monotonic() < limit:
            self._beat()
            self._server.wait(100)

    def abandon(self) -> None:
        """Leave all state as it is for a successor."""
        self._continuity.abandon()
        self._log.close()
        self._tell_logged()
        self._close()

    def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
        self._rows.close()
        self._events.close()
        self._server.close()
