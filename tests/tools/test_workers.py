"""Worker processes: calls, notes, refusals, exceptions, and explanations of an end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import msgspec
import pytest

from onrig.tools.workers import Note, Unavailable, Value, WorkerProcess, execute_call

WORKER_MODULE = "tests.tools.worked"


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(WORKER_MODULE) as process:
        process.wait_for_value()
        yield process


def test_a_call_returns_its_value_after_its_notes(worker: WorkerProcess) -> None:
    assert worker.ask("doubled", (1, 2), returns=list[int]) == [2, 4]
    worker.call("doubled", [3])
    replies: list[object] = []
    while len(replies) < 2:
        assert worker.has_reply(60)
        replies += worker.replies()
    assert replies == [Note(msgspec.Raw(b"3")), Value(msgspec.Raw(b"[6]"))]
    assert "a library that is talkative" in worker.stderr_lines


@pytest.mark.parametrize(("method", "message"), [("refuse", "not here"), ("fail", "ValueError: not here")])
def test_a_call_without_a_value_gives_the_reason_and_the_worker_continues(
    method: str, message: str, worker: WorkerProcess
) -> None:
    with pytest.raises(Unavailable) as error:
        worker.ask(method, "not here", returns=type(None))
    assert str(error.value) == message
    assert worker.ask("doubled", [], returns=list[int]) == []


def test_a_worker_takes_turns_between_calls(worker: WorkerProcess) -> None:
    while not worker.ask("has_turned", returns=bool):
        pass


def test_a_worker_that_does_not_start_gives_the_reason() -> None:
    with (
        WorkerProcess(WORKER_MODULE, "no such library") as process,
        pytest.raises(Unavailable, match=r"^no such library$"),
    ):
        process.wait_for_value()
    assert process.has_ended


def test_an_end_is_explained() -> None:
    with WorkerProcess(WORKER_MODULE) as process:
        process.wait_for_value()
        with pytest.raises(Unavailable, match=r"^the worker ended with exit code 5: last line$"):
            process.ask("end", 5, returns=type(None))
        with pytest.raises(Unavailable, match="exit code 5"):  # also later
            process.ask("doubled", [1], returns=list[int])
    with WorkerProcess(WORKER_MODULE) as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"^the worker was killed \(out of memory\?\)$"):
            process.wait_for_value()
    with WorkerProcess("tests.tools.no_such_worker") as process, pytest.raises(Unavailable, match="No module named"):
        process.wait_for_value()


def test_arguments_are_decoded_as_annotated() -> None:
    def scale(values: list[float], factor: int) -> float:
        return sum(values) * factor

    assert execute_call(scale, [msgspec.Raw(b"[1, 2]"), msgspec.Raw(b"3")]) == Value(msgspec.Raw(b"9.0"))
