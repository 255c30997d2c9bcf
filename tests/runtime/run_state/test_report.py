from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.run_state import report as report_module
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.run_state.report import Report, parse_report, report
from onrig.runtime.supervise.reports import Reports


class Pipe:
    """Reports as read by a process's supervisor."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def lines(self) -> list[bytes]:
        try:
            return os.read(self.read_end, 1 << 20).splitlines()
        except BlockingIOError:
            return []


def assert_returns_at_once(action: Callable[[], object]) -> None:
    """Let it report although no one reads."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive(), "it waits for a reader"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    monkeypatch.setattr(report_module, "_REPORT_FD", pipe.write_end)
    yield pipe
    os.close(pipe.read_end)
    os.close(pipe.write_end)


def test_a_report_arrives_as_one_line(pipe: Pipe) -> None:
    report("twin", "ready", "on\ntwo lines: é", path="/dev/pts/3", n=3, share=0.5, fine=True, nothing=None)
    (line,) = pipe.lines()
    values: dict[str, float | int | str | bool | None] = {"path": "/dev/pts/3", "n": 3, "share": 0.5}
    values |= {"fine": True, "nothing": None}
    assert parse_report(line) == Report("twin", "ready", "on\\ntwo lines: é", values), "shown on one line"


def test_a_non_finite_figure_arrives_as_none(pipe: Pipe) -> None:
    report("replay", "progress", normalized=float("nan"))
    (line,) = pipe.lines()
    parsed = parse_report(line)
    assert parsed is not None
    assert parsed.values == {"normalized": None}


def test_an_unread_pipe_blocks_no_one(pipe: Pipe) -> None:
    os.close(pipe.read_end)
    report("control", "warning", "no SCHED_FIFO")
    pipe.read_end = os.dup(pipe.write_end)


def test_a_full_pipe_blocks_no_one_and_only_complete_lines_get_through(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.write_end, fcntl.F_SETPIPE_SZ, 8192)

    def report_many() -> None:
        for n in range(100):
            report("replay", "progress", "x" * 300, n=n)

    assert_returns_at_once(report_many)
    numbers = [parsed.values["n"] for parsed in map(parse_report, pipe.lines()) if parsed is not None]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 100


def test_a_long_message_is_truncated_to_what_a_pipe_takes_at_once(pipe: Pipe) -> None:
    assert_returns_at_once(lambda: report("learner", "error", "\x01" * 100_000))
    (line,) = pipe.lines()
    assert len(line) < select.PIPE_BUF
    parsed = parse_report(line)
    assert parsed is not None
    assert parsed.message.endswith("...")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Traceback (most recent call last):",
        b"{}",
        b'{"source":1,"kind":"x"}',
        b'{"source":"\xff","kind":"x"}',
        b"[" * 100_000,
    ],
    ids=["empty", "text", "fields missing", "wrong type", "no UTF-8", "nested without end"],
)
def test_another_kind_of_line_is_not_a_report(line: bytes) -> None:
    assert parse_report(line) is None


@given(st.binary(max_size=80))
def test_no_line_makes_reading_fail(line: bytes) -> None:
    parse_report(b'{"source":"' + line)
    parse_report(line)


@pytest.mark.parametrize("name", ["source", "kind", "message", "t_unix_s", "fault"])
def test_an_invalid_report_is_ignored(tmp_path: Path, name: str) -> None:
    """The learner is not trusted: none of its lines may crash the reader."""
    line = b'{"source":"learner","kind":"error","values":{"%s":"bogus"}}'
    assert parse_report(line % name.encode()) is None
    parsed_report = parse_report(line % b"policy")
    assert parsed_report is not None
    reports = Reports(tmp_path / "events.jsonl", lambda report: None)
    reports.record(parsed_report)
    reports.close(0, "")


@pytest.mark.parametrize("fault", FaultName)
def test_every_fault_can_be_reported(fault: FaultName) -> None:
    line = b'{"source":"control","kind":"fault","values":{"fault":"%s"}}' % fault.value.encode()
    assert parse_report(line) == Report("control", "fault", values={"fault": fault.value})
