"""Write the contract of a rig into anybody's ONNX file.

The file is then judged as `policy check` does; exit code 2 if the rig would refuse it, with the reason.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """A policy (ONNX): observations in SI to actions in SI (docs/third-party-policies.md)."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    out: File | None = None
    """Stamped file (default: in place)."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Stamp a policy; returns the exit code."""
    from onrig.tools.policy import stamp

    return stamp(options.file, options.out or options.file, options.config, options.set)
