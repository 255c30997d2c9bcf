"""Runs a soak: keeps rig and learner going, brings the faults about when they are due, and keeps the books."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.faultlab.gauges import Gauges
from onrig.tools.faultlab.ledger import AS_ASKED, Beside, findings
from onrig.tools.faultlab.run_folder import left_by
from onrig.tools.faultlab.soak.bring import PATIENCE_S, Course, course
from onrig.tools.faultlab.soak.ledger import Happening, Ledger, Life
from onrig.tools.faultlab.soak.life import LifeWatch
from onrig.tools.faultlab.soak.mirror import Watcher
from onrig.tools.faultlab.soak.plan import NATURES, RESTARTED, Fault
from onrig.tools.faultlab.soak.rig import CHECKPOINT_S, SoakRig

_LOOK_S: Final = 0.02
_SAMPLE_S: Final = 1.0
_START_S: Final = 90.0
_GONE_S: Final = 20.0
"""How long what a killed supervisor leaves behind may take to end by itself."""
_SETTLE_S: Final = 30.0
_END_S: Final = 60.0
_EXPLAINED_S: Final = 15.0
"""An end of the rig so long after a fault that may end it still is that fault's."""
_KILL_COSTS_S: Final = 2 * CHECKPOINT_S + 4.0
"""What a kill may cost: the checkpoint that is being written, the one before it, and seconds of a busy disk."""


class NotUp(Exception):
    """The rig does not come up; says where to look."""


