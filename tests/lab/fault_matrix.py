"""The faults of the matrix: injection, expected reaction, and outcome of each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from onrig.hw.messages import Status, shows_safe
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.faults import FaultName
from onrig.sim.twin.pacing import hand_over_ns
from tests.lab.rig.audit import ON_REQUEST
from tests.lab.rig.processes import CONTROL, LEARNER, REPLAY
from tests.lab.rig.rig import WatchedRig
from tests.lab.rig.wire import Mode, device_time_us, safe_since_us

FRAME: Final = 150
"""Frame of the twin's internal faults: the middle of the second episode."""
_BURST_S: Final = 0.2
_STOPPED_S: Final = 2.5
_FULL_S: Final = 3.0
_JUMP_S: Final = 3600.0
DEAF: Final = 150
"""Number of frames during which DISARM is lost: longer than a stop repeats it."""
STUCK: Final = 100


class Outcome(NamedTuple):
    """Outcome of one repetition."""

    safe_ms: float | None
    """Time from the fault to the safe output, on the device's clock; None if the loop continues."""
    named: bool
    """Whether the run reported the fault by its name."""
    kept: bool
    rearmed: bool
    note: str = ""


class Case(NamedTuple):
    """One row of the matrix."""

    name: str
    fault: str
    """Expected name of the fault."""
    attempt: Callable[[WatchedRig], Outcome]
    learner: bool = False
    twin_faults: str = ""
    settings: tuple[str, ...] = ()
    unaffected: bool = False
    """Whether the loop must be unaffected: no safe output is expected."""


def _device_now_us(rig: WatchedRig) -> float:
    return device_time_us(rig.wire.seen, time.monotonic_ns(), hand_over_ns(rig.config.wall_period_ns))


def _safe_ms(rig: WatchedRig, fault_us: float) -> float:
    def since_us() -> float | None:
        return safe_since_us(rig.wire.seen, fault_us, rig.config.period_us, rig.config.rig.safe_counts)

    rig.until(lambda: since_us() is not None, "the safe output")
    since = since_us()
    return ((since or 0.0) - fault_us) / 1000


def _ends(fault: FaultName, code: ExitCode, inject: Callable[[WatchedRig], None]) -> Callable[[WatchedRig], Outcome]:
    """Build the case of a fault that ends the run."""

    def attempt(rig: WatchedRig) -> Outcome:
        rig.until_moving()
        before, fault_us = rig.run.rows(), _device_now_us(rig)
        inject(rig)
        safe_ms = _safe_ms(rig, fault_us)
        ended = rig.run.ended()
        named = ended == code and fault.value in rig.faults()
        kept = rig.data_kept(before)
        return Outcome(safe_ms, named, kept, rig.another_run() == ExitCode.OK, f"run ends, exit {ended}")

    return attempt


def _recovers(
    named: Callable[[WatchedRig], bool], inject: Callable[[WatchedRig], None], *, note: str
) -> Callable[[WatchedRig], Outcome]:
    """Build the case of a fault after which the same run continues."""

    def attempt(rig: WatchedRig) -> Outcome:
        rig.until_moving()
        before, at = rig.run.rows(), len(rig.wire.seen)
        fault_us = _device_now_us(rig)
        inject(rig)
        safe_ms = _safe_ms(rig, fault_us)
        rig.until(lambda: rig.is_driven_again(at), "the run to go on")
        rig.until(lambda: named(rig), "the fault to be named")
        code = rig.run.interrupt()
        return Outcome(safe_ms, True, rig.data_kept(before), code in ON_REQUEST, note)

    return attempt


