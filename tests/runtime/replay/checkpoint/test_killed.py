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
from tests.runtime.replay.checkpoint.streams import Fed, same

LIVES = 16


class Begetter:
    """Gives birth to writers; see ``killed_writer``."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    def life(self, folder: Path, retention: str, *, calls: int = 0, checkpoints: int = 0) -> int:
        """Let a writer live for so many calls, or kill it after so many checkpoints; returns the last step it told."""
        stdin, stdout = self._popen.stdin, self._popen.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{folder} {retention} {calls}\n")
        stdin.flush()
        pid = int(stdout.readline())
        told, seen = 0, 0
        while (line := stdout.readline()) != "dead\n":
            assert line, "the writer failed"
            told, seen = int(line), seen + 1
            if not calls and seen == checkpoints:
                os.kill(pid, signal.SIGKILL)
        return told


@pytest.fixture(scope="module")
def begetter() -> Iterator[Begetter]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a single thread, or it could not fork
    with subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.replay.checkpoint.killed_writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as popen:
        yield Begetter(popen)
        assert popen.stdin is not None
        popen.stdin.close()


@pytest.mark.parametrize("by", ["itself", "another"])
@pytest.mark.parametrize("retention", ["FIFO", "TDE(1.0)"])
def test_a_killed_writer_leaves_all_that_it_said_was_on_disk(
    tmp_path: Path, begetter: Begetter, retention: str, by: str
) -> None:
    chance = random.Random(f"{retention} {by}")
    through = Fed(retention, CAPACITY, per_step=200)
    reached = 0
    for _ in range(LIVES):
        if by == "itself":
            told = begetter.life(tmp_path, retention, calls=chance.randint(1, 60))
        else:
            told = begetter.life(tmp_path, retention, checkpoints=chance.randint(1, 6))
        fed = Fed(retention, CAPACITY, per_step=200)
        restored = restore(tmp_path, fed, fed.identity)
        if restored is not None:
            assert restored.damaged == ()
            fed.taken_up(restored)
        # A checkpoint that it could not report any more may exist too; nothing else.
        assert fed.steps in (max(told, reached), max(told, reached) + 1)
        reached = fed.steps
        through.resume(reached - through.steps)
        assert fed.storage.digest() == through.storage.digest()
    assert reached > LIVES
    assert len(list(tmp_path.iterdir())) < 30
    same(fed, through)
