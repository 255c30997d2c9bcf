"""Let a board's own policy act, by renewing its lease, and log its frames.

The policy must be built into the board (hw/firmware/README.md). It acts within the device's limits, tightened to the
configuration's; no shield acts, and nothing learns. Without the renewals of this command the board is safe after the
lease and one period. Ctrl-C disarms it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Port, Seconds, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """The policy (ONNX) that was built into the board."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    device: Port | None = None
    duration: Seconds | None = None
    """Device time after which the board is disarmed (default: on Ctrl-C)."""
    log: File | None = None
    """CSV file of the frames, in SI units."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Renew the lease; returns the exit code."""
    from onrig.tools.policy_renewal import RenewalOptions, renew_policy

    where = RenewalOptions(options.file, options.config, options.set, options.device)
    return renew_policy(where, options.duration, options.log)