class Soak:
    """One soak; see ``onrig.tools.faultlab.soak.bring`` for what it shows to the faults."""

    def __init__(self, rig: SoakRig, watcher: Watcher, faults: tuple[Fault, ...], length_s: float) -> None:
        self.rig, self._watcher, self._length_s = rig, watcher, length_s
        self._faults = list(faults)
        self.ledger = Ledger(planned=len(faults))
        self.ledger.durable_records = round(_KILL_COSTS_S * rig.config.rate_hz)
        self.gauges = Gauges()
        self._watch: LifeWatch | None = None
        self._names: list[tuple[float, str]] = []
        self._underway: list[tuple[Happening, Course, float]] = []
        self._began_s = self._sampled_s = time.monotonic()
        self._decided_s = 0.0
        self._seen_running_s = time.monotonic()
        self.counts_from_s = 0.0
        """When the length began to count, since the gauges' clock did."""

    # -- what the faults see -----------------------------------------------------------------------------------------

    @property
    def life_number(self) -> int:
        """Of the life that is running, or the last one."""
        return len(self.ledger.lives)

    @property
    def running(self) -> bool:
        """Whether the rig's supervisor is there."""
        return self.rig.run_pid is not None

    @property
    def ticks(self) -> int:
        """Ticks of this life."""
        return 0 if self._watch is None else self._watch.ticks

    @property
    def at_work(self) -> bool:
        """Whether the loop is in an episode."""
        return self._watch is not None and self._watch.at_work

    @property
    def mirror_standing(self) -> tuple[float, int]:
        """When the watching mirror heard last, and how many writes it is behind."""
        return self._watcher.standing

    @property
    def learner_at_work_s(self) -> float:
        """When the rig last decided on a policy."""
        now_s = 0.0 if self._watch is None else self._watch.events.decided_s
        return max(self._decided_s, now_s)

    def names_since(self, at_s: float) -> list[str]:
        """How faults were told of since then."""
        here = [] if self._watch is None else self._watch.events.names
        return [name for told_s, name in (*self._names, *here) if told_s >= at_s]

    # -- the soak ----------------------------------------------------------------------------------------------------

    def run(self, say: Callable[[float, str], None]) -> None:
        """Soak to the end; ``say`` hears how much of the length is over, and what goes on.  Raises NotUp."""
        self._new_life()
        self.rig.start_learner()
        while not self.at_work or self.learner_at_work_s == 0.0:  # what is still starting is no subject for a fault
            self._turn()
            if time.monotonic() - self._began_s > _START_S:
                raise NotUp(f"rig and learner did not come to work together; see the outputs in {self.rig.folder}")
        self.counts_from_s = time.monotonic() - self._began_s
        now_s = 0.0
        while now_s < self._length_s:
            turned_s = time.monotonic()
            self._turn()
            if self._is_up():  # only the time counts in which there is a rig for faults to happen to
                now_s += time.monotonic() - turned_s
            if self._faults and now_s >= self._faults[0].at_s and self._is_up():
                self._bring(self._faults.pop(0))
            say(now_s, self._standing())
        while self._underway or self._faults:
            if self._faults and not self._underway and self._is_up():
                self._bring(self._faults.pop(0))
            self._turn()
            say(self._length_s, f"waiting for {', '.join(h.kind for h, _, _ in self._underway)} to be over")
        settled_s = time.monotonic() + _SETTLE_S
        since_s = time.monotonic()
        while time.monotonic() < settled_s and not (
            self.learner_at_work_s > since_s and self._watcher.standing[1] == 0
        ):
            self._turn()
            say(self._length_s, "waiting for learner and mirrors to be up to date")
        self._end()

    def _standing(self) -> str:
        books = self.ledger
        open_ = len(self._underway)
        return (
            f"run {self.life_number}, {self.ticks} ticks, {len(books.happenings)} of {books.planned} faults"
            f"{f' ({open_} under way)' if open_ else ''}, {self._watcher.applied} writes mirrored, "
            f"{self._watcher.mismatches} mismatches"
        )

    def _is_up(self) -> bool:
        """Whether a fault meets a rig at work; one that ends the run is waited for."""
        return self.running and self.at_work and not any(NATURES[h.kind].ends_run for h, _, _ in self._underway)

    def _bring(self, fault: Fault) -> None:
        now_s = time.monotonic() - self._began_s - self.counts_from_s
        happening = Happening(fault.kind, fault.at_s, round(now_s, 3), fault.lasts_s, self.life_number)
        self.ledger.happenings.append(happening)
        self._underway.append((happening, course(self, fault, happening), time.monotonic()))

    def _turn(self) -> None:
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            self.gauges.sample(now_s - self._began_s, self.rig.processes())
        pid = self.rig.run_pid
        if self._watch is not None:
            if pid is not None:
                self._watch.attach(pid)
            self._watch.look()
        self._step_faults(now_s)
        if self.rig.run_pid is None and (self.rig.run_gone or now_s - self._seen_running_s > _GONE_S):
            self._conclude()
            self._new_life()
        elif pid is not None:
            self._seen_running_s = now_s
        if self.rig.learner_starts and self.rig.learner_pid is None:
            self.rig.start_learner()
        time.sleep(_LOOK_S)

    def _step_faults(self, now_s: float) -> None:
        for entry in tuple(self._underway):
            happening, steps, began_s = entry
            if next(steps, self) is self:
                self._underway.remove(entry)
            elif now_s - began_s > PATIENCE_S + happening.lasts_s:
                steps.close()
                self._underway.remove(entry)

    # -- lives -------------------------------------------------------------------------------------------------------

    def _new_life(self) -> None:
        # A run that was killed before it kept anything cannot be resumed, and says so by its exit code.
        refused = bool(self.ledger.lives) and self.ledger.lives[-1].exit_code == ExitCode.CONFIGURATION
        resumed = bool(self.ledger.lives) and not refused
        life = Life(len(self.ledger.lives) + 1)
        self.rig.start_life(resume=resumed)
        self.ledger.lives.append(life)
        self._watch = LifeWatch(life, self.rig.config, self.rig.run_folder, resumed=resumed)
        self._watcher.folder = self.rig.run_folder

    def _conclude(self) -> None:
        """Close the books of a life that has ended, and say which fault explains its end."""
        watch, code = self._watch, self.rig.run_code
        if watch is None:
            return
        life = watch.life
        watch.conclude(code)
        life.replay_kills = sum(name == RESTARTED for _, name in watch.events.names)
        self._names += watch.events.names
        self._decided_s = max(self._decided_s, watch.events.decided_s)
        self._explain_end(life, code)
        self._examine(life, code)
        self._watch = None
        watch.close()
        if life.written == 0 and sum(one.written == 0 for one in self.ledger.lives) > 3:
            raise NotUp(f"the rig does not come up any more; see {self.rig.folder / 'run.out'}")

    def _examine(self, life: Life, code: int | None) -> None:
        """What is missing on disk and was not told."""
        left = left_by(self.rig.run_folder, self.rig.config)
        found = findings(left, self.rig.config, Beside(code, resumed=life.resumed))
        self.ledger.untold += [f"run {life.number}: {line}" for line in found]

    def _explain_end(self, life: Life, code: int | None) -> None:
        now_s = time.monotonic()
        recent = [h for h, _, _ in self._underway]
        recent += [
            h for h in self.ledger.happenings if now_s - self._began_s - self.counts_from_s - h.at_s < _EXPLAINED_S
        ]
        for happening in reversed(recent):
            nature = NATURES[happening.kind]
            if nature.ends_run or nature.may_end_run:
                happening.ended_run, happening.exit_code = True, code
                return
        self.ledger.unexpected_ends.append(f"run {life.number} ended with code {code}")

    def _end(self) -> None:
        """End the rig as a person would, let the mirrors hear of it, and close the books."""
        self.rig.interrupt()
        limit_s = time.monotonic() + _END_S
        while self.rig.run_pid is not None and time.monotonic() < limit_s:
            if self._watch is not None:
                self._watch.look()
            time.sleep(_LOOK_S)
        code = self.rig.run_code
        watch = self._watch
        if watch is not None:
            watch.conclude(code)
            life = watch.life
            life.replay_kills = sum(name == RESTARTED for _, name in watch.events.names)
            seen = self._watcher.seen
            if life.told.kept == seen.inserted:
                life.final_mirrors["watching mirror"] = seen.digest
            self.rig.await_learner(_END_S)
            for digest in self.rig.learner_digests():
                life.final_mirrors["learner"] = digest
            self._names += watch.events.names
            self._examine(life, code)
            watch.close()
        if code not in AS_ASKED:
            self.ledger.unexpected_ends.append(f"the last run ended with code {code} when it was interrupted")
        books, mirror = self.ledger, self._watcher
        books.mirrored, books.learner_starts = mirror.applied, self.rig.learner_starts
        books.compared, books.compared_whole, books.mismatches = mirror.compared, mirror.whole, mirror.mismatches
        for role in self.gauges.roles:
            for into, slope in (
                (books.memory, self.gauges.memory(role)),
                (books.descriptors, self.gauges.open_descriptors(role)),
            ):
                if slope is not None:
                    into[role] = slope
