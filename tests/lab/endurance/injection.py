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
_NAMED_S: Final = 10.0
"""Additional time for its report: the process that writes events may itself have been stopped."""
_AGAIN_S: Final = 0.3
"""Duration of ticking after which a loop counts as recovered."""
_POWERLESS_S: Final = 0.3
_DEAD_S: Final = 0.2
"""Time until kernel and parent register a killed process."""

Course = Generator[None, None, None]
Injection = Callable[[Scene, Fault], Course]
PidOf = Callable[[Scene], int | None]


def course(scene: Scene, fault: Fault, happening: FaultRecord) -> Course:
    """Inject a fault; ends once it is over and reported, or timed out."""
    start_s = time.monotonic()
    yield from _COURSES[fault.kind](scene, fault)
    happening.recovered_s = time.monotonic() - start_s
    wanted = set(NATURES[fault.kind].names)
    limit_s = time.monotonic() + _NAMED_S
    while True:
        happening.names = sorted(wanted.intersection(scene.names_since(start_s)))
        if happening.names or not wanted or time.monotonic() > limit_s:
            return
        yield


# -- waiting ---------------------------------------------------------------------------------------------------------


def _for(seconds: float) -> Course:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        yield


def _until(condition: Callable[[], bool]) -> Course:
    while not condition():
        yield


def _ticks_again(scene: Scene) -> Course:
    """Wait until the loop ticks, in this run or a later one."""
    life, ticks = scene.life_number, scene.ticks
    wanted = _AGAIN_S * scene.rig.config.rate_hz

    def at_work() -> bool:
        since = scene.ticks - (ticks if scene.life_number == life else 0)
        return scene.running and scene.at_work and since >= wanted

    return _until(at_work)


def _new_life(scene: Scene, life: int) -> Course:
    yield from _until(lambda: scene.life_number > life)
    yield from _ticks_again(scene)


def _mirrored(scene: Scene) -> Course:
    """Wait until the mirror beyond the network is up to date again."""
    since_s = time.monotonic()

    def caught_up() -> bool:
        heard_s, behind = scene.mirror.standing
        return heard_s > since_s and behind == 0

    return _until(caught_up)


def _learns_again(scene: Scene) -> Course:
    since_s = time.monotonic()
    return _until(lambda: scene.learner_at_work_s > since_s)


# -- line and network ------------------------------------------------------------------------------------------------


def _held(scene: Scene, fault: Fault) -> Course:
    nature, life = NATURES[fault.kind], scene.life_number
    where = scene.rig.line if nature.place is Place.SERIAL else scene.rig.network
    where.hold(fault.kind, fault.amount)
    try:
        if nature.ends_run:
            yield from _until(lambda: not scene.running or scene.life_number > life)
        else:
            yield from _for(fault.lasts_s)
    finally:
        where.release(fault.kind, fault.amount)


def _on_the_line(scene: Scene, fault: Fault) -> Course:
    life = scene.life_number
    yield from _held(scene, fault)
    yield from _new_life(scene, life) if NATURES[fault.kind].ends_run else _ticks_again(scene)


def _lost_frames(scene: Scene, fault: Fault) -> Course:
    scene.rig.line.lose(round(fault.amount))
    yield from _ticks_again(scene)


def _on_the_network(scene: Scene, fault: Fault) -> Course:
    yield from _held(scene, fault)
    yield from _mirrored(scene)


# -- processes -------------------------------------------------------------------------------------------------------


def _reboot(scene: Scene, fault: Fault) -> Course:
    life = scene.life_number
    scene.rig.kill_device()
    yield from _for(_POWERLESS_S)
    scene.rig.start_device()
    yield from _new_life(scene, life)


def _learner(scene: Scene) -> int | None:
    return scene.rig.learner_pid


def _inside(module: str) -> PidOf:
    return lambda scene: scene.rig.pid_of(module)


def _stopped(pid_of: PidOf, over: Callable[[Scene], Course]) -> Injection:
    def inject(scene: Scene, fault: Fault) -> Course:
        while (pid := pid_of(scene)) is None:  # it may be starting up
            yield
        send(pid, signal.SIGSTOP)
        try:
            yield from _for(fault.lasts_s)
        finally:
            send(pid, signal.SIGCONT)
        yield from over(scene)

    return inject


def _killed(pid_of: PidOf, over: Callable[[Scene], Course] | None = None) -> Injection:
    def inject(scene: Scene, fault: Fault) -> Course:
        life = scene.life_number
        while (pid := pid_of(scene)) is None:
            yield
        send(pid, signal.SIGKILL)
        yield from _for(_DEAD_S)
        yield from _new_life(scene, life) if over is None else over(scene)

    return inject


def _rig_killed(scene: Scene, fault: Fault) -> Course:
    life = scene.life_number
    if scene.running:
        for pid in (scene.rig.run.pid, *children(scene.rig.run.pid).values()):
            send(pid, signal.SIGKILL)
    yield from _new_life(scene, life)


_BY_PLACE: Final = {Place.SERIAL: _on_the_line, Place.NETWORK: _on_the_network}
_COURSES: Final[dict[Kind, Injection]] = {
    **{kind: _BY_PLACE[nature.place] for kind, nature in NATURES.items() if nature.place in _BY_PLACE},
    Kind.LOST_FRAMES: _lost_frames,
    Kind.DEVICE_REBOOT: _reboot,
    Kind.LEARNER_KILLED: _killed(_learner, _learns_again),
    Kind.LEARNER_STOPPED: _stopped(_learner, _learns_again),
    Kind.REPLAY_KILLED: _killed(_inside(REPLAY), _mirrored),
    Kind.REPLAY_STOPPED: _stopped(_inside(REPLAY), _mirrored),
    Kind.CONTROL_KILLED: _killed(_inside(CONTROL)),
    Kind.CONTROL_STOPPED: _stopped(_inside(CONTROL), _ticks_again),
    Kind.RIG_KILLED: _rig_killed,
}


class Hits:
    """Kills and stops of processes, and continuation of stopped ones; call ``again`` as often as possible."""

    def __init__(self) -> None:
        self._stopped: list[tuple[float, int]] = []

    def apply(self, hit: Hit, pid_of: Callable[[Role], int | None]) -> bool:
        """Kill or stop a process; returns whether it existed."""
        time.sleep(hit.late_s)
        pid = pid_of(hit.role)
        if pid is None or not send(pid, signal.SIGKILL if hit.stops_s is None else signal.SIGSTOP):
            return False
        if hit.stops_s is not None:
            self._stopped.append((time.monotonic() + hit.stops_s, pid))
        return True

    def again(self) -> None:
        """Continue processes whose stop has elapsed."""
        now_s = time.monotonic()
        for over_s, pid in tuple(self._stopped):
            if now_s >= over_s:
                send(pid, signal.SIGCONT)
                self._stopped.remove((over_s, pid))
