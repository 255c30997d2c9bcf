"""Replay process: its parts, their connections, and its work cycle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.files import read_file
from onrig.runtime.link.server import listen
from onrig.runtime.log.sink import open_log
from onrig.runtime.memory.transitions import Resynthesiser, TransitionBuilder
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.replay.accounts.figures import FILE as TIMING_FILE
from onrig.runtime.replay.accounts.figures import RunFigures, TickEvents, TimingFile
from onrig.runtime.replay.accounts.telemetry import ProcessFigures, open_telemetry
from onrig.runtime.replay.beginning import SharedMemory, attach, begin
from onrig.runtime.replay.continuity import Continuity
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.growth import Growth
from onrig.runtime.replay.intake import Intake, last_complete_episode
from onrig.runtime.replay.learners.admission_rate import admission_rate
from onrig.runtime.replay.learners.admission_terms import examination
from onrig.runtime.replay.learners.learner_requests import LearnerRequests, RunIdentity, run_id
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_folder import policy_folder
from onrig.runtime.replay.learners.policy_watch import PolicyWatch
from onrig.runtime.replay.learners.succession import succession
from onrig.runtime.replay.pace import make_pace
from onrig.runtime.replay.promise_watch import StepCheck, watch_promise
from onrig.runtime.replay.seeds import read_seeds
from onrig.runtime.replay.summary import FILE as SUMMARY_FILE
from onrig.runtime.replay.summary import Parts, process_figures, progress, summary_content, write_summary
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_state.checksums import read_list, write_list
from onrig.runtime.run_state.completeness import assess
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeFile
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.latest import MAX_POLICY_BYTES

NAME: Final = "replay"
"""Name of the process in reports."""
_PROGRESS_INTERVAL_S: Final = 0.25
_NOTIFY_TIMEOUT_S: Final = 5.0
"""Grace period for busy learners at shutdown; learners that have been silent for a long time are not waited for.  A
remote learner that is not notified keeps trying to reconnect."""
_FULL_DISK_TIMEOUT_S: Final = 5.0
"""Timeout for writing the last rows to a full disk."""
_LEARNER_TIMEOUT_S: Final = 20.0
"""Longest wait for the learner to conclude another episode after the loop of a lockstep run has ended."""


class RestartFromCheckpoint(Exception):
    """Raised to return to the checkpoint, from where a new learner repeats its predecessor's work (lockstep)."""


def _warn(line: str) -> None:
    report(NAME, "warning", line)


