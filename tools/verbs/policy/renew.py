"""Let a board's policy act by renewing the lease, and record the board's frames.

The policy must be built into the board (hw/firmware/README.md). It acts within the limits of the device and the
configuration, without a shield or a learner. When this command stops renewing the lease, the board sets its safe
outputs after the lease plus one period. Ctrl-C disarms the board.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Port, Seconds, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """Policy (ONNX) that was built into the board."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    device: Port | None = None
    duration: Seconds | None = None
    """Device time after which the board is disarmed (default: on Ctrl-C)."""
    log: File | None = None
    """CSV file for the frames, in SI units."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Renew the lease and return the exit code."""
    from onrig.tools.policy_renewal import RenewalOptions, renew_policy

    renewal_options = RenewalOptions(options.file, options.config, options.set, options.device)
    return renew_policy(renewal_options, options.duration, options.log)
