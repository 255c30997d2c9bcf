from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import FIELDS, Kind, Miss, RecordLayout, Rule, Step

WIDTHS = st.integers(1, 5)
RANGES = {"u1": (0, 256), "u2": (0, 1 << 16), "u4": (0, 1 << 32), "u8": (0, 1 << 63), "i4": (-(1 << 31), 1 << 31)}
ENUMS = {"kind": Kind, "rule": Rule, "miss": Miss}


def random_step(layout: RecordLayout, rng: np.random.Generator) -> Step:
    """Arbitrary values of the fields."""
    values: dict[str, object] = {}
    for field in layout.fields[1:-1]:
        shape = layout.dtype[field.name].shape
        if field.name in ENUMS:
            values[field.name] = rng.choice(list(ENUMS[field.name]))
            continue
        if field.stored.code.startswith("f"):
            value = rng.standard_normal(shape).astype(field.stored.code)
        else:
            value = rng.integers(*RANGES.get(field.stored.code, (-(1 << 63), (1 << 63) - 1)), size=shape)
        values[field.name] = tuple(np.asarray(value).tolist()) if shape else np.asarray(value).item()
    return Step(**values)  # type: ignore[arg-type]


@settings(max_examples=30)
@given(WIDTHS, WIDTHS, WIDTHS, st.booleans(), st.integers(0, 3), st.integers(0, 1000))
def test_numpy_reads_records_written_with_struct(
    n_sensors: int, n_observations: int, n_actions: int, behaviour: bool, n_inputs: int, seed: int
) -> None:
    layout = RecordLayout(n_sensors, n_observations, n_actions, behaviour=behaviour, n_inputs=n_inputs)
    step = random_step(layout, np.random.default_rng(seed))
    values = (seed, *layout.values(step))
    raw = memoryview(bytearray(2 * layout.size))
    layout.pack_into(raw, layout.size, seed, values[1:])
    record = np.frombuffer(raw, layout.dtype)[1]
    values_read = [x for name in layout.dtype.names or () if name != "crc" for x in np.ravel(record[name]).tolist()]
    assert values_read == list(values)
    for field in layout.fields[1:-1]:
        assert np.ravel(record[field.name]).tolist() == np.ravel(getattr(step, field.name)).tolist()
    assert layout.values(layout.step(record)) == layout.values(step)
    assert layout.has_valid_crc(raw[layout.size :])
    assert not any(raw[: layout.size]), "wrote outside its place"


@settings(max_examples=60)
@given(st.data())
def test_one_changed_bit_breaks_the_seal(data: st.DataObject) -> None:
    layout = RecordLayout(2, 2, 1)
    raw = bytearray(layout.size)
    layout.pack_into(memoryview(raw), 0, 3, layout.values(random_step(layout, np.random.default_rng(1))))
    bit = data.draw(st.integers(0, 8 * layout.size - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert not layout.has_valid_crc(memoryview(raw))


def test_a_process_suspended_for_minutes_can_still_write_its_record() -> None:
    layout = RecordLayout(1, 1, 1)
    step = random_step(layout, np.random.default_rng(0))
    ten_minutes_ns = 600 * 10**9
    step.tick_ns, step.stage_ns = ten_minutes_ns, (ten_minutes_ns,) * 7
    record = layout.pack([step])[0]
    assert record["stage_ns"][0] == record["tick_ns"] == ten_minutes_ns


@pytest.mark.parametrize("other", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_the_schema_distinguishes_layouts(other: tuple[int, int, int]) -> None:
    assert RecordLayout(1, 1, 1).schema != RecordLayout(*other).schema
    assert RecordLayout(*other).schema == RecordLayout(*other).schema


def test_only_records_of_stochastic_policies_have_a_distribution() -> None:
    base_layout, stochastic_layout = RecordLayout(2, 2, 1), RecordLayout(2, 2, 1, behaviour=True)
    added_fields = set(stochastic_layout.dtype.names or ()) - set(base_layout.dtype.names or ())
    assert added_fields == {"drawn", "mean", "std"}
    assert base_layout.schema != stochastic_layout.schema


def test_only_records_of_policies_with_their_own_inputs_hold_them() -> None:
    base_layout, with_inputs = RecordLayout(2, 2, 1), RecordLayout(2, 2, 1, n_inputs=4)
    assert set(with_inputs.dtype.names or ()) - set(base_layout.dtype.names or ()) == {"input"}
    assert with_inputs.dtype["input"].shape == (4,)
    assert (base_layout.n_policy_inputs, with_inputs.n_policy_inputs) == (2, 4)


def test_no_two_fields_share_a_number_in_the_log() -> None:
    numbers = [f.stored.number for f in (*RecordLayout(1, 1, 1, behaviour=True, n_inputs=2).fields,)]
    assert sorted(numbers) == list(range(1, 41))
    assert len(FIELDS) == len(numbers) - 2
