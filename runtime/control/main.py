"""The control process: ``python -m onrig.runtime.control.main RUN_FOLDER SHM_FOLDER PORT``.

The actuators are safe when the process starts and when it ends, whatever happens in between.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

# Set before anything below imports numpy: one thread, and so one arena, because locked memory is counted per thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from msgspec import UNSET

from onrig.hw.identity import DeviceMismatch, LimitMismatch
from onrig.hw.line import Serial
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import LinkError
from onrig.runtime.control.connection import LimitsTooWide, Reconnection, connect
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.loop import ControlLoop
from onrig.runtime.control.loop_state import SharedMemory, decode_state
from onrig.runtime.control.outside import Requests
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.realtime import collapse_pages, die_with_parent, enter_realtime, freeze_collector
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.record import RecordLayout
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.faults import FAULTS, FaultName, Halted, link_fault
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.exchange import LoopSide
from onrig.runtime.shm.frame_log import frame_tap
from onrig.runtime.shm.images import ImageReader
from onrig.runtime.shm.latest import SLOT_SCHEMA, PolicySlot, loop_state_in
from onrig.runtime.shm.ring import RingWriter
from onrig.runtime.shm.segment import Segment

_SOURCE: Final = "control"
_REMEDIES: Final = {
    "protocol version": "update the device's firmware, or Onrig",
    "reset": "give the task a `reset` section (lockstep requires a device with RESET)",
    "pace": "set device.pace to the device's pace",
}


def _run_loop(config: RunConfig, port: str, run_folder: Path, shm: Path, layout: RecordLayout) -> None:
    segment = Segment.attach(shm / "board", BOARD_SCHEMA)
    board, kept_state = Board(segment), loop_state_in(segment)
    requests = Requests(board)
    signal.signal(signal.SIGTERM, lambda signum, frame: requests.signal())
    signal.signal(signal.SIGINT, lambda signum, frame: requests.signal())
    ring = RingWriter(Segment.attach(shm / "ring", layout.schema), layout)
    switch = PolicySwitch(PolicySlot(Segment.attach(shm / "slot", SLOT_SCHEMA)), probation_limits(config))
    line = (config.device.line or Serial(port)).with_address(port)
    session = DeviceSession(line.open(), config.rig, time, tap=frame_tap(shm))
    try:
        hello = connect(config, session)
        report(_SOURCE, "ready", f"device '{hello.rig}' on {port}")
        if hello.time_scale != 0.0:
            warnings = enter_realtime(config.realtime)
            for warning in warnings:
                report(_SOURCE, "warning", warning)
            board[Word.REALTIME] = int(os.sched_getscheduler(0) == os.SCHED_FIFO)
            freeze_collector()
        reconnection = Reconnection(config, session, requests, line.address, line.open)
        trainer = None if config.actor is UNSET else LoopSide(shm, layout)
        images = None
        if config.cameras:
            clock = None if hello.time_scale == 0.0 else time.monotonic_ns
            images = ImageReader(shm, config.cameras, clock, hello.time_scale)
        shared_memory = SharedMemory(ring, board, kept_state, trainer, images)
        loop = ControlLoop(config, session, shared_memory, switch, requests, reconnection)
        if hello.time_scale != 0.0:
            collapse_pages()
        try:
            # A resumed run continues from the state stored by an earlier process.
            loop.run(decode_state(kept_state.take()), run_folder / "policies")
        except LinkError as error:
            first_fault = loop.arming.machine.fault
            if first_fault is None or first_fault is link_fault(error):
                raise
            # Report the fault that was latched first.
            raise Halted(first_fault, f"{FAULTS[first_fault].cause}; then {error}") from None
        finally:
            board[Word.ENDED] = 1
            counters = dataclasses.asdict(session.counters)
            if images is not None:
                report(_SOURCE, "event", images.describe())
            report(_SOURCE, "event", "link counters", policy_swaps=switch.n_swaps, **counters)
    finally:
        session.close()


def _report_fault(fault: FaultName, line: str) -> int:
    entry = FAULTS[fault]
    report(_SOURCE, "error", line, fault=fault.value, cause=entry.cause, hint=entry.hint)
    return entry.code


def main(arguments: list[str]) -> int:
    """Run the control process, report why it ended, and return its exit code."""
    die_with_parent()
    run_folder, shm, port = Path(arguments[0]), Path(arguments[1]), arguments[2]
    config = load_resolved(run_folder / "config.yaml")
    layout = record_layout(config)
    try:
        _run_loop(config, port, run_folder, shm, layout)
    except Stopped:
        return ExitCode.INTERRUPTED
    except (LimitsTooWide, LimitMismatch) as error:
        report(_SOURCE, "error", f"{port}: {error}; tighten the limits in the configuration to those of the device")
        return ExitCode.CONFIGURATION
    except DeviceMismatch as error:
        remedy = _REMEDIES.get(
            error.subject, "connect the configured rig, or run the configuration of the connected one"
        )
        report(_SOURCE, "error", f"{port}: {error}; {remedy}")
        return ExitCode.HARDWARE
    except RequestRefused as error:
        return _report_fault(FaultName.DEVICE_REFUSED, f"{port}: {error}")
    except LinkError as error:
        return _report_fault(link_fault(error), str(error))
    except Halted as error:
        return _report_fault(error.fault, str(error))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