def _unaffected(
    named: Callable[[WatchedRig], bool], inject: Callable[[WatchedRig], None], *, note: str
) -> Callable[[WatchedRig], Outcome]:
    """Build the case of a fault outside the loop: commands may not be missing for a full lease."""

    def attempt(rig: WatchedRig) -> Outcome:
        rig.until_moving()
        before, at = rig.run.rows(), len(rig.wire.seen)
        inject(rig)
        rig.until(lambda: named(rig), "the fault to be named")
        recorded = len(before)
        rig.until(lambda: len(rig.run.rows()) >= recorded + 2, "two more episodes")
        min_lease_left = min(s.lease_left for _, s in rig.wire.seen[at:] if s.status & Status.ARMED)
        tripped = any(s.fault for _, s in rig.wire.seen[at:])
        code = rig.run.interrupt()
        continued = code in ON_REQUEST and not tripped
        left = f"; shortest remaining lease {min_lease_left} of {rig.config.rig.lease_periods}"
        return Outcome(None, True, rig.data_kept(before), continued, note + left)

    return attempt


def _reboot(rig: WatchedRig) -> Outcome:
    rig.until(lambda: bool(rig.wire.seen) and rig.wire.seen[-1].state.frame == FRAME - 1, f"frame {FRAME - 1}")
    before = rig.run.rows()
    code = rig.run.ended()
    named = code == ExitCode.HARDWARE and FaultName.DEVICE_REBOOTED.value in rig.faults()
    kept, at = rig.data_kept(before), len(rig.wire.seen)
    rearmed = rig.another_run() == ExitCode.OK
    # The device's memory is lost, so its first frame decides: its output has been the safe one since the restart.
    first = rig.wire.seen[at].state
    safe_ms = 0.0 if first.answers == 0 and not any((*first.u_start, *first.u_end)) else float("inf")
    return Outcome(safe_ms, named, kept, rearmed, f"run ends, exit {code}")


def _estop(rig: WatchedRig) -> Outcome:
    rig.until(lambda: any(s.frame == FRAME for _, s in rig.wire.seen), f"frame {FRAME}")
    before = rig.run.rows()
    pressed_us = next(s.t_us for _, s in rig.wire.seen if s.frame == FRAME)
    safe_ms = _safe_ms(rig, pressed_us)
    at = len(rig.wire.seen)
    name = FaultName.DEVICE_ESTOP.value
    rig.until(lambda: name in rig.faults(), "the fault to be named")
    resumed_early = rig.resume()
    rig.until(lambda: rig.wire.seen[-1].state.frame > FRAME + 500, "the button to be released")
    released = rig.resume()
    rig.until(lambda: rig.is_driven_again(at), "the run to go on")
    code = rig.run.interrupt()
    rearmed = resumed_early == ExitCode.HARDWARE and released == ExitCode.OK and code == ExitCode.INTERRUPTED
    return Outcome(
        safe_ms, True, rig.data_kept(before), rearmed, "resume refused while pressed; continues after `onrig resume`"
    )


def _unplugged(rig: WatchedRig) -> Outcome:
    rig.until_moving()
    before, at, fault_us = rig.run.rows(), len(rig.wire.seen), _device_now_us(rig)
    rig.wire.mode = "unplugged"
    safe_ms = _safe_ms(rig, fault_us)
    rig.until(lambda: FaultName.LINK_UNPLUGGED.value in rig.faults(), "the fault to be named")
    resumed_early = rig.resume()
    rig.wire.mode = "carry"
    rig.until(lambda: rig.resume() == ExitCode.OK, "the device to be reconnected")
    rig.until(lambda: rig.is_driven_again(at), "the run to go on")
    rearmed = resumed_early == ExitCode.CONFIGURATION and rig.run.interrupt() == ExitCode.INTERRUPTED
    return Outcome(
        safe_ms, True, rig.data_kept(before), rearmed, "disarmed once it is back, continues after `onrig resume`"
    )


