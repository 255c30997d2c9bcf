"""Test a device against the numbered rules of hw/PROTOCOL.md, and list the rules that it breaks.

If PORT is given, the device on this serial port reports its rig. A CONFIG instead describes the rig and the connection
to its device, or to a twin or driver, which is then started. Most checks leave the actuators at their safe output. The
others command a share (--share) of each actuator's range in both directions, for a few periods at a time, and let the
lease expire; no shield protects the rig during these checks. Checks that need an operator (e-stop, sensor, power) run
only with --hands. The exit code is 4 if the device broke a rule or did not answer.
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
    """Serial port of the device, or its configuration (FILE.yaml, or a shipped name)."""
    _: KW_ONLY
    only: Annotated[tuple[str, ...], Value("RULE")] = ()
    """Run only the checks of this rule (P407), or of all rules with this prefix (P4); may be repeated."""
    list: bool = False
    """List the rules, and send nothing to a device."""
    hands: bool = False
    """Also run the checks that need an operator, who receives instructions."""
    share: Annotated[float, Value("SHARE")] = 0.1
    """Share of each actuator's range that the checks command."""
    yes: bool = False
    """Do not ask before driving a device."""
    baud: Count = 921_600
    """Baud rate of PORT."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Test the device and return the exit code."""
    if not 0.0 < options.share <= 1.0:
        return complain("conformance", f"--share: expected more than 0 and at most 1, got {options.share:g}")
    from onrig.tools.conformance import show_list

    if options.list:
        return show_list(options.only)
    if options.device is None:
        return complain("conformance", "required: the PORT of a device, a CONFIG, or --list")
    return _examine(options, options.device)


def _examine(options: Options, device: str) -> int:
    from onrig.hw.line import Serial
    from onrig.hw.transport import LinkError
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.tools.conformance import Selection, confirm_motion, examine
    from onrig.tools.device_process import is_config_name, open_device_line
    from onrig.tools.load import load, print_problems
    from onrig.tools.ports import missing_port_problem

    selection = Selection(options.only, options.share, options.hands)
    if not is_config_name(device):
        if port_problem := missing_port_problem(device):
            return complain("conformance", f"{device}: {port_problem}", ExitCode.HARDWARE)
        confirm = None if options.yes else partial(confirm_motion, options.share, device)
        return examine(Serial(device, options.baud), None, selection, confirm)
    try:
        config = load(device, options.set)
    except ConfigError as error:
        return print_problems(error)
    must_confirm = not options.yes and config.device.twin is None
    confirm = partial(confirm_motion, options.share, config.device.address) if must_confirm else None
    try:
        with open_device_line(config) as line:
            return examine(line, config.rig, selection._replace(period_us=config.period_us), confirm)
    except LinkError as error:
        return complain("conformance", str(error), ExitCode.HARDWARE)
