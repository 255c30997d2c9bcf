from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.run_state.running import Running, running_rigs
from onrig.runtime.shm.board import Word
from onrig.runtime.view.reader import ViewReader
from tests.lab.rig.processes import PATIENCE_S, Process, until
from tests.lab.rig.run import ENDLESS
from tests.tools.web.screenshots import find_address


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--run-dir", str(tmp_path / "run"), "--web"]
    for setting in ENDLESS:
        command += ["--set", setting]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def page_process_of(run: subprocess.Popen[str]) -> Process:
    """The process that serves the page of a run."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    (pid,) = [int(p) for p in children if b"onrig.tools.web.process" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return Process(pid)


def test_a_run_continues_when_its_page_is_killed(run: subprocess.Popen[str], tmp_path: Path) -> None:
    assert run.stdout is not None
    find_address(run.stdout)
    page = page_process_of(run)
    run_process = Process(run.pid)
    folder = tmp_path / "run"

    def find_running() -> Running | None:
        return next((r for r in running_rigs() if r.folder == folder and (r.shm / "view").exists()), None)

    with ViewReader.attach(until(find_running, "the run to begin", run_process)) as view:
        until(lambda: view.word(Word.TICK) > 50, "the loop to move", run_process)
        page.kill(signal.SIGKILL)
        page.wait()
        tick_before = view.word(Word.TICK)
        until(lambda: view.word(Word.TICK) > tick_before + 200, "the loop to go on", run_process)
        figures = until(view.figures, "figures", run_process)
        assert figures.dropped == 0
    run.terminate()
    assert run.wait(PATIENCE_S) == 130
    page.close()
    run_process.close()
