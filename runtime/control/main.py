"""The control process: ``python -m onrig.runtime.control.main RUN_FOLDER SHM_FOLDER PORT``.

The actuators are safe when it starts and when it ends, whatever happens in between.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

# Before numpy is imported by anything below: one thread, one arena (locked memory is counted per thread).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from onrig.hw.identity import DeviceMismatch, LimitsWider
from onrig.hw.messages import Capability, Hello
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError, open_port
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.loop import ControlLoop
from onrig.runtime.control.loop_state import decode_state
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.realtime import die_with_parent, enter_realtime, freeze_collector
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.policy.probation import terms_of
from onrig.runtime.record import RecordLayout
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.faults import FAULTS, FaultName, Halted, link_fault
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.frame_log import tap_of
from onrig.runtime.shm.latest import SLOT_SCHEMA, PolicySlot, loop_state_in
from onrig.runtime.shm.ring import RingWriter
from onrig.runtime.shm.segment import Segment

_ME: Final = "control"
_REMEDIES: Final = {
    "protocol version": "update the device's firmware, or Onrig",
    "reset": "give the task a `reset` section (lockstep requires a device with RESET)",
    "pace": "set device.pace to the device's",
}


class LimitsTooWide(ValueError):
    """The configuration allows more than the device does."""


def apply_limits(config: RunConfig, session: DeviceSession) -> None:
    """Tighten the device's limits to the configuration's; raises LimitsTooWide, which names both."""
    for i, actuator in enumerate(config.rig.actuators):
        device = session.channels[len(config.rig.sensors) + i]
        low, high = config.limits.range.get(actuator.name, (actuator.low, actuator.high))
        device_low, device_high = device.low * device.resolution, device.high * device.resolution
        slack = 0.5 * device.resolution
        if low < device_low - slack or high > device_high + slack:
            raise LimitsTooWide(
                f"limits.range.{actuator.name}: [{low:g}, {high:g}] {actuator.unit} is wider than the device's own "
                f"[{device_low:g}, {device_high:g}]"
            )
        session.limit(i, round(low / actuator.resolution), round(high / actuator.resolution))


def check_pace(config: RunConfig, hello: Hello) -> None:
    """Compare the pace of the device's time with the configuration; raises DeviceMismatch."""
    pace = config.device.pace
    wanted = 0.0 if config.lockstep else pace.scaled if isinstance(pace, Scaled) else 1.0
    # The hello carries a float32.
    if not abs(hello.time_scale - wanted) <= 1e-6 * wanted:
        raise DeviceMismatch("pace", _pace(hello.time_scale), _pace(wanted))


def check_reset(config: RunConfig, hello: Hello) -> None:
    """Require a way back to the start state of every episode; raises DeviceMismatch without one."""
    controlled = config.task.reset is not None and not config.lockstep
    if not hello.capabilities & Capability.RESET and not controlled:
        raise DeviceMismatch("reset", "none", "needs one at the start of every episode")


def _pace(scale: float) -> str:
    return {0.0: "lockstep", 1.0: "real time"}.get(scale, f"{scale:g} times real time")


def _drive(config: RunConfig, port: str, run_folder: Path, shm: Path, layout: RecordLayout) -> None:
    segment = Segment.attach(shm / "board", BOARD_SCHEMA)
    board, kept_state = Board(segment), loop_state_in(segment)
    requests = Requests(board)
    signal.signal(signal.SIGTERM, lambda signum, frame: requests.signal())
    signal.signal(signal.SIGINT, lambda signum, frame: requests.signal())
    ring = RingWriter(Segment.attach(shm / "ring", layout.schema), layout)
    switch = PolicySwitch(PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA)), terms_of(config))
    baud = config.device.port.baud if config.device.port is not None else None
    transport = open_port(port) if baud is None else open_port(port, baud)
    try:
        session = DeviceSession(transport, config.rig, time, tap=tap_of(shm))
        hello: Hello = session.connect(5.0)
        check_pace(config, hello)
        check_reset(config, hello)
        session.configure(config.period_us, config.rig.lease_periods)
        apply_limits(config, session)
        report(_ME, "ready", f"device '{hello.rig}' on {port}")
        if hello.time_scale != 0.0:
            warnings = enter_realtime(config.realtime)
            for line in warnings:
                report(_ME, "warning", line)
            board[Word.REALTIME] = int(os.sched_getscheduler(0) == os.SCHED_FIFO)
            freeze_collector()
        loop = ControlLoop(config, session, hello, ring, board, switch, requests, kept_state)
        try:
            # A state left there by an earlier life of the run is where a resumed run continues.
            loop.run(decode_state(kept_state.take()), run_folder / "policies")
        finally:
            board[Word.ENDED] = 1
            counters = dataclasses.asdict(session.counters)
            report(_ME, "event", "link counters", policy_swaps=switch.swaps, **counters)
    finally:
        transport.close()


def _failed(fault: FaultName, line: str) -> int:
    entry = FAULTS[fault]
    report(_ME, "error", line, fault=fault.value, cause=entry.cause, hint=entry.hint)
    return entry.code


def main(arguments: list[str]) -> int:
    """Run the control process; report the reason for its end, and return its exit code."""
    die_with_parent()
    run_folder, shm, port = Path(arguments[0]), Path(arguments[1]), arguments[2]
    config = load_resolved(run_folder / "config.yaml")
    layout = RecordLayout.of(config.rig)
    try:
        _drive(config, port, run_folder, shm, layout)
    except Stopped:
        return ExitCode.INTERRUPTED
    except (LimitsTooWide, LimitsWider) as error:
        report(_ME, "error", f"{port}: {error}; tighten the configuration's limits to the device's")
        return ExitCode.CONFIGURATION
    except DeviceMismatch as error:
        remedy = _REMEDIES.get(error.what, "connect that rig, or run the configuration of this one")
        report(_ME, "error", f"{port}: {error}; {remedy}")
        return ExitCode.HARDWARE
    except RequestRefused as error:
        return _failed(FaultName.DEVICE_REFUSED, f"{port}: {error}")
    except LinkError as error:
        return _failed(link_fault(error), str(error))
    except Halted as error:
        return _failed(error.fault, str(error))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
