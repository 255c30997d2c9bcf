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
from tests.runtime.replay.checkpoint.streams import RETENTIONS, SEED, Fed, same

LARGE = 700
"""Slots whose keys no longer fit into a manifest."""


@pytest.mark.parametrize("write_probability", [1.0, 0.3])
@pytest.mark.parametrize("capacity", [7, LARGE])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_restored_memory_is_the_same_and_decides_the_same(
    tmp_path: Path, retention: str, capacity: int, write_probability: float
) -> None:
    def fresh() -> Fed:
        return Fed(retention, capacity, write_probability=write_probability)

    fed = fresh()
    writer = CheckpointWriter(tmp_path, fed.identity)
    for steps in (0, 1, 3, 40, 1):
        fed.resume(steps)
        fed.write(writer)
    writer.close()
    other = fresh()
    same(fed, other.taken_up(restore(tmp_path, other, other.identity)))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_it_goes_on_over_many_lives(tmp_path: Path, retention: str) -> None:
    # Far beyond what the first generation of segments holds, and each life ends in another phase of it.
    through = Fed(retention, LARGE, per_step=150)
    fed = Fed(retention, LARGE, per_step=150)
    writer = CheckpointWriter(tmp_path, fed.identity)
    for life in range(12):
        for _ in range(5 + life % 3):
            through.resume(2)
            fed.resume(2)
            fed.write(writer)
        fed.resume()  # and is lost
        writer.close()
        fed = Fed(retention, LARGE, per_step=150)
        restored = restore(tmp_path, fed, fed.identity)
        assert restored is not None
        assert restored.damaged == ()
        fed.taken_up(restored)
        assert fed.storage.digest() == through.storage.digest()
        writer = CheckpointWriter(tmp_path, fed.identity, restored)
    writer.close()
    same(fed, through)


@pytest.mark.parametrize("retention", ["FIFO", "Resv", "Expl(0.7)"])
def test_each_checkpoint_of_many_holds_the_whole_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MIN_SEGMENT_ROWS", 10)
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows._MIN_CARRIED", 1)
    fed = Fed(retention, 20, per_step=1)
    writer = CheckpointWriter(tmp_path, fed.identity)
    for _ in range(100):
        fed.resume()
        fed.write(writer)
        other = Fed(retention, 20, per_step=1)
        assert restore(tmp_path, other, other.identity) is not None
        assert other.storage.digest() == fed.storage.digest()
    writer.close()