class ReplayProcess:
    """The replay process: connects its parts, and runs its work cycle."""

    def __init__(
        self,
        config: RunConfig,
        run_folder: Path,
        shm: Path,
        resynthesiser: Resynthesiser | None = None,
        step_check: StepCheck | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """``step_check`` compares the rig's steps with the plants that its promise covers."""
        layout = record_layout(config)
        shared_memory = attach(config, shm, layout)
        self._folder, self._board = run_folder, shared_memory.board
        config_text = read_file(run_folder / "config.yaml", MAX_BYTES)
        self._events = EventFile(run_folder / "events.jsonl")
        self._server = listen(f"ipc://{shm}/learner", config.link)
        memory = Memory(config, resynthesiser)
        text = config_text.decode()
        start_state = begin(
            config, run_folder, self._board, memory, _warn, self._signal_progress, config_text=text, resumes=resumes
        )
        if start_state.upkeep.restored is None and config.selection.seeds is not None:
            memory.seed(read_seeds(run_folder))
        self.took_over: Final = start_state.start.took_over
        """Whether this process replaces an earlier one while the loop is running."""
        self.starts_run: Final = start_state.is_first
        """Whether this process starts the run from the beginning."""
        self.recovery: Final = start_state.recovery
        """Recovery of a run that is resumed or, in lockstep, taken over; None otherwise."""
        earlier_files = {*read_list(run_folder).files, *start_state.files}
        self._log = open_log(
            config, run_folder, shm.name, self._events.write, shared_memory.loop_state.take, earlier_files
        )
        identity = RunIdentity(start_state.start.run, run_id(config, run_folder, config_text), config_text)
        self._parts = self._assemble(config, shared_memory, memory, identity, step_check)
        if not self.took_over:
            self._board[Word.ROWS_BEFORE] = self._parts.rows.count
        self._telemetry = open_telemetry(shm, layout, memory.storage, self._process_figures, lockstep=config.lockstep)
        if self._telemetry is not None:
            memory.on_errors = self._telemetry.on_replay
        self._continuity = Continuity(config, run_folder, start_state, self._parts, self._log, self._events.write)
        self.policy: Final = self._continuity.begin(self.recovery)
        """Id of the policy that a resumed run continues with; 0 if it has none."""
        self._timing = TimingFile(run_folder / TIMING_FILE, lockstep=config.lockstep)
        self._intake = self._build_intake()
        self._pace = make_pace(config, shared_memory.ring, self._continuity, self._parts.requests, self._board)
        self._growth = Growth(memory.storage.nbytes)
        self._no_records = shared_memory.ring.peek(0)
        self._reported_s = 0.0
        self._has_warned_full = False
        self._ended_s: float | None = None

    def _assemble(
        self,
        config: RunConfig,
        shared_memory: SharedMemory,
        memory: Memory,
        identity: RunIdentity,
        step_check: StepCheck | None,
    ) -> Parts:
        """Build the parts that process records."""
        event = self._events.write
        policies = PolicyAdmission(
            examination(config),
            shared_memory.slot,
            policy_folder(config, self._folder / "policies"),
            event,
            admission_rate(config),
        )
        requests = LearnerRequests(memory, policies, identity, succession(config), event, self._server.is_disconnected)
        return Parts(
            shared_memory.ring,
            shared_memory.loop_state,
            TransitionBuilder(config.rig, config.signals),
            memory,
            RunFigures(lockstep=config.lockstep, trainer=config.actor is not UNSET),
            EpisodeAccounts(config.task, config.rate_hz, config.rig),
            EpisodeFile(self._folder / "episodes.csv"),
            policies,
            requests,
            PolicyWatch(probation_limits(config), config.rate_hz, event, requests.add_ruling),
            watch_promise(config, step_check, event, self._board),
        )

    def _build_intake(self) -> Intake:
        """Build an intake that continues where the previous process stopped."""
        board, parts, context = self._board, self._parts, self._continuity.context
        intake = Intake(
            parts,
            self._timing,
            self._log,
            TickEvents(self._events.write),
            self._telemetry,
            first_unreported=board[Word.FIRST_UNREPORTED],
            first_unlogged=board[Word.FIRST_UNLOGGED],
        )
        if context is not None:
            intake.log(context)
            parts.watch.add_earlier_records(context, were_reported=True, were_applied=True)
        feed = parts.requests.feed
        feed.last_closed_episode = max(feed.last_closed_episode, last_complete_episode(parts.ring, board[Word.CLOSED]))
        return intake

    def _process_figures(self) -> ProcessFigures:
        return process_figures(self._parts, dropped=self._continuity.n_dropped)

    def _signal_progress(self) -> None:
        self._board[Word.REPLAY_HEARTBEATS] += 1

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses at which learners connect."""
        return self._server.endpoints

    @property
    def has_heard_learner(self) -> bool:
        """Whether a learner has sent any request yet."""
        return self._parts.requests.peers.last_message_ns > 0

    def admit_file(self, path: Path) -> str | None:
        """Admit the configured initial policy; return the reason if it is refused."""
        verdict = self._parts.policies.adopt(read_file(path, MAX_POLICY_BYTES))
        return None if verdict.accepted else f"{verdict.stage}: {verdict.reason}"

    def run_once(self) -> bool:
        """Do all pending work; return whether records were read.  Raises RestartFromCheckpoint or MemoryLimitError."""
        self._signal_progress()
        records = self._next_records()
        if len(records):
            self._pace.note_read(time.monotonic())
            self._intake.add(records)
            if self._parts.promise is not None:
                self._parts.promise.add(records)
            self._parts.ring.take(len(records))
            self._warn_if_full()
            self._board[Word.FIRST_UNREPORTED] = max(self._parts.ring.n_taken, self._intake.first_unreported)
        self._serve()
        if self._parts.requests.succession.is_replacement_requested:
            self._replace_learner()
        now_s = time.monotonic()
        self._growth.check(now_s)
        self._pace.conclude(now_s)
        self._pace.release(self._continuity.first_unsaved, self._log.first_unlogged)
        if now_s - self._reported_s > _PROGRESS_INTERVAL_S:
            self._reported_s = now_s
            self._parts.rows.flush()
            self._report_progress()
        if self._telemetry is not None:
            self._telemetry.poll(now_s)
        self._log.poll(now_s)
        self._publish_logged()
        return len(records) > 0

    def _next_records(self) -> NDArray[np.void]:
        ring = self._parts.ring
        if not (self.has_loop_ended or self._pace.is_reading_due(ring.n_waiting, time.monotonic())):
            return self._no_records
        records = ring.peek()
        return records[: self._pace.readable(records)]

    def _warn_if_full(self) -> None:
        """Warn once if a memory that should keep everything is full and rejects experiences."""
        memory = self._parts.memory
        if memory.overflows and not self._has_warned_full:
            self._has_warned_full = True
            _warn(
                f"the memory is full ({memory.storage.capacity} experiences) and rejects further ones: "
                "raise selection.capacity"
            )

    def _publish_logged(self) -> None:
        if (first_unlogged := self._log.first_unlogged) is not None:
            self._board[Word.FIRST_UNLOGGED] = max(first_unlogged, self._intake.first_unlogged)

    def _serve(self) -> None:
        """Answer the learners' requests, and report refused connections."""
        requests = self._parts.requests
        self._server.serve(requests.handle)
        for ticket, reply in requests.feed.take_due_replies():
            self._server.send(ticket, reply)
        if requests.peers.last_message_ns:
            self._board[Word.LEARNER_NS] = requests.peers.last_message_ns
        self._board[Word.FEEDBACK_BATCHES] = requests.feedback.batches
        for key in self._server.take_refused_keys():
            self._events.write("learner_turned_away", key=key)
        for address, reason, connections in self._server.take_shed_connections():
            self._events.write("connections_ended", address=address, why=reason, connections=connections)

    def _replace_learner(self) -> None:
        """Make way for a new learner that replaces the previous one (lockstep).

        Raises RestartFromCheckpoint, unless records have left the ring before a checkpoint covered them.  In that case
        the new learner continues from the current state, and the run is no longer reproducible.
        """
        if not self._pace.n_uncovered:
            raise RestartFromCheckpoint
        self._parts.requests.admit_replacement()
        self._events.write("not_reproducible", reason="a new learner joined while no checkpoint could be written")

    def idle(self) -> None:
        """Wait briefly for a request before the ring is polled again."""
        self._pace.note_pause(is_requested=self._server.wait(self._pace.pause_ms(time.monotonic())))

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def has_loop_ended(self) -> bool:
        """Whether the loop has ended."""
        return self._board[Word.ENDED] == 1

    @property
    def is_finished(self) -> bool:
        """Whether the loop has ended, and either its records are read and its learner is done, or a timeout expired."""
        if not self.has_loop_ended:
            return False
        now_s = time.monotonic()
        self._ended_s = now_s if self._ended_s is None else self._ended_s
        if now_s - max(self._ended_s, self._pace.concluded_s) > _LEARNER_TIMEOUT_S:
            return True
        return self._parts.ring.n_waiting == 0 and not self._pace.awaits_learner

    def _notify_learners(self) -> None:
        """Notify learners that the run is over: waiting ones at once, the others at their next request."""
        requests = self._parts.requests
        requests.feed.is_ending = True
        deadline_s = time.monotonic() + _NOTIFY_TIMEOUT_S
        while True:
            for ticket, reply in requests.feed.take_due_replies():
                self._server.send(ticket, reply)
            if not requests.peers.has_recent_learner or time.monotonic() > deadline_s:
                return
            self._server.wait(20)
            self._server.serve(requests.handle)

    def _report_progress(self) -> None:
        self._events.poll()
        figures = progress(self._parts, active_policy=self._board[Word.POLICY], policy_age_s=self._parts.watch.age_s)
        report(NAME, "progress", "", **figures)

    def finish(self) -> None:
        """Notify the learners that the run is over, and write the summary."""
        rolled_back = self._board[Word.ROLLED_BACK] - 1
        is_recorded = rolled_back < 0 or self._parts.policies.was_rolled_back(rolled_back)
        self._parts.watch.close(None if is_recorded else rolled_back)
        self._notify_learners()
        self._await_disk_space()
        self._continuity.close()
        self._report_progress()
        self._log.close()
        active_policy = self._board[Word.POLICY]
        withdrawal_entry = {"promise_withdrawn": True} if self._board[Word.PROMISE_WITHDRAWN] else {}
        summary = withdrawal_entry | summary_content(
            self._parts, dropped=self._continuity.n_dropped, active_policy=active_policy
        )
        account = self._continuity.account(self._board[Word.ROWS_BEFORE] + self._board[Word.ROWS])
        file_list = read_list(self._folder)
        files = {**file_list.files, **self._continuity.files()}
        summary["whole"] = assess(account, self._folder, files=files, damaged=file_list.damaged)
        try:
            write_summary(self._folder, summary)
            self._timing.write()
            write_list(self._folder, files, file_list.damaged)
        except OSError as error:
            report(NAME, "error", f"cannot write {SUMMARY_FILE}: {error.strerror}")
        self._close()

    def _await_disk_space(self) -> None:
        """Wait a limited time for a full disk to accept pending rows."""
        deadline_s = time.monotonic() + _FULL_DISK_TIMEOUT_S
        while not self._parts.rows.flush() and time.monotonic() < deadline_s:
            self._signal_progress()
            self._server.wait(100)

    def abandon(self) -> None:
        """Stop, leaving the run's state as it is for a successor to continue from."""
        self._continuity.abandon()
        self._log.close()
        self._publish_logged()
        self._close()

    def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()
        self._parts.rows.close()
        self._events.close()
        self._server.close()
