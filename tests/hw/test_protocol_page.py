"""hw/PROTOCOL.md matches the code: its tables, its C code and its test vectors."""

import ast
import ctypes
import enum
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.hw import messages as m
from onrig.hw.conformance.page import PAGE, code_block
from onrig.hw.framing import (
    MAX_BODY_BYTES,
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    CobsError,
    CrcError,
    FrameReader,
    decode_frame,
    encode_frame,
)
from onrig.hw.renewal import POLICY_BYTES, Renewal, decode_renewal, encode_renewal
from onrig.hw.session import MAX_ATTEMPTS, RETRY_INTERVAL_S

S, A = 2, 1
C_COMPILER = shutil.which("cc")

Fields = dict[str, str]
Value = str | int | float | bytes | tuple[int, ...]


def table_after(text: str) -> list[list[str]]:
    """Rows of cells of the first table after a text, without its two header lines."""
    lines = PAGE[PAGE.index(text) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


class Vector(NamedTuple):
    """One block of the page: a message with its fields, and its bytes by kind (body and wire, or payload)."""

    message: str
    fields: Fields
    raw: dict[str, bytes]


def vectors() -> list[Vector]:
    found: list[Vector] = []
    for line in code_block("vectors").splitlines():
        head, *words = line.split()
        if line.startswith(" "):
            found[-1].raw[head] = bytes.fromhex("".join(words))
        else:
            found.append(Vector(head, dict(word.split("=", 1) for word in words), {}))
    return found


def value(text: str, kind: object) -> Value:
    """Parse a field according to the annotation of its NamedTuple."""
    if kind == "str":
        return text
    if kind == "bytes":
        return b"" if text == "-" else bytes.fromhex(text)
    if kind == "tuple[int, ...]":
        return tuple(ast.literal_eval(text))
    if kind == "bool":
        return bool(int(text))
    if text in m.Op.__members__:
        return int(m.Op[text])
    if text in m.Result.__members__:
        return int(m.Result[text])
    return float(text) if kind == "float" else int(text)


CODECS: dict[str, tuple[type, Callable[..., bytes], Callable[[bytes], object]]] = {
    "HELLO": (m.Hello, m.encode_hello, m.decode_hello),
    "STATE": (m.State, m.StateLayout(S, A).encode, m.StateLayout(S, A).decode),
    "COMMAND": (m.Command, lambda c: m.CommandLayout(A).encode(*c), m.CommandLayout(A).decode),
    "RENEW": (Renewal, encode_renewal, decode_renewal),
    "REQUEST": (m.Request, m.encode_request, m.decode_request),
    "RESPONSE": (m.Response, m.encode_response, m.decode_response),
    "CHANNEL": (m.Channel, m.encode_channel, m.decode_channel),
}


def message_of(vector: Vector) -> object:
    kind = CODECS[vector.message][0]
    annotations = {name: getattr(a, "__forward_arg__", a) for name, a in kind.__annotations__.items()}
    assert list(vector.fields) == list(annotations)
    return kind(**{name: value(text, annotations[name]) for name, text in vector.fields.items()})


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: f"{v.message}-{v.fields.get('op', '')}")
@pytest.mark.rules("H801")
def test_each_vector_holds_in_both_directions(vector: Vector) -> None:
    if vector.message == "HELLO_REQUEST":
        assert vector.raw["body"] == bytes([m.MessageType.HELLO_REQUEST])
    else:
        _, encode, decode = CODECS[vector.message]
        layout = vector.raw["payload" if vector.message == "CHANNEL" else "body"]
        assert encode(message_of(vector)) == layout
        assert decode(layout) == message_of(vector)
    if "wire" in vector.raw:
        assert encode_frame(vector.raw["body"]) == vector.raw["wire"]
        assert FrameReader().feed(vector.raw["wire"]) == [vector.raw["body"]]


def test_every_message_and_operation_has_a_vector() -> None:
    shown = {v.message for v in vectors()}
    assert shown == {*m.MessageType.__members__, "CHANNEL"}
    assert {v.fields["op"] for v in vectors() if "op" in v.fields} == set(m.Op.__members__)


def test_the_channel_vectors_are_the_payloads_of_the_describe_responses() -> None:
    responses = [v for v in vectors() if v.message == "RESPONSE" and v.fields["op"] == "DESCRIBE"]
    channels = [v.raw["payload"] for v in vectors() if v.message == "CHANNEL"]
    assert [bytes.fromhex(v.fields["payload"]) for v in responses] == channels


@pytest.mark.parametrize("line", code_block("refused").splitlines())
@pytest.mark.rules("H802")
def test_each_invalid_chunk_is_refused_for_its_reason(line: str) -> None:
    reason, *words = line.split()
    with pytest.raises({"CRC": CrcError, "COBS": CobsError}[reason]):
        decode_frame(bytes.fromhex("".join(words)))


TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f", "f64": "d"}


def size_of(type_: str) -> int:
    match = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", type_)
    assert match, type_
    many = {"S": S, "A": A}.get(match[2]) if match[2] else 1
    many = int(match[2]) if many is None else many
    return many * (1 if match[1] == "char" else struct.calcsize("<" + TYPES[match[1]]))


def offset_of(text: str) -> int:
    return sum(int(n or 1) * {"S": S, "A": A, "": 1}[unit] for n, unit in re.findall(r"(\d+)([SA]?)", text))


