"""Reports of a run's processes to the supervisor: one JSON object per line on standard output.

A closed or full pipe never stops the reporting process.
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

_REPORT_FD: Final = 1
_SHORTENED_LENGTH: Final = 500
_MAX_REPORT_BYTES: Final = select.PIPE_BUF
_RESERVED_FIELDS: Final = frozenset({"t_unix_s", "kind", "source", "message"})
"""Reserved field names of an event."""
_VALID_FAULTS: Final = frozenset({None, *FaultName})
HEARTBEAT: Final = "alive"
"""Kind of a heartbeat report."""
_uses_plain_output = False


class Report(msgspec.Struct, frozen=True):
    """One line: source, kind, and a short text or values."""

    source: str
    kind: str
    """``ready``, ``warning``, ``error``, ``progress``, ``transition``, ``fault``, ``event`` or ``alive``."""
    message: str = ""
    values: dict[str, float | int | str | bool | None] = {}


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Report)


def use_plain_output() -> None:
    """Report in plain lines from now on, for a process that runs without a supervisor."""
    global _uses_plain_output
    _uses_plain_output = True


def report(source: str, kind: str, message: str = "", **values: float | int | str | bool | None) -> bool:
    """Write one report, shortened if it exceeds 4 KiB; return False if it is dropped because the pipe is closed or
    full."""
    if _uses_plain_output:
        print(f"{source}: {message}", file=sys.stderr if kind in ("warning", "error") else sys.stdout, flush=True)
        return True
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        line = _ENCODER.encode(Report(source, kind, message, values)) + b"\n"
        if len(line) > select.PIPE_BUF:
            line = _ENCODER.encode(Report(source, kind, f"{message[:_SHORTENED_LENGTH]}...")) + b"\n"
        # A pipe that polls as ready accepts this many bytes atomically; writing to a full one would block.
        if select.select((), (_REPORT_FD,), (), 0)[1]:
            os.write(_REPORT_FD, line)
            return True
    return False


def send_heartbeat(source: str) -> None:
    """Send a heartbeat to the supervisor; does nothing without one."""
    if not _uses_plain_output:
        report(source, HEARTBEAT)


def parse_report(line: bytes) -> Report | None:
    """Parse one line; return None if it is not a report (a library's output, for example) or cannot be stored."""
    try:
        decoded_report = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if decoded_report.values.keys() & _RESERVED_FIELDS or decoded_report.values.get("fault") not in _VALID_FAULTS:
        return None
    # A report may quote text from a device or a learner.
    values = {printable(k): printable(v) if isinstance(v, str) else v for k, v in decoded_report.values.items()}
    return Report(
        printable(decoded_report.source),
        decoded_report.kind,
        printable(decoded_report.message, _MAX_REPORT_BYTES),
        values,
    )
