"""The restored state equals the written one, and continues identically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.replay.checkpoint import CheckpointError, CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import RETENTIONS, SEED, FedMemory, assert_same

LARGE_CAPACITY = 700
"""Number of slots whose keys no longer fit into a manifest."""


@pytest.mark.parametrize("write_probability", [1.0, 0.3])
@pytest.mark.parametrize("capacity", [7, LARGE_CAPACITY])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_restored_memory_is_equal_and_makes_the_same_decisions(
    tmp_path: Path, retention: str, capacity: int, write_probability: float
) -> None:
    def make_memory() -> FedMemory:
        return FedMemory(retention, capacity, write_probability=write_probability)

    memory = make_memory()
    writer = CheckpointWriter(tmp_path, memory.identity)
    for steps in (0, 1, 3, 40, 1):
        memory.resume(steps)
        memory.write(writer)
    writer.close()
    other = make_memory()
    assert_same(memory, other.continue_from(restore(tmp_path, other, other.identity)))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_it_continues_over_many_lifetimes(tmp_path: Path, retention: str) -> None:
    # Far beyond the capacity of the first generation of segments; each lifetime ends in another phase of it.
    uninterrupted = FedMemory(retention, LARGE_CAPACITY, per_step=150)
    memory = FedMemory(retention, LARGE_CAPACITY, per_step=150)
    writer = CheckpointWriter(tmp_path, memory.identity)
    for restart in range(12):
        for _ in range(5 + restart % 3):
            uninterrupted.resume(2)
            memory.resume(2)
            memory.write(writer)
        memory.resume()  # and is lost
        writer.close()
        memory = FedMemory(retention, LARGE_CAPACITY, per_step=150)
        restored = restore(tmp_path, memory, memory.identity)
        assert restored is not None
        assert restored.damaged == ()
        memory.continue_from(restored)
        assert memory.storage.digest() == uninterrupted.storage.digest()
        writer = CheckpointWriter(tmp_path, memory.identity, restored)
    writer.close()
    assert_same(memory, uninterrupted)


@pytest.mark.parametrize("retention", ["FIFO", "Resv", "Expl(0.7)"])
def test_each_of_many_checkpoints_holds_the_complete_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MIN_SEGMENT_ROWS", 10)
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows._MIN_CARRIED", 1)
    memory = FedMemory(retention, 20, per_step=1)
    writer = CheckpointWriter(tmp_path, memory.identity)
    for _ in range(100):
        memory.resume()
        memory.write(writer)
        other = FedMemory(retention, 20, per_step=1)
        assert restore(tmp_path, other, other.identity) is not None
        assert other.storage.digest() == memory.storage.digest()
    writer.close()


@settings(max_examples=25)
@given(
    st.sampled_from(RETENTIONS),
    st.sampled_from([1, 3, 64, LARGE_CAPACITY]),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12),
)
def test_any_sequence_of_steps_and_writes_is_restored(
    retention: str, capacity: int, events: list[tuple[int, bool]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        memory = FedMemory(retention, capacity)
        writer = CheckpointWriter(Path(name), memory.identity)
        for steps, write in events:
            memory.resume(steps)
            if write:
                memory.write(writer)
        memory.write(writer)
        writer.close()
        other = FedMemory(retention, capacity)
        assert_same(memory, other.continue_from(restore(Path(name), other, other.identity)), 100)


def test_a_folder_without_a_checkpoint_restores_nothing(tmp_path: Path) -> None:
    memory = FedMemory("FIFO", 7)
    assert restore(tmp_path / "none", memory, memory.identity) is None
    assert restore(tmp_path, memory, memory.identity) is None


def test_a_memory_must_be_empty_to_be_restored(tmp_path: Path) -> None:
    memory = FedMemory("Resv", 7)
    memory.resume()
    with pytest.raises(ValueError, match="only an empty memory"):
        restore(tmp_path, memory, memory.identity)


def test_a_checkpoint_that_was_not_restored_is_not_overwritten(tmp_path: Path) -> None:
    memory = FedMemory("FIFO", 7)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.write(writer)
    writer.close()
    size_before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"manifest-00000001\.json: already exists"):
        CheckpointWriter(tmp_path, memory.identity)
    assert sorted(tmp_path.iterdir()) == size_before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("capacity", 8, "7 experiences; this one has 8"),
        ("n_obs", 3, "2 observations; this one has 3"),
        ("n_act", 2, "1 actions; this one has 2"),
        ("strategy", "FULL[PER]", r"FIFO\[PER\] as its strategy; this one has FULL\[PER\]"),
        ("seed", SEED + 1, "5 as its seed; this one has 6"),
    ],
)
def test_the_checkpoint_of_another_memory_is_refused(
    tmp_path: Path, field: str, value: int | str, message: str
) -> None:
    memory = FedMemory("FIFO", 7)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.write(writer)
    memory.write(writer)
    writer.close()
    other = FedMemory("FIFO", 7)
    with pytest.raises(CheckpointError, match=rf"manifest-00000002\.json: .*{message}") as error:
        restore(tmp_path, other, msgspec.structs.replace(memory.identity, **{field: value}))
    assert "\n" not in str(error.value)
    assert len(list(tmp_path.glob("manifest-*"))) == 2


def test_a_checkpoint_with_another_write_probability_is_refused(tmp_path: Path) -> None:
    for written_probability, required in ((0.5, 1.0), (1.0, 0.5), (0.5, 0.6)):
        folder = tmp_path / f"{written_probability}-{required}"
        memory = FedMemory("TDE(1.0)", 7, write_probability=written_probability)
        writer = CheckpointWriter(folder, memory.identity)
        memory.resume()
        memory.write(writer)
        writer.close()
        other = FedMemory("TDE(1.0)", 7, write_probability=required)
        with pytest.raises(CheckpointError, match=r"manifest-00000001\.json: .*use the configuration"):
            restore(folder, other, other.identity)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_folder_remains_small_however_much_is_overwritten(tmp_path: Path, retention: str) -> None:
    capacity, per_step = 6000, 1500
    memory = FedMemory(retention, capacity, per_step=per_step)
    row_bytes, order_bytes = 12 + memory.storage.layout.row_bytes, memory.keeper.checkpoint_bytes_per_slot * capacity
    writer = CheckpointWriter(tmp_path, memory.identity)
    for _ in range(40):
        memory.resume()
        memory.write(writer)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        # The bounds stated by the package; 6000 slots are more than the 4096 of its floor.
        assert sum(sizes) < (1.5 if memory.storage.cyclic else 3.5) * (capacity + 4096) * row_bytes + 3 * order_bytes
        assert all(path.stat().st_size < order_bytes + 1000 for path in tmp_path.glob("order-*"))
        assert len(sizes) < 12
    writer.close()
    other = FedMemory(retention, capacity, per_step=per_step)
    assert_same(memory, other.continue_from(restore(tmp_path, other, other.identity)), 100)


def test_the_cost_of_a_write_depends_only_on_what_is_new(tmp_path: Path) -> None:
    memory = FedMemory("TDE(1.0)", 20_000, per_step=2000)
    writer = CheckpointWriter(tmp_path, memory.identity)
    for _ in range(10):
        memory.resume()
        memory.write(writer)

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("*.seg"))

    size_before = size()
    slots = memory.resume()
    memory.write(writer)
    writer.close()
    # Rows; slot and key of what was written or updated; two block headers.
    assert size() - size_before <= 2000 * (12 + 40) + (len(set(slots)) + 16) * 12 + 2 * 24


def test_a_full_memory_continues_only_in_a_larger_one(tmp_path: Path) -> None:
    memory = FedMemory("FULL", 50)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.resume(2)
    memory.write(writer)
    writer.close()
    larger_memory, uninterrupted = FedMemory("FULL", 90), FedMemory("FULL", 90)
    uninterrupted.resume(2)
    restored = restore(tmp_path, larger_memory, larger_memory.identity)
    assert_same(uninterrupted, larger_memory.continue_from(restored))
    writer = CheckpointWriter(tmp_path, larger_memory.identity, restored)
    larger_memory.write(writer)
    writer.close()
    with pytest.raises(CheckpointError, match="90 experiences; this one has 50"):
        restore(tmp_path, FedMemory("FULL", 50), memory.identity)


def test_files_of_a_checkpoint_are_synced_before_its_manifest_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required_file = tmp_path / "episodes.csv"
    required_file.write_text("a row")
    synced_files: list[tuple[str, bool]] = []

    def fsync(fd: int) -> None:
        synced_files.append((os.readlink(f"/proc/self/fd/{fd}"), bool(list((tmp_path / "b").glob("manifest-0*")))))

    monkeypatch.setattr(os, "fsync", fsync)
    memory = FedMemory("FIFO", 7)
    writer = CheckpointWriter(tmp_path / "b", memory.identity)
    memory.resume()
    assert writer.write(
        memory, {"steps": 1}, b'{"where": [1, 2]}', (required_file, tmp_path, tmp_path / "never written")
    )
    writer.wait()
    writer.close()
    assert synced_files[:2] == [(str(required_file), False), (str(tmp_path), False)]
    restored = restore(tmp_path / "b", FedMemory("FIFO", 7), memory.identity)
    assert restored is not None
    assert restored.note == b'{"where": [1, 2]}'
