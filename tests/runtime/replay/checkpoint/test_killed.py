"""kill -9 at any moment of writing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.replay.checkpoint import restore
from tests.runtime.replay.checkpoint.killed_writer import CAPACITY
from tests.runtime.replay.checkpoint.streams import FedMemory, assert_same

N_WRITERS = 16


class WriterSpawner:
    """Starts writers; see ``killed_writer``."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    def run_writer(self, folder: Path, retention: str, *, max_calls: int = 0, checkpoints: int = 0) -> int:
        """Run a writer for a number of calls, or kill it after some checkpoints; returns the last reported step."""
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{folder} {retention} {max_calls}\n")
        stdin.flush()
        pid = int(stdout.readline())
        last_step, n_checkpoints = 0, 0
        while (line := stdout.readline()) != "dead\n":
            assert line, "the writer failed"
            last_step, n_checkpoints = int(line), n_checkpoints + 1
            if not max_calls and n_checkpoints == checkpoints:
                os.kill(pid, signal.SIGKILL)
        return last_step


@pytest.fixture(scope="module")
def spawner() -> Iterator[WriterSpawner]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # single-threaded, otherwise it could not fork
    with subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.replay.checkpoint.killed_writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as popen:
        yield WriterSpawner(popen)
        assert popen.stdin is not None
        popen.stdin.close()


@pytest.mark.parametrize("killed_by", ["itself", "another"])
@pytest.mark.parametrize("retention", ["FIFO", "TDE(1.0)"])
def test_a_killed_writer_leaves_everything_it_reported_on_disk(
    tmp_path: Path, spawner: WriterSpawner, retention: str, killed_by: str
) -> None:
    rng = random.Random(f"{retention} {killed_by}")
    uninterrupted = FedMemory(retention, CAPACITY, per_step=200)
    step_reached = 0
    for _ in range(N_WRITERS):
        if killed_by == "itself":
            last_step = spawner.run_writer(tmp_path, retention, max_calls=rng.randint(1, 60))
        else:
            last_step = spawner.run_writer(tmp_path, retention, checkpoints=rng.randint(1, 6))
        memory = FedMemory(retention, CAPACITY, per_step=200)
        restored = restore(tmp_path, memory, memory.identity)
        if restored is not None:
            assert restored.damaged == ()
            memory.continue_from(restored)
        # Only a checkpoint that it could no longer report may exist in addition.
        assert memory.steps in (max(last_step, step_reached), max(last_step, step_reached) + 1)
        step_reached = memory.steps
        uninterrupted.resume(step_reached - uninterrupted.steps)
        assert memory.storage.digest() == uninterrupted.storage.digest()
    assert step_reached > N_WRITERS
    assert len(list(tmp_path.iterdir())) < 30
    assert_same(memory, uninterrupted)