@settings(max_examples=25)
@given(
    st.sampled_from(RETENTIONS),
    st.sampled_from([1, 3, 64, LARGE]),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12),
)
def test_any_course_of_steps_and_writes_comes_back(
    retention: str, capacity: int, course: list[tuple[int, bool]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        fed = Fed(retention, capacity)
        writer = CheckpointWriter(Path(name), fed.identity)
        for steps, write in course:
            fed.resume(steps)
            if write:
                fed.write(writer)
        fed.write(writer)
        writer.close()
        other = Fed(retention, capacity)
        same(fed, other.taken_up(restore(Path(name), other, other.identity)), 100)


def test_a_folder_without_a_checkpoint_restores_nothing(tmp_path: Path) -> None:
    fed = Fed("FIFO", 7)
    assert restore(tmp_path / "none", fed, fed.identity) is None
    assert restore(tmp_path, fed, fed.identity) is None


def test_only_an_empty_memory_is_restored(tmp_path: Path) -> None:
    fed = Fed("Resv", 7)
    fed.resume()
    with pytest.raises(ValueError, match="only an empty memory"):
        restore(tmp_path, fed, fed.identity)


def test_a_checkpoint_nobody_restored_is_not_written_over(tmp_path: Path) -> None:
    fed = Fed("FIFO", 7)
    writer = CheckpointWriter(tmp_path, fed.identity)
    fed.write(writer)
    writer.close()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"manifest-00000001\.json: already exists"):
        CheckpointWriter(tmp_path, fed.identity)
    assert sorted(tmp_path.iterdir()) == before


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
    fed = Fed("FIFO", 7)
    writer = CheckpointWriter(tmp_path, fed.identity)
    fed.write(writer)
    fed.write(writer)
    writer.close()
    other = Fed("FIFO", 7)
    with pytest.raises(CheckpointError, match=rf"manifest-00000002\.json: .*{message}") as raised:
        restore(tmp_path, other, msgspec.structs.replace(fed.identity, **{field: value}))
    assert "\n" not in str(raised.value)
    assert len(list(tmp_path.glob("manifest-*"))) == 2


def test_a_checkpoint_with_another_chance_to_write_is_refused(tmp_path: Path) -> None:
    for written, required in ((0.5, 1.0), (1.0, 0.5), (0.5, 0.6)):
        folder = tmp_path / f"{written}-{required}"
        fed = Fed("TDE(1.0)", 7, write_probability=written)
        writer = CheckpointWriter(folder, fed.identity)
        fed.resume()
        fed.write(writer)
        writer.close()
        other = Fed("TDE(1.0)", 7, write_probability=required)
        with pytest.raises(CheckpointError, match=r"manifest-00000001\.json: .*use the configuration"):
            restore(folder, other, other.identity)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_the_folder_stays_small_however_much_is_overwritten(tmp_path: Path, retention: str) -> None:
    capacity, per_step = 6000, 1500
    fed = Fed(retention, capacity, per_step=per_step)
    row_bytes, order_bytes = 12 + fed.storage.layout.row_bytes, fed.keeper.checkpoint_bytes_per_slot * capacity
    writer = CheckpointWriter(tmp_path, fed.identity)
    for _ in range(40):
        fed.resume()
        fed.write(writer)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        # The bounds that the package states; 6000 slots are more than the 4096 of its floor.
        assert sum(sizes) < (1.5 if fed.storage.cyclic else 3.5) * (capacity + 4096) * row_bytes + 3 * order_bytes
        assert all(path.stat().st_size < order_bytes + 1000 for path in tmp_path.glob("order-*"))
        assert len(sizes) < 12
    writer.close()
    other = Fed(retention, capacity, per_step=per_step)
    same(fed, other.taken_up(restore(tmp_path, other, other.identity)), 100)


def test_a_write_costs_what_is_new(tmp_path: Path) -> None:
    fed = Fed("TDE(1.0)", 20_000, per_step=2000)
    writer = CheckpointWriter(tmp_path, fed.identity)
    for _ in range(10):
        fed.resume()
        fed.write(writer)

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("*.seg"))

    before = size()
    slots = fed.resume()
    fed.write(writer)
    writer.close()
    # Rows; slot and key of what was written or updated; two block headers.
    assert size() - before <= 2000 * (12 + 40) + (len(set(slots)) + 16) * 12 + 2 * 24


def test_a_full_memory_goes_on_in_a_larger_one_and_no_other_does(tmp_path: Path) -> None:
    fed = Fed("FULL", 50)
    writer = CheckpointWriter(tmp_path, fed.identity)
    fed.resume(2)
    fed.write(writer)
    writer.close()
    larger, through = Fed("FULL", 90), Fed("FULL", 90)
    through.resume(2)
    restored = restore(tmp_path, larger, larger.identity)
    same(through, larger.taken_up(restored))
    writer = CheckpointWriter(tmp_path, larger.identity, restored)
    larger.write(writer)
    writer.close()
    with pytest.raises(CheckpointError, match="90 experiences; this one has 50"):
        restore(tmp_path, Fed("FULL", 50), fed.identity)


def test_what_a_checkpoint_relies_on_is_synced_before_its_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relied = tmp_path / "episodes.csv"
    relied.write_text("a row")
    synced: list[tuple[str, bool]] = []

    def fsync(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), bool(list((tmp_path / "b").glob("manifest-0*")))))

    monkeypatch.setattr(os, "fsync", fsync)
    fed = Fed("FIFO", 7)
    writer = CheckpointWriter(tmp_path / "b", fed.identity)
    fed.resume()
    assert writer.write(fed, {"steps": 1}, b'{"where": [1, 2]}', (relied, tmp_path, tmp_path / "never written"))
    writer.wait()
    writer.close()
    assert synced[:2] == [(str(relied), False), (str(tmp_path), False)]
    restored = restore(tmp_path / "b", Fed("FIFO", 7), fed.identity)
    assert restored is not None
    assert restored.note == b'{"where": [1, 2]}'
