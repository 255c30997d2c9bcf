"""Step records as messages: every bit survives, and a public protobuf reader sees the same values."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.records import Schema
from mcap_protobuf.decoder import DecoderFactory

from onrig.hw.rig import Rig
from onrig.runtime.log import wire
from onrig.runtime.log.steps import Records, StepMessages, identifiers
from tests.runtime.samples import MAGMAN, PENDULUM

ODDLY_NAMED = msgspec.structs.replace(
    PENDULUM.rig,
    sensors=tuple(
        msgspec.structs.replace(s, name=n) for s, n in zip(PENDULUM.rig.sensors, ("1 µ", "a-b"), strict=True)
    ),
    observations=tuple(
        msgspec.structs.replace(o, name=n, sensor=s)
        for o, n, s in zip(PENDULUM.rig.observations, ("a_b", "aB"), ("1 µ", "a-b"), strict=True)
    ),
    previous_command=True,
)
RIGS = {"pendulum": PENDULUM.rig, "magman": MAGMAN.rig, "odd names": ODDLY_NAMED}


def decode_steps(messages: StepMessages, encoded: bytes) -> list[Any]:
    schema = Schema(1, wire.descriptor_set((messages.file,)), "protobuf", "onrig.Step")
    decode = DecoderFactory().decoder_for("protobuf", schema)
    assert decode is not None
    return [decode(encoded[i : i + messages.size]) for i in range(0, len(encoded), messages.size)]


def random_records(rig: Rig, data: bytes, n: int) -> Records:
    """Arbitrary bits."""
    layout = StepMessages(rig).layout
    rng = np.random.default_rng(list(data))
    return np.frombuffer(rng.bytes(n * layout.size), layout.dtype)


@pytest.mark.parametrize("rig", RIGS.values(), ids=list(RIGS))
@settings(max_examples=20)
@given(data=st.binary(max_size=8), n=st.integers(0, 5))
def test_any_record_is_read_back_bit_for_bit(rig: Rig, data: bytes, n: int) -> None:
    messages = StepMessages(rig)
    records = random_records(rig, data, n)
    encoded = messages.encode(records)
    assert len(encoded) == n * messages.size
    assert messages.decode(encoded).tobytes() == records.tobytes()


@pytest.mark.parametrize("rig", RIGS.values(), ids=list(RIGS))
def test_a_public_reader_sees_every_value_by_its_name(rig: Rig) -> None:
    messages = StepMessages(rig)
    records = random_records(rig, b"seed", 3)
    groups = {
        "sensors": ("sensor_counts", identifiers([s.name for s in rig.sensors])),
        "command": ("command_counts", identifiers([a.name for a in rig.actuators])),
        "u_start": ("u_start_counts", identifiers([a.name for a in rig.actuators])),
        "u_end": ("u_end_counts", identifiers([a.name for a in rig.actuators])),
        "observation": ("observation", identifiers([s.name for s in rig.signals])),
    }
    for message, row in zip(decode_steps(messages, messages.encode(records)), records, strict=True):
        for name in records.dtype.names or ():
            if records.dtype[name].shape == ():
                np.testing.assert_equal(getattr(message, name), row[name].item())
        for name, (group, fields) in groups.items():
            values = [getattr(getattr(message, group), f) for f in fields]
            np.testing.assert_equal(values, row[name].tolist())
        si = [getattr(message.sensors, f) for f in groups["sensors"][1]]
        expected = [np.float32(c * s.resolution) for c, s in zip(row["sensors"], rig.sensors, strict=True)]
        np.testing.assert_equal(si, [float(x) for x in expected])


def test_names_that_are_not_identifiers_or_collide_are_made_unique() -> None:
    assert identifiers(["voltage", "coil-1", "coil_1", "coil1", "2nd", "ü"]) == (
        *("voltage", "coil_1", "coil_1_2", "coil1_3", "n2nd", "n_"),
    )


def test_messages_of_another_rig_are_refused() -> None:
    records = random_records(MAGMAN.rig, b"x", 14)
    encoded = StepMessages(MAGMAN.rig).encode(records)
    pendulum = StepMessages(PENDULUM.rig)
    with pytest.raises(ValueError, match="layout"):
        pendulum.decode(encoded[: pendulum.size])


def test_inputs_of_policies_are_read_back_under_their_names() -> None:
    names = ("cos_angle", "cos_angle-1", "velocity-2")
    messages = StepMessages(PENDULUM.rig, inputs=names)
    records = np.frombuffer(np.random.default_rng(1).bytes(4 * messages.layout.size), messages.layout.dtype)
    encoded = messages.encode(records)
    assert messages.decode(encoded).tobytes() == records.tobytes()
    for message, row in zip(decode_steps(messages, encoded), records, strict=True):
        input_values = [message.input.cos_angle, message.input.cos_angle_1, message.input.velocity_2]
        np.testing.assert_equal(input_values, row["input"].tolist())
