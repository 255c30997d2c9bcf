"""Storage of a run's reports: ``events.jsonl``, errors, and the latched fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.events import EventFile
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import Report

_SOURCE: Final = "supervisor"
_LOGGED_KINDS: Final = ("error", "warning", "fault", "transition", "event", "policy_withheld")
_CODES_WITHOUT_FAULT: Final = (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.INTERRUPTED)

ReportCallback = Callable[[Report], None]


class Reports:
    """Storage for the reports of a run's processes, which also forwards them to the display."""

    def __init__(self, path: Path, on_report: ReportCallback) -> None:
        self._events = EventFile(path)
        self._log = path.with_name("stderr.log")
        self._on_report = on_report
        self.errors: list[str] = []
        self.fault: FaultName | None = None
        """Latched fault, according to the last report about it from the loop or the supervisor."""
        self.listeners: list[ReportCallback] = []
        """Callbacks that receive every report once it has been stored."""
        self.write = self._events.write

    def record(self, report: Report) -> None:
        """Store and forward one report."""
        self._events.poll()
        fault = report.values.get("fault")
        if report.kind == "error":
            self.errors.append(report.message)
        if report.kind in ("error", "fault", "transition") and fault is not None:
            self.fault = FaultName(str(fault))
        elif report.kind == "transition":
            self.fault = None  # re-armed
        if report.kind in _LOGGED_KINDS:
            self.write(report.kind, source=report.source, message=report.message, **report.values)
        for listener in self.listeners:
            listener(report)
        self._forward(report)

    def _forward(self, report: Report) -> None:
        try:
            self._on_report(report)
        except OSError:  # the display has closed; the run continues
            pass
        except Exception as error:  # a failing display must not end a run
            self._on_report = lambda report: None
            self.write("display_failed", error=f"{type(error).__name__}: {error}")

    def warn(self, message: str) -> None:
        """Report a warning of the supervisor itself."""
        self.record(Report(_SOURCE, "warning", message))

    def latch(self, fault: FaultName, detail: str) -> None:
        """Report a fault found by the supervisor, with cause and hint."""
        entry = FAULTS[fault]
        values: dict[str, float | int | str | bool | None]
        values = {"fault": fault.value, "cause": entry.cause, "hint": entry.hint}
        self.record(Report(_SOURCE, "fault", f"{entry.cause} ({detail}); {entry.hint}", values))

    def end_reason(self, name: str, code: int) -> str:
        """Return why a process ended: the last error reported, or a description of the exit code if there is none or
        the code is not one of ``ExitCode``."""
        if self.errors and code in set(ExitCode):
            return self.errors[-1]
        description = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"{name} {description}; see {self._log}"

    def fault_name(self, code: int) -> str | None:
        """Return the name of the fault that ended a run with this exit code, if any."""
        return self.fault.value if self.fault is not None and code not in _CODES_WITHOUT_FAULT else None

    def close(self, code: int, reason: str) -> None:
        """Write the final event."""
        self.write("ended", code=code, reason=reason, fault=self.fault_name(code))
        self._events.close()
