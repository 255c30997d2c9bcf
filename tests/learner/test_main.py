"""The learner's process: its reaction to the end of a link."""

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


class LearnerProcessStub:
    """Process that ends as specified, and records its calls."""

    outcomes: list[tuple[Exception | None, bool]]
    calls: list[str]
    folders: ClassVar[list[Path]] = []

    def __init__(
        self, config: RunConfig, connection: Connection, state: Path, stop_flag: list[bool], start: Path | None
    ) -> None:
        self._stop, self.result_accepted = stop_flag, False
        self.folders.append(state)

    def run(self) -> None:
        error, self.result_accepted = self.outcomes.pop(0)
        self.calls.append("run")
        if error is not None:
            self._stop[0] = "stop" in str(error)
            raise error

    def save(self) -> None:
        self.calls.append("save")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("outcomes", "code", "calls"),
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
def test_the_learned_state_is_saved_before_the_process_ends(
    outcomes: list[tuple[Exception | None, bool]],
    code: ExitCode,
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "LearnerProcess", LearnerProcessStub)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    LearnerProcessStub.outcomes, LearnerProcessStub.calls = list(outcomes), []
    assert main.learn(load_run("pendulum"), Connection("ipc://nobody"), tmp_path / "state") == code
    assert LearnerProcessStub.calls == calls


def test_without_its_own_folder_it_uses_another_one_for_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "LearnerProcess", LearnerProcessStub)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    LearnerProcessStub.outcomes, LearnerProcessStub.calls, LearnerProcessStub.folders = (
        [(StatesConflictError("another"), True), (None, True)],
        [],
        [],
    )
    assert main.learn(load_run("pendulum"), Connection("ipc://nobody"), None) == ExitCode.OK
    first_folder, second_folder = LearnerProcessStub.folders
    assert first_folder != second_folder
