"""``onrig bench WHAT``: measures a part of Onrig, with peers beside it where they are installed."""

from __future__ import annotations

import importlib
import sys
from typing import Final

WHAT: Final = {
    "replay": "insert, sample and update of the memory of experiences, beside other libraries' buffers",
}

_USAGE: Final = "usage: onrig bench WHAT [--json FILE] [ARGUMENT ...]      (onrig bench WHAT --help tells more)\n\n"


def main(arguments: list[str]) -> int:
    """Run one benchmark; returns the exit code, 0 whether or not its checks hold."""
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, WHAT))
        sys.stdout.write(_USAGE + "".join(f"  {what:<{width}}  {does}\n" for what, does in WHAT.items()))
        if arguments:
            raise SystemExit(0)
        return 2
    what = arguments[0]
    if what not in WHAT:
        sys.stderr.write(f"onrig bench: there is no benchmark '{what}'; there are: {', '.join(WHAT)}\n")
        return 2
    code: int = importlib.import_module(f"tools.benchmarks.{what}").main(arguments[1:])
    return code
