from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onrig.runtime.run_state.report import Report
from onrig.runtime.supervise.child import Child

PATIENCE_S = 60.0
Start = Callable[..., Child]


PREAMBLE = """
import json, os, signal, sys
def line(kind, message=""):
    return json.dumps({"source": "name", "kind": kind, "message": message}) + chr(10)
def say(text):
    os.write(1, text.encode())
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a child whose module is this program."""
    children: list[Child] = []

    def start(program: str, *arguments: str) -> Child:
        (tmp_path / "program.py").write_text(f"{PREAMBLE}{program}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        children.append(Child("name", "program", list(arguments), tmp_path / "stderr.log"))
        return children[-1]

    yield start
    for child in children:
        child.end(0.0)
        child.close()


def read_reports(child: Child, n: int) -> list[Report]:
    """The next ``n`` reports."""
    reports = list(child.reports())
    while len(reports) < n:
        assert select.select((child,), (), (), PATIENCE_S)[0], "the child sends no report"
        reports += child.reports()
    return reports


SAY_READY = "say(line('ready'))"
WAIT_FOR_SIGNAL = "signal.pause()"


def test_it_runs_a_module_with_its_arguments(start: Start) -> None:
    child = start("say(line('ready', ' '.join(sys.argv[1:]))); sys.exit(7)", "a", "b c")
    assert read_reports(child, 1) == [Report("name", "ready", "a b c")]
    assert child.end(PATIENCE_S, send_sigterm=False) == 7
    assert child.poll() == 7


def test_reports_not_yet_requested_are_kept(start: Start) -> None:
    """Waiting for ``ready`` leaves the warnings that follow to the next reader."""
    child = start(f"say('noise' + chr(10) + line('ready') + 3 * line('warning')); {WAIT_FOR_SIGNAL}")
    assert select.select((child,), (), (), PATIENCE_S)[0]
    assert next(child.reports()).kind == "ready"
    assert [r.kind for r in read_reports(child, 3)] == ["warning"] * 3
    assert list(child.reports()) == []


def test_a_fragmented_report_is_reassembled(start: Start) -> None:
    child = start(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); text = line('event', 'whole');"
        f"say(text[:20]); signal.sigwait([signal.SIGUSR1]); say(text[20:]); {WAIT_FOR_SIGNAL}"
    )
    assert select.select((child,), (), (), PATIENCE_S)[0]
    assert list(child.reports()) == []
    os.kill(child.pid, signal.SIGUSR1)
    assert read_reports(child, 1) == [Report("name", "event", "whole")]


def test_it_is_asked_to_end_and_given_time(start: Start) -> None:
    child = start(f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); {SAY_READY}; {WAIT_FOR_SIGNAL}")
    read_reports(child, 1)
    assert child.poll() is None
    assert child.end(PATIENCE_S) == 3


def test_it_is_killed_when_it_does_not_end(start: Start) -> None:
    child = start(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {SAY_READY}\nwhile True: {WAIT_FOR_SIGNAL}")
    read_reports(child, 1)
    assert child.end(0.05) == -signal.SIGKILL


def test_processes_that_it_started_are_killed_with_it(start: Start) -> None:
    child = start(
        "import subprocess; program = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        f"say(line('ready', str(program.pid))); {WAIT_FOR_SIGNAL}"
    )
    (ready,) = read_reports(child, 1)
    pidfd = os.pidfd_open(int(ready.message))
    child.kill()
    assert select.select((pidfd,), (), (), PATIENCE_S)[0], "its process is still running"
    os.close(pidfd)
    assert child.end(PATIENCE_S, send_sigterm=False) == -signal.SIGKILL
    child.kill()  # without effect


def test_its_end_can_be_awaited_without_a_request(start: Start) -> None:
    child = start(f"{SAY_READY}; {WAIT_FOR_SIGNAL}")
    read_reports(child, 1)
    assert child.end(0.05, send_sigterm=False) == -signal.SIGKILL, "it was never asked to end, so it was killed"


def test_ctrl_c_in_the_terminal_does_not_reach_it(start: Start) -> None:
    child = start('print(\'{"source":"%d","kind":"event"}\' % (os.getsid(0) == os.getpid()))')
    assert read_reports(child, 1)[0].source == "1"


def test_its_stderr_is_kept(start: Start, tmp_path: Path) -> None:
    child = start("raise SystemExit('why it ended')")
    assert child.end(PATIENCE_S, send_sigterm=False) == 1
    assert (tmp_path / "stderr.log").read_text() == "why it ended\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures")
def test_its_memory_and_processor_time_are_measured(start: Start) -> None:
    child = start(
        f"x = bytearray(32 << 20); import time\nwhile time.process_time() < 0.1: pass\n{SAY_READY}; {WAIT_FOR_SIGNAL}"
    )
    read_reports(child, 1)
    child.poll()
    assert 32 < child.peak_rss_mb < 500
    assert child.cpu_s > 0.05


def test_output_without_a_line_end_takes_no_memory_and_the_next_report_is_received(start: Start) -> None:
    child = start(f"[say('.' * 65536) for _ in range(40)]; say(chr(10) + line('event', 'after')); {WAIT_FOR_SIGNAL}")
    assert read_reports(child, 1) == [Report("name", "event", "after")]
    assert len(child._partial_line) == 0


def test_a_process_that_writes_endlessly_blocks_no_one(start: Start) -> None:
    child = start("while True: say('.' * 65536)")
    assert select.select((child,), (), (), PATIENCE_S)[0]
    for _ in range(5):
        assert list(child.reports()) == []
    assert len(child._partial_line) <= 65536


def test_its_processes_know_their_parents(start: Start) -> None:
    child = start("say(line('event', os.environ['ONRIG_PARENT'] + ' ' + str(os.getppid())))")
    assert read_reports(child, 1)[0].message == f"{os.getpid()} {os.getpid()}"