def _contradicting(fault: FaultName, code: ExitCode, *, until_released: int = 0) -> Callable[[WatchedRig], Outcome]:
    """Build the case of a self-contradicting device: safe after the contradicting frame, the last one that is answered.

    If an operator must act, the run waits, and continues after frame ``until_released`` once resumed.
    """

    def attempt(rig: WatchedRig) -> Outcome:
        rig.until(lambda: fault.value in rig.faults(), "the fault to be named")
        safe = rig.config.rig.safe_counts
        driven = [i for i, (_, s) in enumerate(rig.wire.seen) if not shows_safe(s, safe)]
        safe_ms = _safe_ms(rig, rig.wire.seen[driven[-1]].state.t_us) if driven else 0.0
        before, at = rig.run.rows(), len(rig.wire.seen)
        if not until_released:
            ended, kept = rig.run.ended(), rig.data_kept(before)
            # The device repeats the fault, so the next run must end in the same way.
            again = rig.another_run() in (code, ExitCode.OK)
            return Outcome(safe_ms, ended == code, kept, again, f"run ends, exit {ended}")
        rig.until(lambda: rig.wire.seen[-1].state.frame > until_released, "the device to recover")
        resumed = rig.resume()
        rig.until(lambda: rig.is_driven_again(at), "the run to go on")
        continues = resumed == ExitCode.OK and rig.run.interrupt() == ExitCode.INTERRUPTED
        return Outcome(safe_ms, True, rig.data_kept(before), continues, "continues after `onrig resume`")

    return attempt


def _stop_deaf(rig: WatchedRig) -> Outcome:
    """Case of ``onrig stop --now`` while every DISARM is lost: only a frame after the lease's expiry reports *safe*."""
    rig.until(lambda: any(s.frame == FRAME for _, s in rig.wire.seen) and rig.is_driven(), f"frame {FRAME}, driven")
    before, at = rig.run.rows(), len(rig.wire.seen)
    code, output = rig.stop()
    ended = rig.run.ended()
    # The time counts from the frame that the last command answered; the stop followed within one period.
    answered = max(s.answers for _, s in rig.wire.seen[at:])
    safe_ms = _safe_ms(rig, next(s.t_us for _, s in rig.wire.seen if s.frame == answered))
    named = code == ExitCode.OK and "actuators safe after" in output and "confirmed by a state frame" in output
    reported_ms = float(output.split("actuators safe after ", 1)[1].split(" ms", 1)[0]) if named else 0.0
    early = "" if reported_ms >= safe_ms - rig.config.period_us / 1000 else f"; FALSE: says {reported_ms:.0f} ms"
    note = f"stop confirmed by the frame, run ends, exit {ended}{early}"
    rig.until(lambda: rig.wire.seen[-1].state.frame > FRAME + DEAF, "the device to receive again")
    return Outcome(safe_ms, named and not early, rig.data_kept(before), rig.another_run() == ExitCode.OK, note)


def _garble_a_burst(rig: WatchedRig) -> None:
    rig.wire.mode = "garble"
    time.sleep(_BURST_S)
    rig.wire.mode = "carry"


def _stop_control(rig: WatchedRig) -> None:
    pid = rig.run.child(CONTROL).pid
    os.kill(pid, signal.SIGSTOP)
    rig.until(lambda: FaultName.LOOP_HUNG.value in rig.faults(), "the hung loop to be noticed")
    os.kill(pid, signal.SIGCONT)


def _kill(module: str, signum: int = signal.SIGKILL) -> Callable[[WatchedRig], None]:
    return lambda rig: os.kill(rig.run.child(module).pid, signum)


def _wire(mode: Mode) -> Callable[[WatchedRig], None]:
    return lambda rig: setattr(rig.wire, "mode", mode)


def _fill_disk(rig: WatchedRig) -> None:
    rig.fill_disk(full=True)
    time.sleep(_FULL_S)
    rig.fill_disk(full=False)


def _restarted(name: str) -> Callable[[WatchedRig], bool]:
    return lambda rig: any(f"{name} ended with code -9; restarted" in str(e.get("message")) for e in rig.run.events())


def _warned(rig: WatchedRig) -> bool:
    return any(e["kind"] == "warning" and "File too large" in str(e["message"]) for e in rig.run.events())


