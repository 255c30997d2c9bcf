"""Check whether this machine is ready for a rig: kernel, permissions, ports, keys, wheels.

Wheels (compiled packages) are checked first, each in a separate process, before they are imported here.

Exit codes: 0 no check failed, 2 usage or configuration, 3 a check failed.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from onrig.tools.options import Config, Folder, Json, Overrides, Port, Trust
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config | None = None
    """Path or shipped name of the configuration to run on this machine."""
    _: KW_ONLY
    device: Port | None = None
    """Serial port, in place of the configured device."""
    set: Overrides = ()
    trust: Trust = False
    run_dir: Folder = Path("runs")
    """Folder in which run folders are created; its disk is checked."""
    quick: bool = False
    """Measure the loop for 1 s instead of 10 s."""
    json: Json | None = None


def main(options: Options) -> int:
    """Examine the machine and return the exit code."""
    from onrig.tools.doctor.examination import examine_machine, looks_like_configuration

    if options.config is None and options.json not in (None, "-") and looks_like_configuration(options.json):
        name = options.json
        return complain("doctor", f"--json: '{name}' is a configuration; put it first: onrig doctor {name} --json")
    if options.config is None and options.set:
        return complain("doctor", "--set needs a configuration to change")
    return examine_machine(
        options.config, options.set, options.device, options.run_dir, options.json, quick=options.quick
    )
