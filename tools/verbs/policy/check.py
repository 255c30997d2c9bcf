"""Check whether a rig would admit a policy.

If the rig would refuse it, the reason is printed and the exit code is 2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """A policy (ONNX)."""
    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Check a policy and return the exit code."""
    from onrig.tools.policy import check

    return check(options.file, options.config, options.set)