_LEASE = FaultName.DEVICE_LEASE.value
CASES: Final = (
    Case("cable pulled", "link_silent", _ends(FaultName.LINK_SILENT, ExitCode.HARDWARE, _wire("cut"))),
    Case("port unplugged", "link_unplugged", _unplugged),
    Case(
        "device reboot",
        "device_rebooted",
        _reboot,
        twin_faults=f"{{scheduled: [{{kind: reboot, frame: {FRAME}}}]}}",
    ),
    Case("frozen frames", "link_frozen", _ends(FaultName.LINK_FROZEN, ExitCode.HARDWARE, _wire("freeze"))),
    Case(
        "corrupted burst",
        _LEASE,
        _recovers(lambda rig: _LEASE in rig.faults(), _garble_a_burst, note="re-armed by the run"),
    ),
    Case(
        "e-stop pressed",
        "device_estop",
        _estop,
        twin_faults=f"{{scheduled: [{{kind: estop, frame: {FRAME}, frames: 500}}]}}",
    ),
    Case(
        "frozen sensor",
        "sensors_frozen",
        _contradicting(FaultName.SENSORS_FROZEN, ExitCode.SAFETY, until_released=FRAME + STUCK),
        twin_faults=f"{{scheduled: [{{kind: stick, frame: {FRAME - 25}, frames: {STUCK + 25}}}]}}",
        settings=("supervision.frozen_s=0.6", "exploration={process: gaussian, std: 0.5, amplitude: [[1, 1.0]]}"),
    ),
    Case(
        "fault without a code",
        "device_unnamed",
        _contradicting(FaultName.DEVICE_UNNAMED, ExitCode.SAFETY, until_released=FRAME + 1),
        twin_faults=f"{{scheduled: [{{kind: unnamed, frame: {FRAME}}}]}}",
    ),
    Case(
        "wrong rate",
        "device_rate",
        _contradicting(FaultName.DEVICE_RATE, ExitCode.HARDWARE),
        twin_faults="{rate: 2.0}",
    ),
    Case(
        "foreign boot id",
        "device_rebooted",
        _contradicting(FaultName.DEVICE_REBOOTED, ExitCode.HARDWARE),
        twin_faults=f"{{scheduled: [{{kind: stranger, frame: {FRAME}}}]}}",
    ),
    Case(
        "stop, DISARM lost",
        "safe by a frame",
        _stop_deaf,
        twin_faults=f"{{scheduled: [{{kind: deaf, frame: {FRAME}, frames: {DEAF}}}]}}",
    ),
    Case(
        "control stopped",
        "loop_hung",
        _recovers(
            lambda rig: {_LEASE, FaultName.LOOP_HUNG.value} <= rig.faults(), _stop_control, note="re-armed by the run"
        ),
    ),
    Case(
        "control killed",
        "loop_killed",
        _ends(FaultName.LOOP_KILLED, ExitCode.INTERNAL, _kill(CONTROL)),
    ),
    Case(
        "learner gone",
        "restarted",
        _unaffected(_restarted("learner"), _kill(LEARNER), note="loop continues"),
        learner=True,
        unaffected=True,
    ),
    Case(
        "replay gone",
        "restarted",
        _unaffected(_restarted("replay"), _kill(REPLAY), note="loop continues"),
        unaffected=True,
    ),
    *(
        Case(
            f"{role} hangs",
            "killed, restarted",
            _unaffected(_restarted(role), _kill(module, signal.SIGSTOP), note="loop continues"),
            learner=role == "learner",
            unaffected=True,
            settings=("supervision.hang_s=2",),
        )
        for role, module in (("learner", LEARNER), ("replay", REPLAY))
    ),
    Case(
        "wall clock jumps",
        "nothing to name",
        _unaffected(
            lambda rig: not rig.faults(), lambda rig: rig.jump_clock(_JUMP_S, -_JUMP_S, 0.0), note="loop continues"
        ),
        unaffected=True,
    ),
    Case(
        "disk full",
        "a warning",
        _unaffected(_warned, _fill_disk, note="loop continues"),
        unaffected=True,
    ),
)
