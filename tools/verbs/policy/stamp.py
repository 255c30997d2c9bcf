"""Write the contract of a rig into an ONNX file.

The stamped policy is then checked as with `onrig policy check`. If the rig would refuse it, the reason is printed and
the exit code is 2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """A policy (ONNX) that maps observations to actions, both in SI units (docs/third-party-policies.md)."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    out: File | None = None
    """File for the stamped policy (default: FILE itself)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Stamp a policy and return the exit code."""
    from onrig.tools.policy import stamp

    return stamp(options.file, options.out or options.file, options.config, options.set)
