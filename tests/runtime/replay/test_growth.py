from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from onrig.runtime.replay import growth as module
from onrig.runtime.replay.growth import SLACK_BYTES, Growth, MemoryLimitError


class FakeStatm:
    """``/proc/self/statm`` of a process whose size the test sets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set_size(100 << 20)

    def set_size(self, size: int) -> None:
        self._path.write_text(f"1 2 3 4 0 {size // module._PAGE_BYTES} 0")


@pytest.fixture
def statm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStatm:
    monkeypatch.setattr(module, "_STATM", tmp_path / "statm")
    return FakeStatm(tmp_path / "statm")


def test_a_checkpoint_of_all_experiences_is_not_a_reason_but_a_flood_is(statm: FakeStatm) -> None:
    storage = 50 << 20
    growth = Growth(storage)
    statm.set_size((100 << 20) + 2 * storage + SLACK_BYTES)
    growth.check(1.0)
    statm.set_size((102 << 20) + 2 * storage + SLACK_BYTES)
    growth.check(1.0001)  # not again so soon
    with pytest.raises(MemoryLimitError, match="2 MiB above the limit"):
        growth.check(2.0)


def test_a_system_without_memory_figures_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATM", tmp_path / "none")
    Growth(0).check(1.0)


def test_the_size_of_this_process_is_measured() -> None:
    bytes_before = module._data_bytes()
    assert bytes_before > 1 << 20
    # A separate mapping: an array may reuse memory that this process has freed.
    with mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert module._data_bytes() - bytes_before > 60 << 20