@pytest.mark.parametrize(
    ("heading", "first", "fields", "size"),
    [
        ("### 2.2", 1, m.Hello._fields, 1 + m.HELLO_LAYOUT.size),
        ("### 2.3", 1, m.Command._fields, m.CommandLayout(A).size),
        ("### 2.4", 1, m.State._fields, m.StateLayout(S, A).size),
        ("### 2.5", 1, m.Request._fields, 1 + m.REQUEST_HEAD.size),
        ("### 2.6", 1, Renewal._fields, len(encode_renewal(Renewal(0, bytes(POLICY_BYTES))))),
        ("RESPONSE:", 1, m.Response._fields, 1 + m.RESPONSE_HEAD.size),
        ("Channel (payload", 0, m.Channel._fields, m.CHANNEL_LAYOUT.size),
    ],
)
def test_each_table_lists_all_fields_in_order_at_their_offsets(
    heading: str, first: int, fields: tuple[str, ...], size: int
) -> None:
    rows = table_after(heading)
    assert [row[2] for row in rows] == list(fields)
    at = first
    for offset, type_, *_ in rows:
        assert offset_of(offset) == at
        at += 0 if type_ == "…" else size_of(type_)
    assert at == size


def test_message_types_and_operations_match_the_code() -> None:
    assert {row[1]: int(row[0], 16) for row in table_after("## 2. Messages")} == {t.name: t for t in m.MessageType}
    operations = table_after("A request that fails")
    assert {row[1]: int(row[0]) for row in operations} == {op.name: op for op in m.Op}


@pytest.mark.parametrize(
    ("cell", "kind"),
    [("at the sample: ", m.Status), ("latched fault: ", m.Fault), ("| result | | ", m.Result)],
)
def test_named_values_match_the_code(cell: str, kind: type[enum.IntEnum] | type[enum.IntFlag]) -> None:
    text = PAGE[PAGE.index(cell) + len(cell) :].splitlines()[0]
    assert {name: int(n) for n, name in re.findall(r"(\d+) ([A-Z_]+)", text)} == {e.name: e.value for e in kind}


@pytest.mark.parametrize(
    ("op", "layout"),
    [("CONFIGURE", m.CONFIGURE_LAYOUT), ("LIMITS", m.LIMITS_LAYOUT), ("RESET", m.RESET_LAYOUT)],
)
def test_request_payloads_match_the_layout_in_the_code(op: str, layout: struct.Struct) -> None:
    (cell,) = (row[2] for row in table_after("A request that fails") if row[1] == op)
    types = [part.split()[-1] for part in cell.split(",")]
    assert "<" + "".join(TYPES[t] for t in types) == layout.format


def test_the_frame_limits_match_the_code() -> None:
    assert f"1 to **{MAX_BODY_BYTES}** bytes" in PAGE
    assert f"There are {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES} bytes" in PAGE
    assert f"S + 2A ≤ {m.MAX_STATE_COUNTS}" in PAGE
    assert f"version {m.PROTOCOL_VERSION}\n" in PAGE
    assert (RETRY_INTERVAL_S, MAX_ATTEMPTS) == (0.1, 10)
    assert "every 100 ms, ten times in all" in PAGE


@pytest.mark.rules("H701")
def test_the_line_rates_follow_from_the_sizes_on_the_wire() -> None:
    for rate, *cells in table_after("## 7. Line rate"):
        numbers = [int(cell) for cell in cells]
        for n_actuators, up, down, baud in ((1, *numbers[:2], numbers[4]), (4, *numbers[2:4], numbers[5])):
            state = len(encode_frame(bytes(m.StateLayout(2, n_actuators).size)))
            command = len(encode_frame(bytes(m.CommandLayout(n_actuators).size)))
            assert (up, down) == (state * int(rate), command * int(rate))
            quarter_s = 0.25 / int(rate)
            assert (state + command) * 10 / baud <= quarter_s


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The page's C code, compiled."""
    if C_COMPILER is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("firmware")
    source, library = folder / "framing.c", folder / "framing.so"
    source.write_text(code_block("c"))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    subprocess.run([C_COMPILER, *flags, "-o", str(library), str(source)], check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    loaded.onrig_crc32.restype = ctypes.c_uint32
    loaded.onrig_encode.restype = loaded.onrig_decode.restype = ctypes.c_size_t
    return loaded


def c_decode(firmware: ctypes.CDLL, chunk: bytes) -> bytes | None:
    buffer = ctypes.create_string_buffer(chunk, len(chunk))
    size = firmware.onrig_decode(buffer, ctypes.c_size_t(len(chunk)))
    return buffer.raw[1 : 1 + size] if size else None


def test_the_crc_in_c_gives_the_check_value(firmware: ctypes.CDLL) -> None:
    assert firmware.onrig_crc32(b"123456789", ctypes.c_size_t(9)) == 0xCBF43926


@settings(max_examples=80)
@given(st.binary(min_size=1, max_size=MAX_BODY_BYTES), st.integers(0), st.integers(1, 255))
def test_the_c_code_frames_like_python(firmware: ctypes.CDLL, body: bytes, where: int, bits: int) -> None:
    wire = ctypes.create_string_buffer(MAX_BODY_BYTES + 7)
    size = firmware.onrig_encode(body, ctypes.c_size_t(len(body)), wire)
    assert wire.raw[:size] == encode_frame(body)
    chunk = bytearray(wire.raw[1 : size - 1])
    assert c_decode(firmware, bytes(chunk)) == body
    chunk[where % len(chunk)] ^= bits
    assert c_decode(firmware, bytes(chunk)) is None


def test_the_c_code_refuses_every_invalid_chunk(firmware: ctypes.CDLL) -> None:
    for line in code_block("refused").splitlines():
        assert c_decode(firmware, bytes.fromhex("".join(line.split()[1:]))) is None
    assert c_decode(firmware, b"\x02" * 255) is None
