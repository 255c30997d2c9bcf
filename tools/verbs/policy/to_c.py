"""Write a policy as a C99 function for a microcontroller, with a check against onnxruntime.

Exit code 2 if the policy cannot be translated; the reason is printed (docs/third-party-policies.md).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import File


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    file: File
    """A policy (ONNX) with a contract."""
    _: KW_ONLY
    out: File | None = None
    """C file, whose name is the prefix of the function's name (default: named like the policy, in the current folder).
    """


def main(options: Options) -> int:
    """Translate a policy; returns the exit code."""
    from pathlib import Path

    from onrig.tools.policy import to_c

    return to_c(options.file, options.out or Path(options.file.with_suffix(".c").name))
