"""What a process of a run tells its supervisor: one JSON object per line on standard output.

A closed or clogged pipe never stops the process that reports.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import Final

import msgspec

from onrig.runtime.printable import printable
from onrig.runtime.run_state.faults import FaultName

_PIPE: Final = 1
_SHORT: Final = 500
_LONGEST: Final = select.PIPE_BUF
_RESERVED: Final = frozenset({"t_unix_s", "kind", "source", "message"})
"""Names of an event's own fields."""
_FAULTS: Final = frozenset({None, *FaultName})
ALIVE: Final = "alive"
"""Kind of a report that says nothing else."""
_to_a_person = False


class Report(msgspec.Struct, frozen=True):
    """One line: who, what, and a short text or figures that go with it."""

    source: str
    kind: str
    """``ready``, ``warning``, ``error``, ``progress``, ``transition``, ``fault``, ``event`` or ``alive``."""
    message: str = ""
    values: dict[str, float | int | str | bool | None] = {}


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Report)


def speak_to_a_person() -> None:
    """From now on report in plain lines: a person started this process, no supervisor reads its output."""
    global _to_a_person
    _to_a_person = True


def report(source: str, kind: str, message: str = "", **values: float | int | str | bool | None) -> bool:
    """Write one report; dropped (False) where nobody reads it, cut short beyond 4 KiB."""
    if _to_a_person:
        print(f"{source}: {message}", file=sys.stderr if kind in ("warning", "error") else sys.stdout, flush=True)
        return True
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        line = _ENCODER.encode(Report(source, kind, message, values)) + b"\n"
        if len(line) > select.PIPE_BUF:
            line = _ENCODER.encode(Report(source, kind, f"{message[:_SHORT]}...")) + b"\n"
        # A pipe that is ready takes that much whole and at once; one that is full would block.
        if select.select((), (_PIPE,), (), 0)[1]:
            os.write(_PIPE, line)
            return True
    return False


def show_life(source: str) -> None:
    """Tell the supervisor, who counts every report, that there is progress; a person is spared it."""
    if not _to_a_person:
        report(source, ALIVE)


def parse_report(line: bytes) -> Report | None:
    """Read one line; None where it is not a report (some library's own output), or none that can be filed."""
    try:
        found = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.values.keys() & _RESERVED or found.values.get("fault") not in _FAULTS:
        return None
    # What a process says may be what a device or a learner said to it.
    values = {printable(k): printable(v) if isinstance(v, str) else v for k, v in found.values.items()}
    return Report(printable(found.source), found.kind, printable(found.message, _LONGEST), values)
