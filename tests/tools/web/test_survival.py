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
from tests.tools.web.screenshots import address_in


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


def page_of(run: subprocess.Popen[str]) -> Process:
    """The process that serves its page."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    (pid,) = [int(p) for p in children if b"onrig.tools.web.process" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return Process(pid)


def test_a_run_goes_on_when_its_page_is_killed(run: subprocess.Popen[str], tmp_path: Path) -> None:
    assert run.stdout is not None
    address_in(run.stdout)
    page = page_of(run)
    whole = Process(run.pid)
    folder = tmp_path / "run"

    def found() -> Running | None:
        return next((r for r in running_rigs() if r.folder == folder and (r.shm / "view").exists()), None)

    with ViewReader.attach(until(found, "the run to begin", whole)) as view:
        until(lambda: view.word(Word.TICK) > 50, "the loop to move", whole)
        page.kill(signal.SIGKILL)
        page.wait()
        before = view.word(Word.TICK)
        until(lambda: view.word(Word.TICK) > before + 200, "the loop to go on", whole)
        figures = until(view.figures, "figures", whole)
        assert figures.dropped == 0
    run.terminate()
    assert run.wait(PATIENCE_S) == 130
    page.close()
    whole.close()
