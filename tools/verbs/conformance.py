"""Run the numbered rules of hw/PROTOCOL.md against a device, and name those that it breaks.

PORT is a serial port, whose device says itself what it is; CONFIG names the line of a device, which must then be the
configuration's rig, or a twin or driver, which is started. Most checks leave the actuators at their safe output. The
others command --share of the way from there to the device's own limits, for some periods at a time, to and fro, and let
the lease run out; nothing guards the rig's state meanwhile. What needs a person (e-stop, sensor, power) is asked for
with --hands. Exit code 4: a rule is broken, or no device answered.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated

from onrig.tools.options import Count, Overrides, Trust, Value
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    device: Annotated[str, Value("PORT|CONFIG", complete="port")] | None = None
    """Serial port of the device, or the configuration that names it (FILE.yaml, or a shipped one)."""
    _: KW_ONLY
    only: Annotated[tuple[str, ...], Value("RULE")] = ()
    """Only the checks of this rule (P407), or of all that begin so (P4); may be repeated."""
    list: bool = False
    """List the rules, drive nothing."""
    hands: bool = False
    """Ask for what needs a person."""
    share: Annotated[float, Value("SHARE")] = 0.1
    """Share of each actuator's range that checks command."""
    yes: bool = False
    """Do not ask before driving a device."""
    baud: Count = 921_600
    """Baud rate of PORT."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Put the device to the test; returns the exit code."""
    if not 0.0 < options.share <= 1.0:
        return complain("conformance", f"--share: expected more than 0 and at most 1, got {options.share:g}")
    from onrig.tools.conformance import show_list

    if options.list:
        return show_list(options.only)
    if options.device is None:
        return complain("conformance", "name the PORT of a device, or a CONFIG (or --list)")
    return _examine(options, options.device)


def _examine(options: Options, device: str) -> int:
    from onrig.hw.line import Serial
    from onrig.hw.transport import LinkError
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.tools.conformance import Selection, confirmed, examine
    from onrig.tools.device_process import line_to, names_config
    from onrig.tools.load import explain, load
    from onrig.tools.ports import missing_port

    selection = Selection(options.only, options.share, options.hands)
    if not names_config(device):
        if missing := missing_port(device):
            return complain("conformance", f"{device}: {missing}", ExitCode.HARDWARE)
        confirm = None if options.yes else partial(confirmed, options.share, device)
        return examine(Serial(device, options.baud), None, selection, confirm)
    try:
        config = load(device, options.set)
    except ConfigError as error:
        return explain(error)
    asks = not options.yes and config.device.twin is None
    confirm = partial(confirmed, options.share, config.device.place) if asks else None
    try:
        with line_to(config) as line:
            return examine(line, config.rig, selection._replace(period_us=config.period_us), confirm)
    except LinkError as error:
        return complain("conformance", str(error), ExitCode.HARDWARE)
