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


class MemoryWithUpkeep:
    """A memory and its upkeep, over one lifetime of the process."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[str] = []
        self.memory = Memory(CONFIG)
        self.upkeep = Upkeep(folder, self.memory, CONFIG, self.messages.append)
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


def number(run: MemoryWithUpkeep) -> int:
    return int(run.checkpoints[-1].removeprefix("manifest-")) if run.checkpoints else 0


def test_a_new_run_has_nothing_to_restore(tmp_path: Path) -> None:
    run = MemoryWithUpkeep(tmp_path / "buffer")
    assert run.upkeep.restored is None
    assert run.messages == []


def test_the_next_lifetime_has_the_memory_and_counts_of_the_last_checkpoint(tmp_path: Path) -> None:
    first_run = MemoryWithUpkeep(tmp_path)
    for _ in range(4):
        first_run.resume()
    first_run.upkeep.close(first_run.counts)
    second_run = MemoryWithUpkeep(tmp_path)
    assert second_run.upkeep.restored == {"offered before": 80}
    assert (second_run.memory.offered, second_run.memory.stale_errors) == (80, 0)
    for run in (first_run, second_run):
        for _ in range(60):
            run.resume()
    assert first_run.memory.storage.digest() == second_run.memory.storage.digest()
    second_run.upkeep.close(second_run.counts)


def test_checkpoints_are_scheduled_by_the_clock(tmp_path: Path) -> None:
    run = MemoryWithUpkeep(tmp_path)
    numbers = []
    for now_s in (100.0, 105.0, 109.9, 110.0, 112.0, 119.9, 121.0, 130.9, 131.0):
        run.resume()
        run.upkeep.checkpoint_if_due(now_s, run.counts)
        run.upkeep._writer.wait()
        numbers.append(number(run))
    assert numbers == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    run.upkeep.close(run.counts)
    assert number(run) == 4


def test_a_requested_checkpoint_reports_whether_it_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MemoryWithUpkeep(tmp_path)
    assert not run.upkeep.checkpoint_if_due(100.0, run.counts), "not due"
    assert run.upkeep.checkpoint_if_due(110.0, run.counts)
    run.upkeep._writer.wait()
    monkeypatch.setattr(run.upkeep._writer, "write", lambda *args: False)
    assert not run.upkeep.checkpoint_if_due(120.0, run.counts), "the one before is not on disk yet"
    monkeypatch.undo()
    run.upkeep.close(run.counts)


def test_in_lockstep_checkpoints_are_due_at_complete_episodes_and_on_disk_at_once(tmp_path: Path) -> None:
    run = MemoryWithUpkeep(tmp_path)
    episodes_per_checkpoint = int(CONFIG.checkpoint_s / CONFIG.task.episode_s)
    assert episodes_per_checkpoint > 1
    numbers = []
    for episode in range(3 * episodes_per_checkpoint):
        run.resume()
        run.upkeep.checkpoint_episode(episode, run.counts)
        numbers.append(number(run))
    assert numbers == [1 + episode // episodes_per_checkpoint for episode in range(3 * episodes_per_checkpoint)]


def test_a_failing_disk_is_reported_once_until_it_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MemoryWithUpkeep(tmp_path)
    original_sync = os.fdatasync

    def fail_sync(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        monkeypatch.setattr(os, "fdatasync", fail_sync)
        for _ in range(3):
            run.resume()
            run.upkeep.checkpoint_episode(0, run.counts)
        monkeypatch.setattr(os, "fdatasync", original_sync)
        with contextlib.suppress(CheckpointError):  # it may have been tried again before there was room
            run.upkeep._writer.wait()
        for _ in range(2):
            run.resume()
            run.upkeep.checkpoint_episode(0, run.counts)
    assert len(run.messages) == 2
    assert all("No space left on device" in line for line in run.messages)
    run.upkeep.close(run.counts)
    assert MemoryWithUpkeep(tmp_path).memory.storage.digest() == run.memory.storage.digest()


def test_the_last_checkpoint_is_retried_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MemoryWithUpkeep(tmp_path)
    failures = iter(range(3))

    def fail_first_sync(fd: int) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail_first_sync)
    run.resume()
    run.upkeep.checkpoint_episode(0, run.counts)
    run.resume()
    run.upkeep.close(run.counts)
    assert MemoryWithUpkeep(tmp_path).memory.offered == run.memory.offered == 40


def test_a_disk_that_remains_full_does_not_prevent_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = MemoryWithUpkeep(tmp_path)

    def fail_sync(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail_sync)
    run.resume()
    run.upkeep.close(run.counts)
    assert len(run.messages) == 1
    assert run.checkpoints == []


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    run = MemoryWithUpkeep(tmp_path)
    run.resume()
    run.upkeep.checkpoint_episode(0, run.counts)
    run.resume()
    run.upkeep.close(run.counts)
    newest_manifest = tmp_path / "manifest-00000002.json"
    newest_manifest.write_bytes(newest_manifest.read_bytes()[:-9])
    restarted = MemoryWithUpkeep(tmp_path)
    assert restarted.memory.offered == 20
    assert restarted.messages == [f"{newest_manifest}: truncated or altered; the previous checkpoint is used"]
    (tmp_path / "manifest-00000001.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint is left"):
        MemoryWithUpkeep(tmp_path)


@pytest.mark.parametrize("seconds", ["0.1", "3600"])
def test_an_interval_within_bounds_is_accepted(seconds: str) -> None:
    assert load_run("pendulum", [f"checkpoint_s={seconds}"]).checkpoint_s == float(seconds)


@pytest.mark.parametrize(
    ("seconds", "message"), [("0", "0.1 to 3600, got 0"), ("3601", "0.1 to 3600, got 3601"), (".nan", "must be finite")]
)
def test_an_interval_out_of_bounds_is_refused(seconds: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [f"checkpoint_s={seconds}"])
    (problem,) = error.value.problems
    assert message in problem.message
