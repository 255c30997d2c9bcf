"""Processes of a run that are restarted while the loop runs, and after it has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.process_group import ProcessGroup
from tests.runtime.samples import PENDULUM


class EndedProcessGroup(ProcessGroup):
    """A process group whose processes end as soon as they are started, all with the same code."""

    def __init__(self, folder: Path, code: ExitCode) -> None:
        self.board = Board(Segment.create(folder / "board", BOARD_BYTES, BOARD_SCHEMA))
        self._code = code
        reports: Any = SimpleNamespace(warn=lambda line: None)
        super().__init__(PENDULUM, folder, folder, self.board, reports, resumes=False)

    def _launch(self, name: str, module: str, arguments: list[str]) -> Child:
        child: Any = SimpleNamespace(started_s=0.0, n_reports=0, poll=lambda: self._code, close=lambda: None)
        return child  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["replay", "learner"])
@pytest.mark.parametrize(
    ("code", "loop_has_ended", "restarts"),
    [
        (ExitCode.OK, False, True),
        (ExitCode.INTERRUPTED, False, True),
        (ExitCode.INTERNAL, False, True),
        (ExitCode.OK, True, False),
        (ExitCode.INTERRUPTED, True, True),
    ],
)
def test_a_successful_end_is_expected_only_once_the_loop_has_ended(
    tmp_path: Path, name: str, code: ExitCode, *, loop_has_ended: bool, restarts: bool
) -> None:
    process_group = EndedProcessGroup(tmp_path, code)
    process = {"replay": process_group.replay, "learner": process_group.learner}[name]
    process_group.start_restartable(process)
    process_group.board[Word.ENDED] = loop_has_ended
    process_group.revive()
    assert process.n_starts == 1 + restarts
