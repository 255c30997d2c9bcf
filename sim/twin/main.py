"""Process of the twin: ``python -m onrig.sim.twin.main CONFIG [--port PORT] [--link FILE]``, with a resolved CONFIG.

SIGTERM ends it.  Fault injection: SIGUSR1 presses the e-stop, SIGUSR2 releases it; SIGRTMIN disconnects the sensors,
SIGRTMIN + 1 reconnects them; SIGRTMIN + 2 power-cycles the device.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.hw.device.line import Line, SocketLine
from onrig.hw.transport import LinkError
from onrig.runtime.control.realtime import die_with_parent, enter_realtime_as_device
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.run_loading import load_started
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.images import images_in
from onrig.runtime.shm.segment import create_folder, remove_folder
from onrig.sim.plants.trial import PlantFailure
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.link_file import keep_link_file
from onrig.sim.twin.options import DRAWN_BOOT_ID, TwinOptions
from onrig.sim.twin.pacing import FaultOnDemand, TraceWriter, TwinLoop
from onrig.sim.twin.rendering import TwinCameras

_NAME: Final = "twin"


def faults_on_demand() -> dict[int, FaultOnDemand]:
    """Return the fault that each signal injects."""
    return {
        signal.SIGUSR1: "press",
        signal.SIGUSR2: "release",
        signal.SIGRTMIN: "cut",
        signal.SIGRTMIN + 1: "connect",
        signal.SIGRTMIN + 2: "reboot",
    }


def twin_options(config: RunConfig) -> TwinOptions:
    """Return the twin's section of a checked configuration, converted to its type."""
    return msgspec.convert(config.device.twin or {}, TwinOptions)


def time_scale(config: RunConfig) -> float:
    """Return ``time_scale`` of the twin's hello: 0 for lockstep, 1 for real time, k for ``scaled: k``."""
    pace = config.device.pace
    if isinstance(pace, Scaled):
        return pace.scaled
    return 0.0 if pace == "lockstep" else 1.0


def serve(
    config: RunConfig,
    port: str | None,
    link: Path | None,
    announce: Callable[[str], None] | None = None,
    folder: Path | None = None,
) -> int:
    """Run the twin of a configuration until SIGTERM or SIGINT; return the exit code.

    The twin announces its address with ``announce`` (on a terminal), or else in a report to its supervisor.
    ``folder``, private to this user, holds its socket and its trace, if any (default: a temporary folder).
    """
    options = twin_options(config)
    if options.boot_id == DRAWN_BOOT_ID:
        options = msgspec.structs.replace(options, boot_id=secrets.randbits(32))
    trace: TraceWriter | None = None
    device = TwinDevice(config.rig, options, config.task.all_starts, time_scale=time_scale(config))
    with contextlib.ExitStack() as resources:
        try:
            if port is not None:
                line: Line | SocketLine = Line.serial(port)
            elif options.line == "pty":
                line = Line.pty()
            else:
                if folder is None:
                    folder = create_folder()  # not under TMPDIR, because socket paths are limited in length
                    resources.callback(remove_folder, folder)
                line = SocketLine(folder / "device")
            if options.trace and folder is not None:
                trace = TraceWriter(folder)
                resources.callback(trace.close)
        except (LinkError, OSError) as error:
            report(_NAME, "error", str(error))
            return ExitCode.HARDWARE
        resources.callback(line.close)
        writer = images_in(folder, config.cameras)
        cameras = None if writer is None else TwinCameras(config.cameras, writer)
        loop = _prepare_loop(device, line, trace, cameras)
        try:
            if link is not None:  # written only now, because whoever reads it may send signals at once
                resources.enter_context(keep_link_file(link, line.path))
        except OSError as error:
            report(_NAME, "error", f"--link: {error.strerror or error}")
            return ExitCode.CONFIGURATION
        return _serve(config, loop, line.path, announce, in_lockstep=device.time_scale == 0)


def _prepare_loop(
    device: TwinDevice, line: Line | SocketLine, trace: TraceWriter | None, cameras: TwinCameras | None
) -> TwinLoop:
    """Return the loop of a twin, and let this process's signals end it or inject faults."""
    is_stop_requested = False

    def request_stop(signum: int, frame: object) -> None:
        nonlocal is_stop_requested
        is_stop_requested = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    loop = TwinLoop(device, line, lambda: is_stop_requested, trace=trace, cameras=cameras)
    fault_by_signal = faults_on_demand()
    for signum in fault_by_signal:
        signal.signal(signum, lambda signum, frame: loop.inject(fault_by_signal[signum]))
    return loop


def _serve(
    config: RunConfig, loop: TwinLoop, address: str, announce: Callable[[str], None] | None, *, in_lockstep: bool
) -> int:
    if announce is not None:
        announce(address)
    else:
        report(_NAME, "ready", f"twin of '{config.rig.name}' on {address}", path=address)
    if not in_lockstep:
        enter_realtime_as_device(config.realtime)
    try:
        with np.errstate(all="ignore"):  # a diverging plant is reported by its sensors
            loop.run()
    except PlantFailure as failure:
        report(_NAME, "error", str(failure), fault=FaultName.PLANT_FAILED.value)
        return FAULTS[FaultName.PLANT_FAILED].code
    if announce is None:
        report(
            _NAME,
            "event",
            f"{loop.samples} samples, {loop.n_pauses} machine pauses, the longest {loop.longest_pause_ns / 1e6:.1f} ms",
            samples=loop.samples,
            pauses=loop.n_pauses,
            longest_pause_ms=loop.longest_pause_ns / 1e6,
        )
    return ExitCode.OK


def main(arguments: list[str]) -> int:
    """Parse the arguments and serve."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="onrig.sim.twin")
    parser.add_argument("config", type=Path)
    parser.add_argument("--port")
    parser.add_argument("--link", type=Path)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args(arguments)
    return serve(load_started(args.config), args.port, args.link, folder=args.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
