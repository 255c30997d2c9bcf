"""How each fault is brought about, ended, and known to be over: one generator each, a step at every look."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from typing import Final, Protocol

from onrig.tools.faultlab.processes import CONTROL, REPLAY, send
from onrig.tools.faultlab.soak.effects import LineEffects, NetworkEffects
from onrig.tools.faultlab.soak.ledger import Happening
from onrig.tools.faultlab.soak.plan import NATURES, Fault, Kind, Place
from onrig.tools.faultlab.soak.rig import SoakRig

PATIENCE_S: Final = 60.0
"""A fault that is not over by then is not over."""
_NAMED_S: Final = 10.0
"""How long after that it may still be named: whoever files events may itself have been stopped."""
_AGAIN_S: Final = 0.3
"""Ticks for so long are a loop at work again."""
_POWERLESS_S: Final = 0.3


class Scene(Protocol):
    """What the generators see of the soak."""

    rig: SoakRig

    @property
    def life_number(self) -> int:
        """Of the life that is running, or the last one."""

    @property
    def running(self) -> bool:
        """Whether the rig's supervisor is there."""

    @property
    def ticks(self) -> int:
        """Ticks of this life."""

    @property
    def at_work(self) -> bool:
        """Whether the loop is in an episode."""

    @property
    def mirror_standing(self) -> tuple[float, int]:
        """When the watching mirror heard last (monotonic s), and how many writes it is behind."""

    @property
    def learner_at_work_s(self) -> float:
        """Monotonic time at which the rig last decided on a policy of the learner's."""

    def names_since(self, at_s: float) -> list[str]:
        """How faults were told of since then."""


Course = Generator[None, None, None]


def course(scene: Scene, fault: Fault, happening: Happening) -> Course:
    """Bring a fault about; ends once it is over and named, or when it takes too long."""
    began_s = time.monotonic()
    yield from _COURSES[fault.kind](scene, fault)
    happening.recovered_s = time.monotonic() - began_s
    wanted = set(NATURES[fault.kind].names)
    limit_s = time.monotonic() + _NAMED_S
    while True:
        happening.names = sorted(wanted.intersection(scene.names_since(began_s)))
        if happening.names or not wanted or time.monotonic() > limit_s:
            return
        yield


def _for(seconds: float) -> Course:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        yield


def _until(condition: Callable[[], bool]) -> Course:
    while not condition():
        yield


def _ticks_again(scene: Scene) -> Course:
    """Until the loop makes ticks, in this life or a later one."""
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
    """Until the mirror beyond the network has heard of everything again."""
    since_s = time.monotonic()

    def caught_up() -> bool:
        heard_s, behind = scene.mirror_standing
        return heard_s > since_s and behind == 0

    return _until(caught_up)


def _learns_again(scene: Scene) -> Course:
    since_s = time.monotonic()
    return _until(lambda: scene.learner_at_work_s > since_s)


def _held(effects: LineEffects | NetworkEffects, scene: Scene, fault: Fault) -> Course:
    effects.hold(fault.kind, fault.amount)
    try:
        if NATURES[fault.kind].ends_run:
            life = scene.life_number
            yield from _until(lambda: not scene.running or scene.life_number > life)
        else:
            yield from _for(fault.lasts_s)
    finally:
        effects.release(fault.kind, fault.amount)


def _line(scene: Scene, fault: Fault) -> Course:
    life = scene.life_number
    yield from _held(scene.rig.line, scene, fault)
    yield from _new_life(scene, life) if NATURES[fault.kind].ends_run else _ticks_again(scene)


def _lost_frames(scene: Scene, fault: Fault) -> Course:
    scene.rig.line.lose(round(fault.amount))
    yield from _ticks_again(scene)


def _network(scene: Scene, fault: Fault) -> Course:
    yield from _held(scene.rig.network, scene, fault)
    yield from _mirrored(scene)


def _reboot(scene: Scene, fault: Fault) -> Course:
    life = scene.life_number
    scene.rig.kill_device()
    yield from _for(_POWERLESS_S)
    scene.rig.start_device()
    yield from _new_life(scene, life)


def _stopped(pid_of: Callable[[], int | None], after: Callable[[Scene], Course]) -> Callable[[Scene, Fault], Course]:
    def bring(scene: Scene, fault: Fault) -> Course:
        pid: int | None = None
        while pid is None:  # it may be on its way up
            pid = pid_of()
            yield
        send(pid, signal.SIGSTOP)
        try:
            yield from _for(fault.lasts_s)
        finally:
            send(pid, signal.SIGCONT)
        yield from after(scene)

    return bring


def _process(scene: Scene, fault: Fault) -> Course:
    rig, life = scene.rig, scene.life_number
    match fault.kind:
        case Kind.LEARNER_STOPPED:
            yield from _stopped(lambda: rig.learner_pid, _learns_again)(scene, fault)
        case Kind.REPLAY_STOPPED:
            yield from _stopped(lambda: rig.child(REPLAY), _mirrored)(scene, fault)
        case Kind.CONTROL_STOPPED:
            yield from _stopped(lambda: rig.child(CONTROL), _ticks_again)(scene, fault)
        case Kind.LEARNER_KILLED:
            yield from _killed(lambda: rig.learner_pid)
            yield from _learns_again(scene)
        case Kind.REPLAY_KILLED:
            yield from _killed(lambda: rig.child(REPLAY))
            yield from _mirrored(scene)
        case Kind.CONTROL_KILLED:
            yield from _killed(lambda: rig.child(CONTROL))
            yield from _new_life(scene, life)
        case _:
            for pid in rig.tree():
                send(pid, signal.SIGKILL)
            yield from _new_life(scene, life)


def _killed(pid_of: Callable[[], int | None]) -> Course:
    pid: int | None = None
    while pid is None:
        pid = pid_of()
        yield
    send(pid, signal.SIGKILL)
    yield from _for(0.2)  # the kernel, and whoever waits for it, take note


_BY_PLACE: Final = {Place.SERIAL: _line, Place.NETWORK: _network, Place.PROCESS: _process}
_COURSES: Final[dict[Kind, Callable[[Scene, Fault], Course]]] = {
    **{kind: _BY_PLACE[NATURES[kind].place] for kind in Kind},
    Kind.LOST_FRAMES: _lost_frames,
    Kind.DEVICE_REBOOT: _reboot,
}
