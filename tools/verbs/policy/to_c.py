"""Write a policy as a C99 function for a microcontroller, with a check against onnxruntime.

If the policy cannot be translated (docs/third-party-policies.md), the reason is printed and the exit code is 2.
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
    """C file to write; its name without .c is the prefix of the function's name (default: the policy's name, in the
    current folder).
    """


def main(options: Options) -> int:
    """Translate a policy and return the exit code."""
    from pathlib import Path

    from onrig.tools.policy import to_c

    return to_c(options.file, options.out or Path(options.file.with_suffix(".c").name))
