"""A soak: keeps rig and learner running, injects faults on schedule, and keeps the ledger."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from tests.lab.endurance.injection import PATIENCE_S, Steps, inject_fault
from tests.lab.endurance.observers import LifeWatch, Scene
from tests.lab.endurance.schedule import NATURES, Fault
from tests.lab.endurance.soak_rig import SoakRig
from tests.lab.rig.audit import ON_REQUEST, Observed, WatchingMirror, findings
from tests.lab.rig.balance import FaultRecord, Gauges, Ledger, Lifetime
from tests.lab.rig.rig import CHECKPOINT_S
from tests.lab.rig.run_folder import read_folder

_POLL_S: Final = 0.02
_SAMPLE_S: Final = 1.0
_START_S: Final = 90.0
_GONE_S: Final = 20.0
"""Time limit for the children of a killed supervisor to end."""
_SETTLE_S: Final = 30.0
_END_S: Final = 60.0
_EXPLAINED_S: Final = 15.0
"""Time after a fault within which it explains an end of the rig."""
_KILL_COSTS_S: Final = 2 * CHECKPOINT_S + 4.0
"""Maximum loss in a kill: two checkpoint intervals, plus seconds of a busy disk."""


class RigNotStarted(Exception):
    """The rig did not start; the message names the outputs."""


class Soak:
    """One soak."""

    def __init__(self, rig: SoakRig, mirror: WatchingMirror, faults: tuple[Fault, ...], length_s: float) -> None:
        self.rig, self._mirror, self._length_s = rig, mirror, length_s
        self._faults = list(faults)
        self.ledger = Ledger(planned=len(faults), durable_records=round(_KILL_COSTS_S * rig.config.rate_hz))
        self.gauges = Gauges()
        self._scene = Scene(rig, mirror)
        self._active: list[tuple[FaultRecord, Steps, float]] = []
        self._start_s = self._sampled_s = self._seen_running_s = time.monotonic()
        self.counts_from_s = 0.0
        """Start of the soak, on the clock of the gauges."""

    def run(self, report_progress: Callable[[float, str], None]) -> None:
        """Run the soak; ``report_progress`` receives elapsed seconds and current activity.  Raises RigNotStarted."""
        scene = self._scene
        self._start_lifetime()
        self.rig.start_learner()
        while not scene.at_work or scene.learner_at_work_s == 0.0:  # no faults while anything is still starting
            self._step_all()
            if time.monotonic() - self._start_s > _START_S:
                raise RigNotStarted(f"rig and learner did not start; see the outputs in {self.rig.folder}")
        self.counts_from_s = time.monotonic() - self._start_s
        now_s = 0.0
        while now_s < self._length_s:
            step_start_s = time.monotonic()
            self._step_all()
            if self._is_up():  # only time with a running rig counts
                now_s += time.monotonic() - step_start_s
            if self._faults and now_s >= self._faults[0].at_s and self._is_up():
                self._inject(self._faults.pop(0))
            report_progress(now_s, self._status())
        while self._active or self._faults:
            if self._faults and not self._active and self._is_up():
                self._inject(self._faults.pop(0))
            self._step_all()
            report_progress(self._length_s, f"waiting for {', '.join(h.kind for h, _, _ in self._active)} to be over")
        since_s = time.monotonic()
        while time.monotonic() < since_s + _SETTLE_S and not (
            scene.learner_at_work_s > since_s and self._mirror.progress[1] == 0
        ):
            self._step_all()
            report_progress(self._length_s, "waiting for learner and mirrors to be up to date")
        self._end()

    def _status(self) -> str:
        ledger = self.ledger
        open_ = len(self._active)
        return (
            f"run {self._scene.life_number}, {self._scene.ticks} ticks, {len(ledger.faults)} of {ledger.planned} "
            f"faults{f' ({open_} under way)' if open_ else ''}, {self._mirror.applied} writes mirrored, "
            f"{self._mirror.mismatches} mismatches"
        )

    def _is_up(self) -> bool:
        """Return whether the rig is working and a fault can be injected; False while a fatal fault is in progress."""
        ending = any(NATURES[h.kind].ends_run for h, _, _ in self._active)
        return self.rig.running and self._scene.at_work and not ending

    def _inject(self, fault: Fault) -> None:
        now_s = time.monotonic() - self._start_s - self.counts_from_s
        record = FaultRecord(fault.kind, fault.at_s, round(now_s, 3), fault.duration_s, self._scene.life_number)
        self.ledger.faults.append(record)
        self._active.append((record, inject_fault(self._scene, fault, record), time.monotonic()))

    def _step_all(self) -> None:
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = now_s
            self.gauges.sample(now_s - self._start_s, self.rig.processes())
        running = self.rig.running
        if self._scene.watch is not None:
            self._scene.watch.poll()
        self._step_faults(now_s)
        if not self.rig.running and (self.rig.run_has_ended or now_s - self._seen_running_s > _GONE_S):
            self._conclude()
            self._start_lifetime()
        elif running:
            self._seen_running_s = now_s
        if self.rig.learner_starts and self.rig.learner_pid is None:
            self.rig.start_learner()
        time.sleep(_POLL_S)

    def _step_faults(self, now_s: float) -> None:
        for entry in tuple(self._active):
            record, steps, start_s = entry
            if next(steps, self) is self:
                self._active.remove(entry)
            elif now_s - start_s > PATIENCE_S + record.duration_s:
                steps.close()
                self._active.remove(entry)

    # -- lives -------------------------------------------------------------------------------------------------------

    def _start_lifetime(self) -> None:
        # A run killed before its first checkpoint cannot be resumed, and exits with a specific code.
        lifetimes = self.ledger.lifetimes
        resumed = bool(lifetimes) and lifetimes[-1].exit_code != ExitCode.CONFIGURATION
        lifetimes.append(Lifetime(len(lifetimes) + 1, resumed=resumed))
        self._scene.observe(lifetimes[-1], self.rig.next_run(resume=resumed))

    def _conclude(self) -> None:
        """Close the ledger of an ended lifetime, and identify the fault that explains its end."""
        watch, code = self._scene.watch, self.rig.run_code
        if watch is None:
            return
        self._audit(watch, code)
        self._explain_end(watch.life, code)
        self._scene.stop_observing()
        if watch.life.written == 0 and sum(one.written == 0 for one in self.ledger.lifetimes) > 3:
            raise RigNotStarted(f"the rig cannot be restarted; see {self.rig.folder / 'run.out'}")

    def _audit(self, watch: LifeWatch, code: int | None) -> None:
        """Add the figures that a process reported, and the losses that it could not report."""
        life, config = watch.life, self.rig.config
        contents = read_folder(self.rig.run_folder, config)
        watch.finish(code, contents)
        found = findings(contents, config, Observed(code, resumed=life.resumed))
        self.ledger.unreported += [f"run {life.number}: {line}" for line in found]

    def _explain_end(self, life: Lifetime, code: int | None) -> None:
        now_s = time.monotonic() - self._start_s - self.counts_from_s
        candidates = [h for h, _, _ in self._active]
        candidates += [h for h in self.ledger.faults if now_s - h.at_s < _EXPLAINED_S]
        for record in reversed(candidates):
            nature = NATURES[record.kind]
            if nature.ends_run or nature.may_end_run:
                record.ended_run, record.exit_code = True, code
                return
        self.ledger.unexpected_ends.append(f"run {life.number} ended with code {code}")

    def _end(self) -> None:
        """End the rig as a user would, notify the mirrors, and close the ledger."""
        ledger, mirror, watch = self.ledger, self._mirror, self._scene.watch
        self.rig.run.stop(signal.SIGINT)
        limit_s = time.monotonic() + _END_S
        while self.rig.running and time.monotonic() < limit_s:
            if watch is not None:
                watch.poll()
            time.sleep(_POLL_S)
        code = self.rig.run_code
        if watch is not None:
            self._audit(watch, code)
            life, state = watch.life, mirror.state
            if life.reported.kept == state.inserted:
                life.final_mirrors["watching mirror"] = state.digest
            digest = self.rig.final_digest(_END_S)
            if digest is not None:
                life.final_mirrors["learner"] = digest
            self._scene.stop_observing()
        if code not in ON_REQUEST:
            ledger.unexpected_ends.append(f"the last run ended with code {code} when it was interrupted")
        ledger.mirrored, ledger.learner_starts = mirror.applied, self.rig.learner_starts
        ledger.compared, ledger.compared_complete, ledger.mismatches = (
            mirror.compared,
            mirror.compared_complete,
            mirror.mismatches,
        )
        memory = {role: self.gauges.memory(role) for role in self.gauges.roles}
        descriptors = {role: self.gauges.open_descriptors(role) for role in self.gauges.roles}
        ledger.memory = {role: slope for role, slope in memory.items() if slope is not None}
        ledger.descriptors = {role: slope for role, slope in descriptors.items() if slope is not None}
