"""Times of a run's checkpoints, and messages on failures."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.checkpoint.upkeep import Upkeep
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_loading import load_run
from tests.runtime.samples import PENDULUM, records

CONFIG = msgspec.structs.replace(PENDULUM, selection=Selection("TDE(1.0)[PER]", 50), checkpoint_s=10.0)


class Run:
    """A memory and its upkeep, over one life of the process."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.memory = Memory(CONFIG)
        self.upkeep = Upkeep(folder, self.memory, CONFIG, self.said.append)
        self._folder = folder

    def resume(self) -> None:
        self.memory.insert(TransitionBuilder(CONFIG.rig).add(records(21)))
        stored = np.arange(self.memory.storage.stored)
        self.memory.take_feedback(
            Signal.TD_ERROR,
            stored,
            self.memory.storage.generation(stored),
            np.linspace(0, 1, len(stored), dtype=np.float32),
        )

    def counts(self) -> dict[str, int]:
        return {"offered before": self.memory.offered}

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("manifest-*.json"))


def number(run: Run) -> int:
    return int(run.checkpoints[-1].removeprefix("manifest-")) if run.checkpoints else 0


def test_a_run_begins_with_nothing_to_restore(tmp_path: Path) -> None:
    run = Run(tmp_path / "buffer")
    assert run.upkeep.restored is None
    assert run.said == []


def test_the_next_life_has_the_memory_and_the_counts_of_the_last_checkpoint(tmp_path: Path) -> None:
    first = Run(tmp_path)
    for _ in range(4):
        first.resume()
    first.upkeep.close(first.counts)
    second = Run(tmp_path)
    assert second.upkeep.restored == {"offered before": 80}
    assert (second.memory.offered, second.memory.stale_errors) == (80, 0)
    for run in (first, second):
        for _ in range(60):
            run.resume()
    assert first.memory.storage.digest() == second.memory.storage.digest()
    second.upkeep.close(second.counts)


def test_checkpoints_are_due_by_the_clock(tmp_path: Path) -> None:
    run = Run(tmp_path)
    seen = []
    for now_s in (100.0, 105.0, 109.9, 110.0, 112.0, 119.9, 121.0, 130.9, 131.0):
        run.resume()
        run.upkeep.checkpoint_if_due(now_s, run.counts)
        run.upkeep._writer.wait()
        seen.append(number(run))
    assert seen == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    run.upkeep.close(run.counts)
    assert number(run) == 4


def test_whoever_has_one_written_hears_whether_it_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    assert not run.upkeep.checkpoint_if_due(100.0, run.counts), "not due"
    assert run.upkeep.checkpoint_if_due(110.0, run.counts)
    run.upkeep._writer.wait()
    monkeypatch.setattr(run.upkeep._writer, "write", lambda *what: False)
    assert not run.upkeep.checkpoint_if_due(120.0, run.counts), "the one before is not on disk yet"
    monkeypatch.undo()
    run.upkeep.close(run.counts)


def test_in_lockstep_they_are_due_at_whole_episodes_and_on_disk_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    every = int(CONFIG.checkpoint_s / CONFIG.task.episode_s)
    assert every > 1
    seen = []
    for episode in range(3 * every):
        run.resume()
        run.upkeep.checkpoint_episode(episode, run.counts)
        seen.append(number(run))
    assert seen == [1 + episode // every for episode in range(3 * every)]


def test_a_disk_that_fails_is_told_of_once_until_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    real = os.fdatasync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        monkeypatch.setattr(os, "fdatasync", full)
        for _ in range(3):
            run.resume()
            run.upkeep.checkpoint_episode(0, run.counts)
        monkeypatch.setattr(os, "fdatasync", real)
        with contextlib.suppress(CheckpointError):  # it may have been tried again before there was room
            run.upkeep._writer.wait()
        for _ in range(2):
            run.resume()
            run.upkeep.checkpoint_episode(0, run.counts)
    assert len(run.said) == 2
    assert all("No space left on device" in line for line in run.said)
    run.upkeep.close(run.counts)
    assert Run(tmp_path).memory.storage.digest() == run.memory.storage.digest()


def test_the_last_checkpoint_is_tried_again_behind_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    failures = iter(range(3))

    def full_at_first(fd: int) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full_at_first)
    run.resume()
    run.upkeep.checkpoint_episode(0, run.counts)
    run.resume()
    run.upkeep.close(run.counts)
    assert Run(tmp_path).memory.offered == run.memory.offered == 40


def test_a_disk_that_stays_full_does_not_keep_the_end_from_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    run.resume()
    run.upkeep.close(run.counts)
    assert len(run.said) == 1
    assert run.checkpoints == []


def test_a_damaged_checkpoint_is_told_of(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.resume()
    run.upkeep.checkpoint_episode(0, run.counts)
    run.resume()
    run.upkeep.close(run.counts)
    newest = tmp_path / "manifest-00000002.json"
    newest.write_bytes(newest.read_bytes()[:-9])
    again = Run(tmp_path)
    assert again.memory.offered == 20
    assert again.said == [f"{newest}: truncated or altered; the previous checkpoint is used"]
    (tmp_path / "manifest-00000001.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint is left"):
        Run(tmp_path)


@pytest.mark.parametrize("seconds", ["0.1", "3600"])
def test_an_interval_within_bounds_is_taken(seconds: str) -> None:
    assert load_run("pendulum", [f"checkpoint_s={seconds}"]).checkpoint_s == float(seconds)


@pytest.mark.parametrize(
    ("seconds", "says"), [("0", "0.1 to 3600, got 0"), ("3601", "0.1 to 3600, got 3601"), (".nan", "must be finite")]
)
def test_one_out_of_bounds_is_refused(seconds: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_run("pendulum", [f"checkpoint_s={seconds}"])
    (problem,) = refused.value.problems
    assert says in problem.message
