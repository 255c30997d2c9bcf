"""The learner's process: what it does about the end of a link."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from onrig.learner import main
from onrig.learner.attachment import Connection
from onrig.learner.states import StatesConflictError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClosed, RequestRejected
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run


class Process:
    """One that ends as told, and notes what is asked of it."""

    ends: list[tuple[Exception | None, bool]]
    asked: list[str]
    folders: ClassVar[list[Path]] = []

    def __init__(
        self, config: RunConfig, connection: Connection, state: Path, stop: list[bool], start: Path | None
    ) -> None:
        self._stop, self.result_accepted = stop, False
        self.folders.append(state)

    def run(self) -> None:
        how, self.result_accepted = self.ends.pop(0)
        self.asked.append("run")
        if how is not None:
            self._stop[0] = "stop" in str(how)
            raise how

    def save(self) -> None:
        self.asked.append("save")

    def close(self) -> None:
        self.asked.append("close")


@pytest.mark.parametrize(
    ("ends", "code", "asked"),
    [
        ([(LinkClosed("asked to stop"), True)], ExitCode.OK, ["run", "save", "close"]),
        ([(LinkClosed("silent"), True)], ExitCode.HARDWARE, ["run", "save", "close"]),
        ([(RequestRejected("malformed"), False)], ExitCode.INTERNAL, ["run", "close"]),
        (
            [(RequestRejected("a new memory"), True), (None, True)],
            ExitCode.OK,
            ["run", "save", "close", "run", "close"],
        ),
        ([(StatesConflictError("a state of another run"), False)], ExitCode.CONFIGURATION, ["run", "close"]),
    ],
)
def test_what_was_learned_is_saved_before_it_ends(
    ends: list[tuple[Exception | None, bool]],
    code: ExitCode,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "LearnerProcess", Process)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    Process.ends, Process.asked = list(ends), []
    assert main.learn(load_run("pendulum"), Connection("ipc://nobody"), tmp_path / "state") == code
    assert Process.asked == asked


def test_without_a_folder_of_its_own_it_takes_another_one_for_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "LearnerProcess", Process)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    Process.ends, Process.asked, Process.folders = [(StatesConflictError("another"), True), (None, True)], [], []
    assert main.learn(load_run("pendulum"), Connection("ipc://nobody"), None) == ExitCode.OK
    first, second = Process.folders
    assert first != second
