"""Mutated models: whatever the bytes, the answer is a verdict."""

import random
from collections.abc import Callable

import onnx
import pytest

from runtime.policy.admission import AdmissionLimits, Admitted, Refused, admit
from runtime.policy.probes import probe_states
from tests.runtime.policy import models

PROBES = probe_states(models.CONTRACT, 8, seed=0)
ORIGINALS = [models.serialized(m) for m in (models.policy(hidden=4), models.wide_policy(), models.linear())]
HUGE_LENGTHS = [b"\xff", b"\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 10]
INTEGERS = [0, 1, -1, 2, 7, 11, 64, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at, n = rng.randrange(len(out)), rng.choice((1, 4, 40))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            del out[at : at + n]
        elif kind == 3:
            out[at:at] = rng.randbytes(n)
        elif kind == 4:
            out[at : at + 1] = rng.choice(HUGE_LENGTHS)
        else:
            source = rng.randrange(len(out))
            out[at : at + n] = out[source : source + n]
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.1 else out)


def messages_in(message: onnx.ModelProto) -> list[onnx.ModelProto]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "add") else [value]:
                found += messages_in(inner)
    return found


def mutated_fields(data: bytes, rng: random.Random) -> bytes:
    """Change the model as protobuf sees it: dimensions, types, names, operators, order."""
    model = onnx.load_from_string(data)
    names = [name for n in model.graph.node for name in (*n.input, *n.output)]
    operators = [*(n.op_type for n in model.graph.node), "Expand", "Loop", "Range", "Div", "Reshape"]
    message = rng.choice(messages_in(model.graph))
    fields = message.ListFields()
    if not fields:
        return models.serialized(model)
    field, value = rng.choice(fields)

    def other(old: object) -> object:
        if isinstance(old, str):
            return rng.choice(operators if field.name == "op_type" else [*names, "", "x"])
        if isinstance(old, bytes):
            return rng.choice((b"", old[:-1], old + bytes(4), rng.randbytes(len(old))))
        if isinstance(old, float):
            return rng.choice((0.0, -1.0, 1e38, float("nan")))
        return rng.choice(INTEGERS)

    try:
        if hasattr(value, "append"):
            at = rng.randrange(len(value))
            if rng.random() < 0.3:
                del value[at]
            elif field.message_type is not None:
                value.append(value[at])
            else:
                value[at] = other(value[at])
        elif field.message_type is not None:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, other(value))
    except ValueError:
        pass  # the field is narrower than the number
    return models.serialized(model)


@pytest.mark.parametrize("mutate", [mutated_bytes, mutated_fields])
def test_every_mutant_gets_a_verdict(
    mutate: Callable[[bytes, random.Random], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    admitted = refused = 0
    for _ in range(400):
        result = admit(
            mutate(rng.choice(ORIGINALS), rng), models.CONTRACT, PROBES, AdmissionLimits(latency_is_advisory=True)
        )
        assert isinstance(result, Admitted | Refused)
        if isinstance(result, Refused):
            refused += 1
            assert 0 < len(result.reason) <= 300
            assert result.reason.isprintable()
        else:
            admitted += 1
    assert refused > 200
    assert admitted > 0
    assert capfd.readouterr() == ("", "")


def test_every_cut_of_a_model_gets_a_verdict() -> None:
    for data in ORIGINALS:
        for length in range(0, len(data), 7):
            assert isinstance(admit(data[:length], models.CONTRACT, PROBES), Refused)
