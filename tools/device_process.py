"""Device for verbs other than `onrig run`: a port, or the line, twin or driver of a configuration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import UNSET

from onrig.hw.line import Line, Serial
from onrig.hw.transport import LinkError
from onrig.runtime.config.document import find_config
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import save_resolved
from onrig.runtime.shm.segment import create_folder, remove_folder
from onrig.runtime.supervise.child import Child

_START_TIMEOUT_S: Final = 30.0
_END_TIMEOUT_S: Final = 5.0


@contextlib.contextmanager
def open_device_line(config: RunConfig) -> Iterator[Line]:
    """Context manager that yields the line to the device, and ends the twin's or driver's process on exit.  Raises
    LinkError if the process does not start.

    A driver makes its actuators safe when it starts and when it ends.
    """
    if config.device.line is not None:
        yield config.device.line
        return
    folder = create_folder()
    try:
        save_resolved(config, folder / "config.yaml")
        has_driver = config.device.driver is not UNSET
        module, options = ("onrig.runtime.driver.main", []) if has_driver else ("onrig.sim.twin.main", ["--folder"])
        child = Child("device", module, [str(folder / "config.yaml"), *options, str(folder)], folder / "stderr.log")
        try:
            yield Serial(_await_device_path(child, config, folder / "stderr.log"))
        finally:
            child.end(_END_TIMEOUT_S)
            child.close()
    finally:
        remove_folder(folder)


def is_config_name(device: str) -> bool:
    """Return whether the argument ``PORT|CONFIG`` is a configuration: a YAML file, a folder with a ``run.yaml``, or a
    shipped name.
    """
    if Path(device).suffix in (".yaml", ".yml"):
        return True
    try:
        find_config(device)
    except FileNotFoundError:
        return False
    return not Path(device).is_char_device()


def _await_device_path(child: Child, config: RunConfig, log: Path) -> str:
    deadline_s, message = time.monotonic() + _START_TIMEOUT_S, ""
    while time.monotonic() < deadline_s:
        has_ended = child.poll() is not None
        for report in child.reports():
            if report.kind == "ready":
                return str(report.values["path"])
            message = report.message
        if has_ended:
            cause = message or (log.read_text(errors="replace").strip().splitlines() or ["it ended"])[-1]
            raise LinkError(f"{config.device.address}: {cause}")
        time.sleep(0.005)
    raise LinkError(f"{config.device.address}: the process did not start within {_START_TIMEOUT_S:g} s")
