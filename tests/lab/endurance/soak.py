"""A soak: keeps rig and learner running, injects faults on schedule, and keeps the ledger."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from tests.lab.endurance.injection import PATIENCE_S, Course, course
from tests.lab.endurance.observers import LifeWatch, Scene
from tests.lab.endurance.schedule import NATURES, Fault
from tests.lab.endurance.soak_rig import SoakRig
from tests.lab.rig.audit import AS_ASKED, Observed, WatchingMirror, findings
from tests.lab.rig.balance import Gauges, Happening, Ledger, Life
from tests.lab.rig.rig import CHECKPOINT_S
from tests.lab.rig.run_folder import left_by

_LOOK_S: Final = 0.02
_SAMPLE_S: Final = 1.0
_START_S: Final = 90.0
_GONE_S: Final = 20.0
"""How long the children of a killed supervisor may take to end by themselves."""
_SETTLE_S: Final = 30.0
_END_S: Final = 60.0
_EXPLAINED_S: Final = 15.0
"""Time for which a fault that may end the rig explains an end."""
_KILL_COSTS_S: Final = 2 * CHECKPOINT_S + 4.0
"""What a kill may cost: the checkpoint that is being written, the one before it, and seconds of a busy disk."""


class NotUp(Exception):
    """The rig does not come up; says where to look."""


class Soak:
    """One soak."""

    def __init__(self, rig: SoakRig, mirror: WatchingMirror, faults: tuple[Fault, ...], length_s: float) -> None:
        self.rig, self._mirror, self._length_s = rig, mirror, length_s
        self._faults = list(faults)
        self.ledger = Ledger(planned=len(faults), durable_records=round(_KILL_COSTS_S * rig.config.rate_hz))
        self.gauges = Gauges()
        self._scene = Scene(rig, mirror)
        self._underway: list[tuple[Happening, Course, float]] = []
        self._began_s = self._sampled_s = self._seen_running_s = time.monotonic()
        self.counts_from_s = 0.0
        """When the length began to count, on the clock of the gauges."""

    def run(self, say: Callable[[float, str], None]) -> None:
        """Run the soak; ``say`` receives the elapsed seconds and the current activity.  Raises NotUp."""
        scene = self._scene
        self._new_life()
        self.rig.start_learner()
        while not scene.at_work or scene.learner_at_work_s == 0.0:  # no faults while anything is still starting
            self._turn()
            if time.monotonic() - self._began_s > _START_S:
                raise NotUp(f"rig and learner did not start to work together; see the outputs in {self.rig.folder}")
        self.counts_from_s = time.monotonic() - self._began_s
        now_s = 0.0
        while now_s < self._length_s:
            turned_s = time.monotonic()
            self._turn()
            if self._is_up():  # only time with a running rig counts
                now_s += time.monotonic() - turned_s
            if self._faults and now_s >= self._faults[0].at_s and self._is_up():
                self._inject(self._faults.pop(0))
            say(now_s, self._standing())
        while self._underway or self._faults:
            if self._faults and not self._underway and self._is_up():
                self._inject(self._faults.pop(0))
            self._turn()
            say(self._length_s, f"waiting for {', '.join(h.kind for h, _, _ in self._underway)} to be over")
        since_s = time.monotonic()
        while time.monotonic() < since_s + _SETTLE_S and not (
            scene.learner_at_work_s > since_s and self._mirror.standing[1] == 0
        ):
            self._turn()
            say(self._length_s, "waiting for learner and mirrors to be up to date")
        self._end()

    def _standing(self) -> str:
        books = self.ledger
        open_ = len(self._underway)
        return (
            f"run {self._scene.life_number}, {self._scene.ticks} ticks, {len(books.happenings)} of {books.planned} "
            f"faults{f' ({open_} under way)' if open_ else ''}, {self._mirror.applied} writes mirrored, "
            f"{self._mirror.mismatches} mismatches"
        )

    def _is_up(self) -> bool:
        """Whether a fault meets a rig at work; none is injected while one that ends the run is under way."""
        ending = any(NATURES[h.kind].ends_run for h, _, _ in self._underway)
        return self.rig.running and self._scene.at_work and not ending

    def _inject(self, fault: Fault) -> None:
        now_s = time.monotonic() - self._began_s - self.counts_from_s
        happening = Happening(fault.kind, fault.at_s, round(now_s, 3), fault.lasts_s, self._scene.life_number)
        self.ledger.happenings.append(happening)
        self._underway.append((happening, course(self._scene, fault, happening), time.monotonic()))

    def _turn(self) -> None:
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            self.gauges.sample(now_s - self._began_s, self.rig.processes())
        running = self.rig.running
        if self._scene.watch is not None:
            self._scene.watch.look()
        self._step_faults(now_s)
        if not self.rig.running and (self.rig.run_gone or now_s - self._seen_running_s > _GONE_S):
            self._conclude()
            self._new_life()
        elif running:
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
        lives = self.ledger.lives
        resumed = bool(lives) and lives[-1].exit_code != ExitCode.CONFIGURATION
        lives.append(Life(len(lives) + 1, resumed=resumed))
        self._scene.follow(lives[-1], self.rig.next_run(resume=resumed))

    def _conclude(self) -> None:
        """Close the books of a life that has ended, and find the fault that explains its end."""
        watch, code = self._scene.watch, self.rig.run_code
        if watch is None:
            return
        self._audit(watch, code)
        self._explain_end(watch.life, code)
        self._scene.leave()
        if watch.life.written == 0 and sum(one.written == 0 for one in self.ledger.lives) > 3:
            raise NotUp(f"the rig does not come up any more; see {self.rig.folder / 'run.out'}")

    def _audit(self, watch: LifeWatch, code: int | None) -> None:
        """Add the figures that a process reported, and the losses that it could not report."""
        life, config = watch.life, self.rig.config
        left = left_by(self.rig.run_folder, config)
        watch.conclude(code, left)
        found = findings(left, config, Observed(code, resumed=life.resumed))
        self.ledger.untold += [f"run {life.number}: {line}" for line in found]

    def _explain_end(self, life: Life, code: int | None) -> None:
        now_s = time.monotonic() - self._began_s - self.counts_from_s
        recent = [h for h, _, _ in self._underway]
        recent += [h for h in self.ledger.happenings if now_s - h.at_s < _EXPLAINED_S]
        for happening in reversed(recent):
            nature = NATURES[happening.kind]
            if nature.ends_run or nature.may_end_run:
                happening.ended_run, happening.exit_code = True, code
                return
        self.ledger.unexpected_ends.append(f"run {life.number} ended with code {code}")

    def _end(self) -> None:
        """End the rig as a user would, notify the mirrors, and close the ledger."""
        books, mirror, watch = self.ledger, self._mirror, self._scene.watch
        self.rig.run.stop(signal.SIGINT)
        limit_s = time.monotonic() + _END_S
        while self.rig.running and time.monotonic() < limit_s:
            if watch is not None:
                watch.look()
            time.sleep(_LOOK_S)
        code = self.rig.run_code
        if watch is not None:
            self._audit(watch, code)
            life, seen = watch.life, mirror.seen
            if life.told.kept == seen.inserted:
                life.final_mirrors["watching mirror"] = seen.digest
            digest = self.rig.final_digest(_END_S)
            if digest is not None:
                life.final_mirrors["learner"] = digest
            self._scene.leave()
        if code not in AS_ASKED:
            books.unexpected_ends.append(f"the last run ended with code {code} when it was interrupted")
        books.mirrored, books.learner_starts = mirror.applied, self.rig.learner_starts
        books.compared, books.compared_whole, books.mismatches = mirror.compared, mirror.whole, mirror.mismatches
        memory = {role: self.gauges.memory(role) for role in self.gauges.roles}
        descriptors = {role: self.gauges.open_descriptors(role) for role in self.gauges.roles}
        books.memory = {role: slope for role, slope in memory.items() if slope is not None}
        books.descriptors = {role: slope for role, slope in descriptors.items() if slope is not None}
