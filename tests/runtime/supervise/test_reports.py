"""Reports of a run are recorded even if their display fails."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.run_state.report import Report
from onrig.runtime.supervise.reports import Reports


def events(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("error", [ValueError("markup"), UnicodeEncodeError("ascii", "é", 0, 1, "no"), KeyError("x")])
def test_a_run_does_not_fail_because_of_its_display(error: Exception, tmp_path: Path) -> None:
    shown_reports: list[Report] = []

    def show_and_fail(report: Report) -> None:
        shown_reports.append(report)
        raise error

    reports = Reports(tmp_path / "events.jsonl", show_and_fail)
    for message in ("[/x]", "and on"):
        reports.record(Report("device", "warning", message))
    reports.close(0, "completed")
    assert [report.message for report in shown_reports] == ["[/x]"], "a display that failed is not tried again"
    written_events = events(tmp_path / "events.jsonl")
    assert [e.get("message") for e in written_events if e["kind"] == "warning"] == ["[/x]", "and on"]
    (failure_event,) = [e for e in written_events if e["kind"] == "display_failed"]
    assert str(failure_event["error"]).startswith(type(error).__name__)


def test_a_display_that_is_gone_receives_nothing_more(tmp_path: Path) -> None:
    def show_and_fail(report: Report) -> None:
        raise BrokenPipeError

    reports = Reports(tmp_path / "events.jsonl", show_and_fail)
    reports.warn("something")
    reports.close(0, "completed")
    assert [e["kind"] for e in events(tmp_path / "events.jsonl")] == ["warning", "ended"]
