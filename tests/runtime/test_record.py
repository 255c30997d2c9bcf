from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import STAGES, RecordLayout

WIDTHS = st.integers(1, 5)
N_HEAD = 19
"""Scalar fields of a record in front of its vectors, without ``seq``."""


def fields(layout: RecordLayout, rng: np.random.Generator) -> tuple[float, ...]:
    """Random values for one record, float32 ones exact; small enough for the narrowest field."""
    n_counts = layout.n_sensors + 3 * layout.n_actions
    n_floats = layout.n_observations + 7 * layout.n_actions
    return (
        *rng.integers(0, 200, N_HEAD).tolist(),
        *rng.integers(0, 1 << 40, len(STAGES)).tolist(),
        *rng.integers(-(1 << 31), 1 << 31, n_counts).tolist(),
        *rng.standard_normal(n_floats).astype(np.float32).tolist(),
        *rng.random(3).astype(np.float32).tolist(),
        float(rng.standard_normal()),
    )


@settings(max_examples=30)
@given(WIDTHS, WIDTHS, WIDTHS, st.integers(0, 1000))
def test_numpy_reads_what_struct_wrote(n_sensors: int, n_observations: int, n_actions: int, seed: int) -> None:
    layout = RecordLayout(n_sensors, n_observations, n_actions)
    values = (seed, *fields(layout, np.random.default_rng(seed)))
    raw = memoryview(bytearray(2 * layout.size))
    layout.pack_into(raw, layout.size, values)
    record = np.frombuffer(raw, layout.dtype)[1]
    read = [x for name in layout.dtype.names or () if name != "crc" for x in np.ravel(record[name]).tolist()]
    assert read == list(values)
    assert layout.sealed(raw[layout.size :])
    assert not any(raw[: layout.size]), "wrote outside its place"


@settings(max_examples=60)
@given(st.data())
def test_one_changed_bit_breaks_the_seal(data: st.DataObject) -> None:
    layout = RecordLayout(2, 2, 1)
    raw = bytearray(layout.size)
    layout.pack_into(memoryview(raw), 0, (3, *fields(layout, np.random.default_rng(1))))
    bit = data.draw(st.integers(0, 8 * layout.size - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert not layout.sealed(memoryview(raw))


def test_a_process_that_was_suspended_for_minutes_can_still_write_its_record() -> None:
    layout = RecordLayout(1, 1, 1)
    values = [1, *fields(layout, np.random.default_rng(0))]
    minutes_ns = 600 * 10**9
    values[1 + N_HEAD] = values[N_HEAD] = minutes_ns
    raw = memoryview(bytearray(layout.size))
    layout.pack_into(raw, 0, tuple(values))
    record = np.frombuffer(raw, layout.dtype)[0]
    assert record["stage_ns"][0] == record["tick_ns"] == minutes_ns


@pytest.mark.parametrize("other", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_the_schema_tells_layouts_apart(other: tuple[int, int, int]) -> None:
    assert RecordLayout(1, 1, 1).schema != RecordLayout(*other).schema
    assert RecordLayout(*other).schema == RecordLayout(*other).schema
