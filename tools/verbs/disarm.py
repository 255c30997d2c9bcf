"""Disarm the device on a port after its run has ended.

Sets the outputs of the device to their safe values. To stop a running rig, use `onrig stop --now`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from onrig.tools.options import Count, Overrides, Seconds, Trust, Value
from onrig.tools.terminal import complain

if TYPE_CHECKING:
    from onrig.hw.line import Line


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    port: Annotated[str, Value("PORT|CONFIG", complete="port")]
    """Serial port of the device, or the configuration of its rig."""
    _: KW_ONLY
    baud: Count = 921_600
    """Baud rate."""
    wait: Seconds = 5.0
    """Seconds to wait for the device."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Disarm the device and return the exit code."""
    if not 0 < options.wait < math.inf:
        return complain("disarm", f"--wait: expected a number of seconds above 0, got {options.wait:g}")
    import time

    from onrig.hw.disarm import disarm
    from onrig.hw.line import Serial
    from onrig.hw.transport import LinkError
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.tools.ports import missing_port_problem

    line: Line | None = None
    try:
        with contextlib.ExitStack() as stack:
            line = stack.enter_context(_line(options))
            if line is None or not line.allows_disarm:
                device = (
                    "a twin, which ends with its run and needs no disarming"
                    if line is None
                    else "on a transport that `onrig disarm` does not support"
                )
                return complain("disarm", f"{options.port}: the device is {device}")
            result = disarm(stack.enter_context(contextlib.closing(line.open())), time, options.wait)
    except ConfigError as error:
        return complain("disarm", str(error))
    except LinkError as error:
        port_problem = missing_port_problem(line.path) if isinstance(line, Serial) else None
        cause = error if line is None or port_problem is None else f"{line.address}: {port_problem}"
        lease_note = "" if line is None else "the device sets its safe outputs when its lease expires; "
        advice = f"unconfirmed: {lease_note}inspect the rig"
        sys.stderr.write(f"onrig disarm: {cause}; {advice}\n")
        return ExitCode.HARDWARE
    remark = "; it had sent no frames, and was configured first" if result.was_configured else ""
    print(f"{line.address}: device '{result.rig}' is disarmed, confirmed by a state frame{remark}")
    return ExitCode.OK


@contextlib.contextmanager
def _line(options: Options) -> Iterator[Line | None]:
    """Context manager that yields the line to a port or to the device of a configuration, and starts the device's
    driver if it has one.  Yields None for a twin.  Raises ConfigError and LinkError.
    """
    from onrig.tools.device_process import is_config_name, open_device_line

    if not is_config_name(options.port):
        from onrig.hw.line import Serial

        yield Serial(options.port, options.baud)
        return
    from onrig.tools.load import load

    config = load(options.port, options.set)
    if config.device.twin is not None:
        yield None
    else:
        with open_device_line(config) as line:
            yield line


if __name__ == "__main__":  # the systemd unit of `onrig service` calls this program
    from onrig.tools.options import run_verb

    sys.exit(run_verb("disarm", sys.argv[1:]))
