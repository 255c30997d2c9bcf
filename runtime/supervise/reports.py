"""What a run's supervisor writes down: reports into ``events.jsonl``, errors, and the fault it has come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import Report

_ME: Final = "supervisor"
_FILED: Final = ("error", "warning", "fault", "transition", "event")
_NO_FAULT: Final = (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.INTERRUPTED)

OnReport = Callable[[Report], None]


class Reports:
    """Takes the reports of all processes of a run, and hands them on to whoever watches."""

    def __init__(self, path: Path, on_report: OnReport) -> None:
        self._events = EventFile(path)
        self._on_report = on_report
        self.errors: list[str] = []
        self.fault: FaultName | None = None
        """The latched fault, by what the loop and the supervisor said last."""
        self.listeners: list[OnReport] = []
        """Who else hears every report, once it is filed."""
        self.write = self._events.write

    def note(self, report: Report) -> None:
        """Take one report."""
        self._events.look()
        fault = report.values.get("fault")
        if report.kind == "error":
            self.errors.append(report.message)
        if report.kind in ("error", "fault", "transition") and fault is not None:
            self.fault = FaultName(str(fault))
        elif report.kind == "transition":
            self.fault = None  # re-armed
        if report.kind in _FILED:
            self.write(report.kind, source=report.source, message=report.message, **report.values)
        for listener in self.listeners:
            listener(report)
        self._show(report)

    def _show(self, report: Report) -> None:
        try:
            self._on_report(report)
        except OSError:  # whoever was watching is gone; the rig goes on
            pass
        except Exception as error:  # a run does not die of what it shows
            self._on_report = lambda report: None
            self.write("display_failed", error=f"{type(error).__name__}: {error}")

    def warn(self, message: str) -> None:
        """Say something of the supervisor's own."""
        self.note(Report(_ME, "warning", message))

    def latch(self, fault: FaultName, detail: str) -> None:
        """Note what the run has come to, with its cause and hint."""
        entry = FAULTS[fault]
        values: dict[str, float | int | str | bool | None]
        values = {"fault": fault.value, "cause": entry.cause, "hint": entry.hint}
        self.note(Report(_ME, "fault", f"{entry.cause} ({detail}); {entry.hint}", values))

    def fault_of(self, code: int) -> str | None:
        """Name the fault that ended a run with this exit code, if one did."""
        return self.fault.value if self.fault is not None and code not in _NO_FAULT else None

    def close(self, code: int, reason: str) -> None:
        """Write the last line."""
        self.write("ended", code=code, reason=reason, fault=self.fault_of(code))
        self._events.close()
