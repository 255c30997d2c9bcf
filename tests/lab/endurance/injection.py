"""Fault injection: start and end of each fault, and detection of recovery.

There is one generator per fault, advanced at every poll.  Signals kill or stop single processes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from typing import Final

from tests.lab.endurance.observers import Scene
from tests.lab.endurance.schedule import NATURES, Fault, Hit, Kind, Place, Role
from tests.lab.rig.balance import FaultRecord
from tests.lab.rig.processes import CONTROL, REPLAY, children, send

PATIENCE_S: Final = 60.0
"""Time limit for the end of a fault."""
_REPORT_S: Final = 10.0
"""Additional time for its report: the process that writes events may itself have been stopped."""
_RECOVERED_S: Final = 0.3
"""Duration of ticking after which a loop counts as recovered."""
_POWER_OFF_S: Final = 0.3
_DEATH_S: Final = 0.2
"""Time until kernel and parent register a killed process."""

Steps = Generator[None, None, None]
Injection = Callable[[Scene, Fault], Steps]
PidOf = Callable[[Scene], int | None]


def inject_fault(scene: Scene, fault: Fault, record: FaultRecord) -> Steps:
    """Inject a fault; ends once it is over and reported, or timed out."""
    start_s = time.monotonic()
    yield from _INJECTIONS[fault.kind](scene, fault)
    record.recovered_s = time.monotonic() - start_s
    wanted = set(NATURES[fault.kind].names)
    limit_s = time.monotonic() + _REPORT_S
    while True:
        record.names = sorted(wanted.intersection(scene.names_since(start_s)))
        if record.names or not wanted or time.monotonic() > limit_s:
            return
        yield


# -- waiting ---------------------------------------------------------------------------------------------------------


def _wait(seconds: float) -> Steps:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        yield


def _wait_until(condition: Callable[[], bool]) -> Steps:
    while not condition():
        yield


def _loop_recovers(scene: Scene) -> Steps:
    """Wait until the loop ticks, in this run or a later one."""
    lifetime, ticks = scene.life_number, scene.ticks
    wanted = _RECOVERED_S * scene.rig.config.rate_hz

    def at_work() -> bool:
        since = scene.ticks - (ticks if scene.life_number == lifetime else 0)
        return scene.running and scene.at_work and since >= wanted

    return _wait_until(at_work)


def _restarts(scene: Scene, lifetime: int) -> Steps:
    yield from _wait_until(lambda: scene.life_number > lifetime)
    yield from _loop_recovers(scene)


def _mirror_recovers(scene: Scene) -> Steps:
    """Wait until the mirror beyond the network is up to date again."""
    since_s = time.monotonic()

    def caught_up() -> bool:
        last_message_s, behind = scene.mirror.progress
        return last_message_s > since_s and behind == 0

    return _wait_until(caught_up)


def _learner_recovers(scene: Scene) -> Steps:
    since_s = time.monotonic()
    return _wait_until(lambda: scene.learner_at_work_s > since_s)


# -- line and network ------------------------------------------------------------------------------------------------


def _hold(scene: Scene, fault: Fault) -> Steps:
    nature, lifetime = NATURES[fault.kind], scene.life_number
    where = scene.rig.line if nature.place is Place.SERIAL else scene.rig.network
    where.hold(fault.kind, fault.amount)
    try:
        if nature.ends_run:
            yield from _wait_until(lambda: not scene.running or scene.life_number > lifetime)
        else:
            yield from _wait(fault.duration_s)
    finally:
        where.release(fault.kind, fault.amount)


def _line_fault(scene: Scene, fault: Fault) -> Steps:
    lifetime = scene.life_number
    yield from _hold(scene, fault)
    yield from _restarts(scene, lifetime) if NATURES[fault.kind].ends_run else _loop_recovers(scene)


def _frames_lost(scene: Scene, fault: Fault) -> Steps:
    scene.rig.line.lose(round(fault.amount))
    yield from _loop_recovers(scene)


def _network_fault(scene: Scene, fault: Fault) -> Steps:
    yield from _hold(scene, fault)
    yield from _mirror_recovers(scene)


# -- processes -------------------------------------------------------------------------------------------------------


def _reboot(scene: Scene, fault: Fault) -> Steps:
    lifetime = scene.life_number
    scene.rig.kill_device()
    yield from _wait(_POWER_OFF_S)
    scene.rig.start_device()
    yield from _restarts(scene, lifetime)


def _learner(scene: Scene) -> int | None:
    return scene.rig.learner_pid


def _inside(module: str) -> PidOf:
    return lambda scene: scene.rig.pid_of(module)


def _stopped(pid_of: PidOf, recovery: Callable[[Scene], Steps]) -> Injection:
    def inject(scene: Scene, fault: Fault) -> Steps:
        while (pid := pid_of(scene)) is None:  # it may be starting up
            yield
        send(pid, signal.SIGSTOP)
        try:
            yield from _wait(fault.duration_s)
        finally:
            send(pid, signal.SIGCONT)
        yield from recovery(scene)

    return inject


def _killed(pid_of: PidOf, recovery: Callable[[Scene], Steps] | None = None) -> Injection:
    def inject(scene: Scene, fault: Fault) -> Steps:
        lifetime = scene.life_number
        while (pid := pid_of(scene)) is None:
            yield
        send(pid, signal.SIGKILL)
        yield from _wait(_DEATH_S)
        yield from _restarts(scene, lifetime) if recovery is None else recovery(scene)

    return inject


def _rig_killed(scene: Scene, fault: Fault) -> Steps:
    lifetime = scene.life_number
    if scene.running:
        for pid in (scene.rig.run.pid, *children(scene.rig.run.pid).values()):
            send(pid, signal.SIGKILL)
    yield from _restarts(scene, lifetime)


_BY_PLACE: Final = {Place.SERIAL: _line_fault, Place.NETWORK: _network_fault}
_INJECTIONS: Final[dict[Kind, Injection]] = {
    **{kind: _BY_PLACE[nature.place] for kind, nature in NATURES.items() if nature.place in _BY_PLACE},
    Kind.LOST_FRAMES: _frames_lost,
    Kind.DEVICE_REBOOT: _reboot,
    Kind.LEARNER_KILLED: _killed(_learner, _learner_recovers),
    Kind.LEARNER_STOPPED: _stopped(_learner, _learner_recovers),
    Kind.REPLAY_KILLED: _killed(_inside(REPLAY), _mirror_recovers),
    Kind.REPLAY_STOPPED: _stopped(_inside(REPLAY), _mirror_recovers),
    Kind.CONTROL_KILLED: _killed(_inside(CONTROL)),
    Kind.CONTROL_STOPPED: _stopped(_inside(CONTROL), _loop_recovers),
    Kind.RIG_KILLED: _rig_killed,
}


class Hits:
    """Kills and stops of processes, and continuation of stopped ones; call ``resume_stopped`` as often as possible."""

    def __init__(self) -> None:
        self._stopped: list[tuple[float, int]] = []

    def apply(self, hit: Hit, pid_of: Callable[[Role], int | None]) -> bool:
        """Kill or stop a process; returns whether it existed."""
        time.sleep(hit.delay_s)
        pid = pid_of(hit.role)
        if pid is None or not send(pid, signal.SIGKILL if hit.stop_s is None else signal.SIGSTOP):
            return False
        if hit.stop_s is not None:
            self._stopped.append((time.monotonic() + hit.stop_s, pid))
        return True

    def resume_stopped(self) -> None:
        """Continue processes whose stop has elapsed."""
        now_s = time.monotonic()
        for resume_s, pid in tuple(self._stopped):
            if now_s >= resume_s:
                send(pid, signal.SIGCONT)
                self._stopped.remove((resume_s, pid))
