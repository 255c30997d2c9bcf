"""Process of the driver: ``python -m onrig.runtime.driver.main CONFIG FOLDER``, with a resolved CONFIG.

It serves the device of ``device.driver`` on a socket in FOLDER, which is private to this user.  SIGTERM ends it.  It
makes the actuators safe when it starts and when it ends; if it is killed or suspended, the motor controller must make
them safe.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from pathlib import Path
from typing import Final

from msgspec import UNSET

from onrig.hw.device.driven import DrivenDevice, Driver, DriverError
from onrig.hw.device.line import SocketLine
from onrig.runtime.control.realtime import die_with_parent, enter_realtime_as_device
from onrig.runtime.driver.loop import DriverLoop
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.registry import describe_exception, import_home
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_started
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import report

_SOURCE: Final = "driver"


def _report_failure(error: Exception, subject: str) -> int:
    report(_SOURCE, "error", f"{subject}: {describe_exception(error)}", fault=FaultName.DRIVER_FAILED.value)
    return FAULTS[FaultName.DRIVER_FAILED].code


def _serve(config: RunConfig, device: DrivenDevice, line: SocketLine) -> int:
    stop = False

    def request_stop(signum: int, frame: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    loop, is_reported = DriverLoop(device, line), False
    report(_SOURCE, "ready", f"device '{config.rig.name}', served by its driver, on {line.path}", path=line.path)
    enter_realtime_as_device(config.realtime)
    while not stop:
        loop.step()
        if device.failure is not None and not is_reported:
            is_reported = True
            _report_failure(device.failure, "the driver's code raised an exception, and safe() was called")
    report(
        _SOURCE,
        "event",
        f"{loop.samples} samples, {loop.skipped} skipped because the driver was late",
        samples=loop.samples,
        skipped=loop.skipped,
    )
    return ExitCode.OK if device.failure is None else FAULTS[FaultName.DRIVER_FAILED].code


def main(arguments: list[str]) -> int:
    """Start the driver and serve its device; return the exit code."""
    die_with_parent()
    config, folder = load_started(Path(arguments[0])), Path(arguments[1])
    settings = config.device.driver
    assert settings is not UNSET
    try:
        driver: Driver = import_home(settings, settings.home)(settings, config.rig)
        device = DrivenDevice(config.rig, settings, driver, secrets.randbits(32))
    except Exception as error:
        return _report_failure(error, "the driver does not start")
    try:
        with contextlib.closing(SocketLine(folder / "device")) as line:
            code = _serve(config, device, line)
    except DriverError as error:
        code = _report_failure(error.__cause__ if isinstance(error.__cause__, Exception) else error, "safe() failed")
    except Exception as error:
        code = _report_failure(error, "the driver's process failed")
    try:
        device.close()
    except DriverError as error:
        code = _report_failure(error, "safe() failed at the end")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
