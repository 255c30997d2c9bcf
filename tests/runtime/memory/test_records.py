from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.memory import records
from onrig.runtime.memory.layout import Flag, Layout
from onrig.runtime.memory.records import Field, Records
from onrig.runtime.memory.storage import Storage


@settings(max_examples=60)
@given(trials=st.integers(1, 4), updates=st.integers(0, 4), batch=st.integers(1, 20), seed=st.integers(0, 1000))
def test_records_hold_the_fields_of_every_row_bit_for_bit(trials: int, updates: int, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 1 << 32, (trials, 30, 9), np.uint32)
    fields = (Field(6, 3, 2), Field(0, 1, 2 + 3 * batch), Field(8, 1, 2 + 4 * batch, mask=5))
    slots = rng.integers(0, 30, (updates, trials, batch))
    gatherer = Records(rows, fields, 2 + 5 * batch + 1)
    out = np.full((trials, updates, 2 + 5 * batch + 1), -7.0, np.float32)
    reference = out.copy()
    gatherer.gather(slots, out)
    gatherer._gather(slots, reference.view(np.uint32))
    assert out.tobytes() == reference.tobytes()
    for s in range(trials):
        for k in range(updates):
            sampled_rows, record = rows[s, slots[k, s]], out[s, k]
            assert record[2 : 2 + 3 * batch].tobytes() == sampled_rows[:, 6:].tobytes()
            assert record[2 + 3 * batch :][:batch].tobytes() == sampled_rows[:, 0].tobytes()
            assert record[2 + 4 * batch :][:batch].tolist() == ((sampled_rows[:, 8] & 5) != 0).tolist()
            assert record[[0, 1, -1]].tolist() == [-7.0] * 3


def test_a_rigs_memory_returns_observations_and_terminations() -> None:
    layout = Layout(2, 1)
    storage = Storage(5, layout)
    storage.insert(0, (1.0, 2.0), (3.0,), 0.5, (4.0, 5.0), flags=Flag.TERMINATED)
    storage.insert(1, (6.0, 7.0), (8.0,), 0.25, (9.0, 10.0), flags=Flag.TRUNCATED)
    fields = (Field(0, 2, 0), Field(layout.meta, 1, 6, mask=Flag.TERMINATED))
    out = np.zeros((1, 1, 9), np.float32)
    Records(storage.words[None], fields, 9).gather(np.array([[[1, 0, 1]]]), out)
    assert out[0, 0].tolist() == [6, 7, 1, 2, 6, 7, 0, 1, 0]


@pytest.mark.parametrize("use_compiled", [True, False])
def test_out_of_range_slots_are_refused_without_a_change(use_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not use_compiled:
        monkeypatch.setattr(records, "_load_function", lambda: None)
    gatherer = Records(np.ones((2, 3, 4), np.uint32), [Field(0, 4, 0)], 8)
    out = np.zeros((2, 1, 8), np.float32)
    for slot in (-1, 3):
        with pytest.raises(IndexError, match="outside the 3"):
            gatherer.gather(np.array([[[0, 1], [slot, 0]]]), out)
    assert not out.any()


def test_mismatched_fields_and_shapes_are_refused() -> None:
    rows = np.ones((2, 3, 4), np.uint32)
    for field in (Field(-1, 1, 0), Field(2, 3, 0), Field(0, 0, 0), Field(0, 1, 8), Field(0, 1, -1)):
        with pytest.raises(ValueError, match="outside rows of 4 words or records of 8"):
            Records(rows, [field], 8)
    with pytest.raises(ValueError, match="uint32"):
        Records(rows[..., :2], [], 8)
    gatherer, out = Records(rows, [Field(0, 3, 0)], 8), np.zeros((2, 1, 8), np.float32)
    for slots in (np.zeros((1, 2, 3), np.int64), np.zeros((1, 1, 2), np.int64), np.zeros((2, 2, 2), np.int64)):
        with pytest.raises(ValueError, match="do not fit"):
            gatherer.gather(slots, out)
    with pytest.raises(ValueError, match="contiguous"):
        gatherer.gather(np.zeros((1, 2, 2), np.int64), np.zeros((2, 1, 16), np.float32)[..., ::2])
