"""A trainer that acts in real time and ends in various ways: the device is safe, the run folder complete."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from onrig.runtime.log.reading import read_log
from onrig.runtime.record import Flag, Rule
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.running import Running, find_running
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from tests.lab.rig.processes import PATIENCE_S, Process, until

LEASE = 8
SETTINGS = (
    "realtime.priority=0",
    "realtime.lock_memory=false",
    f"rig.lease_periods={LEASE}",
    "limits.predicted=null",
    "task.episode_s=1000",
    "device.pace={scaled: 0.25}",
)
TRAINER = """
import signal, sys, numpy as np, onrig
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell runs in the background
env = onrig.make("pendulum", run_dir=sys.argv[1], overrides=sys.argv[3:])
observation, info = env.reset()
for k in range(10**6):
    observation, reward, terminated, truncated, info = env.step(np.full(1, 0.3, np.float32))
    if truncated:
        env.reset()
    if k == 20 and sys.argv[2] == "raises":
        raise ValueError("a mistake in the trainer")
    if k == 20 and sys.argv[2] == "closes":
        break
env.close()
"""


class Rig(NamedTuple):
    folder: Path
    process: subprocess.Popen[bytes]
    running: Running
    board: Board

    def word(self, word: Word) -> int:
        return self.board[word]

    def until(self, condition: Callable[[], bool], description: str) -> None:
        until(condition, description)

    def over(self) -> dict[str, object]:
        """Wait until no process is left; returns the run's summary."""
        supervisor = self.running.pid
        try:
            watched = Process(supervisor)
        except ProcessLookupError:
            pass
        else:
            watched.wait(PATIENCE_S)
            watched.close()
        assert not self.running.shm.exists()
        return dict(json.loads((self.folder / "summary.json").read_bytes()))


@contextmanager
def trained(folder: Path, how: str = "", settings: Sequence[str] = SETTINGS) -> Iterator[Rig]:
    """A trainer in its first episode."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(folder), how, *settings])
    try:
        until(lambda: find_running(folder) if folder.exists() else None, "the run")
        running = find_running(folder)
        assert running is not None
        board = Board(Segment.attach(running.shm / "board", BOARD_SCHEMA))
        until(lambda: board[Word.TICK] > 10, "the episode")
        yield Rig(folder, process, running, board)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "raises", "closes"])
def test_a_trainer_that_exits_leaves_a_safe_device_and_a_complete_folder(how: str, tmp_path: Path) -> None:
    with trained(tmp_path / "run", how) as rig:
        if how.startswith("SIG"):
            rig.process.send_signal(signal.Signals[how])
        rig.process.wait(PATIENCE_S)
        summary = rig.over()
    assert rig.word(Word.SAFE_NS) > 0, "a frame has shown the safe output in force"
    assert str(summary["actuators"]).startswith("safe")
    reasons = {"closes": "completed", "SIGKILL": "the program that chose the actions has ended"}
    assert summary["exit_reason"] == reasons.get(how, "interrupted")
    assert summary["whole"]["complete"]  # type: ignore[index]


def test_a_stopped_trainer_loses_its_episode_after_a_lease_and_may_continue(tmp_path: Path) -> None:
    with trained(tmp_path / "run") as rig:
        rig.process.send_signal(signal.SIGSTOP)
        rig.until(lambda: rig.word(Word.CLOSED) == 1, "the end of the episode")
        rig.until(lambda: rig.word(Word.SAFE_NS) > 0, "the safe output")
        tick = rig.word(Word.TICK)
        rig.process.send_signal(signal.SIGCONT)
        rig.until(lambda: rig.word(Word.TICK) > tick + 10, "the next episode")
        rig.process.send_signal(signal.SIGKILL)
        rig.process.wait()
        rig.over()
    config = load_resolved(rig.folder / "config.yaml")
    records = np.concatenate([p for p in read_log(rig.folder, config.rig) if isinstance(p, np.ndarray)])
    summary = json.loads((rig.folder / "summary.json").read_bytes())
    assert summary["held_actions"] == np.count_nonzero(records["flags"] & Flag.HELD)
    first = records[records["episode"] == 1]
    held, closing = first["flags"] & Flag.HELD != 0, first[-1]
    assert closing["flags"] & Flag.TRUNCATED
    assert first["rule"][-2] == Rule.FINITE, "the fallback"
    acted = first["tick"][~held][-2]
    assert LEASE <= closing["tick"] - acted <= LEASE + 1
