"""Parser for the subset of ONNX that a policy may use (docs/architecture.md).

A policy comes from an untrusted process, and onnxruntime is a large C++ program that was not hardened against hostile
models, so this parser checks the bytes first.  It supports the fields of ``onnx.proto`` (IR version 14) that a plain
feed-forward graph needs, and rejects functions, training info, subgraphs, sparse and external tensors, and all unknown
fields.  The nesting is fixed (model, graph, node, attribute, tensor), and tensors are views into the bytes or copies of
a limited number of fields, so memory is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.policy.protobuf_wire import BYTES, FIXED32, VARINT, Field, Fields, Message, decode, format_refusal

MAX_NODES: Final = 512
MAX_TENSORS: Final = 512
MAX_RANK: Final = 6
MAX_METADATA_BYTES: Final = 1024 * 1024
"""Maximum size of a value in the metadata; the contract of a policy with 8192 inputs, for images, takes 540 kB."""
IR_VERSIONS: Final = range(4, 15)
"""Supported IR versions: version 3 still listed every weight among the inputs, and 14 is the newest version checked."""

FLOAT: Final = 1
INT64: Final = 7
DOUBLE: Final = 11
DTYPES: Final[Mapping[int, np.dtype[np.generic]]] = {
    FLOAT: np.dtype("<f4"),
    INT64: np.dtype("<i8"),
    DOUBLE: np.dtype("<f8"),
}
"""Element types that a policy may use; integers are allowed only for axes, shapes and indices."""

Array = npt.NDArray[np.generic]
AttributeValue = int | float | bytes | Array | tuple[int, ...] | tuple[float, ...]


class Attribute(NamedTuple):
    """A node's attribute: its ``AttributeProto.type`` (1 float, 2 int, 3 string, 4 tensor, 6 floats, 7 ints) and its
    value."""

    type: int
    value: AttributeValue


class Node(NamedTuple):
    """One operation of the graph."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]


class ValueInfo(NamedTuple):
    """Declared type of a value; ``shape`` is None if undeclared, and a dimension is a number, a symbol or None."""

    name: str
    elem_type: int
    shape: tuple[int | str | None, ...] | None


class OnnxModel(NamedTuple):
    """Parts of a ModelProto that admission needs; the initializers are read-only arrays."""

    ir_version: int
    opsets: dict[str, int]
    metadata: dict[str, str]
    nodes: tuple[Node, ...]
    initializers: dict[str, Array]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    value_infos: tuple[ValueInfo, ...]


_ONE, _MANY = Field(BYTES), Field(BYTES, repeated=True)
_INT, _INTS = Field(VARINT), Field(VARINT, repeated=True)

_SHAPE: Final = Message(
    "shape",
    {1: Field(BYTES, repeated=True, message=Message("dimension", {1: _INT, 2: _ONE, 3: _ONE}))},
)
_TYPE: Final = Message(
    "type",
    {1: Field(BYTES, message=Message("tensor type", {1: _INT, 2: Field(BYTES, message=_SHAPE)})), 6: _ONE},
    {4: "a sequence", 5: "a map", 7: "an opaque type", 8: "a sparse tensor", 9: "an optional type"},
)
_TENSOR: Final = Message(
    "tensor",
    {1: _INTS, 2: _INT, 4: _ONE, 7: _INTS, 8: _ONE, 9: _ONE, 10: _ONE, 12: _ONE, 14: _INT, 16: _MANY},
    {3: "segments", 5: "small integers", 6: "strings", 11: "unsigned integers", 13: "external data"},
)
_ATTRIBUTE: Final = Message(
    "attribute",
    {
        1: _ONE,
        2: Field(FIXED32),
        3: _INT,
        4: _ONE,
        5: Field(BYTES, message=_TENSOR),
        7: Field(FIXED32, repeated=True),
        8: _INTS,
        13: _ONE,
        20: _INT,
    },
    {6: "a subgraph", 9: "strings", 10: "a list of tensors", 11: "subgraphs", 14: "a type", 15: "types"}
    | {21: "a reference to a function's attribute", 22: "a sparse tensor", 23: "sparse tensors"},
)
_NODE: Final = Message(
    "node",
    {
        1: _MANY,
        2: _MANY,
        3: _ONE,
        4: _ONE,
        5: Field(BYTES, repeated=True, message=_ATTRIBUTE),
        6: _ONE,
        7: _ONE,
        9: _MANY,
    },
    {8: "a function overload", 10: "device configurations"},
)
_VALUE_INFOS: Final = Field(
    BYTES,
    repeated=True,
    message=Message("value info", {1: _ONE, 2: Field(BYTES, message=_TYPE), 3: _ONE, 4: _MANY}),
)
_GRAPH: Final = Message(
    "graph",
    {
        5: Field(BYTES, repeated=True, message=_TENSOR, limit=MAX_TENSORS, plural="initializers"),
        1: Field(BYTES, repeated=True, message=_NODE, limit=MAX_NODES, plural="nodes"),
        2: _ONE,
        10: _ONE,
        11: _VALUE_INFOS,
        12: _VALUE_INFOS,
        13: _VALUE_INFOS,
        16: _MANY,
    },
    {14: "quantization annotations", 15: "sparse initializers"},
)
_MODEL: Final = Message(
    "model",
    {
        1: _INT,
        2: _ONE,
        3: _ONE,
        4: _ONE,
        5: _INT,
        6: _ONE,
        8: Field(BYTES, repeated=True, message=Message("opset import", {1: _ONE, 2: _INT})),
        14: Field(BYTES, repeated=True, message=Message("metadata", {1: _ONE, 2: _ONE})),
        7: Field(BYTES, message=_GRAPH),
    },
    {20: "training info", 25: "functions", 26: "device configurations"},
)

_ATTRIBUTE_FIELDS: Final[Mapping[int, int]] = {1: 2, 2: 3, 3: 4, 4: 5, 6: 7, 7: 8}
"""Field that must contain the value, by ``AttributeProto.type``."""
_TYPED_DATA: Final[Mapping[int, int]] = {FLOAT: 4, INT64: 7, DOUBLE: 10}
"""Field that may contain the elements instead of ``raw_data``, by element type."""


def _to_float(raw: int) -> float:
    value: float = struct.unpack("<f", raw.to_bytes(4, "little"))[0]
    return value


def _read_tensor(fields: Fields) -> tuple[str, Array]:
    """Read a TensorProto as (name, read-only array), and check its size against its dimensions."""
    name = fields.text(8)
    dims = fields.scalars.get(1, [])
    if fields.number(14) != 0:
        raise format_refusal(f"tensor {name!r} has external data, which policies may not use")
    data_type = fields.number(2)
    dtype = DTYPES.get(data_type)
    if dtype is None:
        raise format_refusal(f"tensor {name!r} has element type {data_type}; allowed: {sorted(DTYPES)}")
    if len(dims) > MAX_RANK or any(d < 1 for d in dims):
        raise format_refusal(f"tensor {name!r} has dimensions {dims[: MAX_RANK + 1]}")
    count = 1
    for dim in dims:
        count *= dim
    sources = [field for field in (4, 7, 9, 10) if fields.has(field)]
    if sources != [9] and sources != [_TYPED_DATA[data_type]]:
        raise format_refusal(f"tensor {name!r} of type {data_type} has its elements in the fields {sources}")
    if sources[0] in fields.scalars:
        values = fields.scalars[sources[0]]
        if len(values) != count:
            raise format_refusal(f"tensor {name!r} has {len(values)} elements; its dimensions {dims} need {count}")
        array: Array = np.array(values, dtype=dtype)
        array.flags.writeable = False
    else:
        start, end = fields.span(sources[0])
        if end - start != count * dtype.itemsize:
            n_bytes = count * dtype.itemsize
            raise format_refusal(f"tensor {name!r} has {end - start} bytes; its dimensions {dims} need {n_bytes}")
        array = np.frombuffer(fields.data, dtype, count, start)
    return name, array.reshape(dims)


def _read_attribute(fields: Fields) -> tuple[str, Attribute]:
    """Read an AttributeProto as (name, attribute); its value must be in the field for its type."""
    name, kind = fields.text(1), fields.number(20)
    field = _ATTRIBUTE_FIELDS.get(kind)
    other_fields = [f for f in _ATTRIBUTE_FIELDS.values() if f != field and fields.has(f)]
    if field is None or other_fields:
        raise format_refusal(f"attribute {name!r} of type {kind} has its value in the fields {other_fields}")
    value: AttributeValue
    if field == 2:
        value = _to_float(fields.number(2))
    elif field == 3:
        value = fields.number(3)
    elif field == 4:
        start, end = fields.span(4)
        value = fields.data[start:end]
    elif field == 5:
        value = _read_tensor(fields.message(5))[1]
    elif field == 7:
        value = tuple(_to_float(raw) for raw in fields.scalars.get(7, []))
    else:
        value = tuple(fields.scalars.get(8, []))
    return name, Attribute(kind, value)


def _read_node(fields: Fields) -> Node:
    op_type = fields.text(4)
    attributes: dict[str, Attribute] = {}
    for item in fields.messages.get(5, []):
        name, attribute = _read_attribute(item)
        if name in attributes:
            raise format_refusal(f"node {op_type!r} has attribute {name!r} twice")
        attributes[name] = attribute
    inputs, outputs = fields.texts(1), fields.texts(2)
    return Node(op_type, fields.text(7), inputs, outputs, attributes)


def _read_value_info(fields: Fields) -> ValueInfo:
    """Read a ValueInfoProto; only dense tensors are supported."""
    name = fields.text(1)
    tensor = fields.message(2).message(1)
    if not tensor.has(2):
        return ValueInfo(name, tensor.number(1), None)
    shape: list[int | str | None] = []
    for dim in tensor.message(2).messages.get(1, []):
        if dim.has(1) and dim.has(2):
            raise format_refusal(f"value {name!r} has a dimension that is both a number and a symbol")
        shape.append(dim.number(1) if dim.has(1) else dim.text(2) if dim.has(2) else None)
    if len(shape) > MAX_RANK:
        raise format_refusal(f"value {name!r} has {len(shape)} dimensions; at most {MAX_RANK} allowed")
    return ValueInfo(name, tensor.number(1), tuple(shape))


def read_model(data: bytes) -> OnnxModel:
    """Parse the bytes of a ModelProto; raises ModelRefused (stage ``format``) for the first error.

    The caller must limit ``len(data)``.  ``onrig.runtime.policy.graph`` checks names, operators and shapes.
    """
    model = decode(data, _MODEL)
    ir_version = model.number(1)
    if ir_version not in IR_VERSIONS:
        raise format_refusal(f"ONNX IR version {ir_version}; supported: {IR_VERSIONS.start} to {IR_VERSIONS.stop - 1}")
    opsets: dict[str, int] = {}
    for fields in model.messages.get(8, []):
        domain = fields.text(1)
        domain = "" if domain == "ai.onnx" else domain
        if domain in opsets:
            raise format_refusal(f"operator set {domain!r} is imported twice")
        opsets[domain] = fields.number(2)
    metadata: dict[str, str] = {}
    for fields in model.messages.get(14, []):
        key, value = fields.text(1), fields.text(2, MAX_METADATA_BYTES)
        if key in metadata:
            raise format_refusal(f"metadata key {key!r} is given twice")
        metadata[key] = value
    if not model.has(7):
        raise format_refusal("no graph")
    graph = model.message(7)
    initializers: dict[str, Array] = {}
    for fields in graph.messages.get(5, []):
        name, array = _read_tensor(fields)
        if name in initializers:
            raise format_refusal(f"initializer {name!r} is given twice")
        initializers[name] = array
    nodes = tuple(map(_read_node, graph.messages.get(1, [])))
    inputs, outputs, infos = (tuple(map(_read_value_info, graph.messages.get(f, []))) for f in (11, 12, 13))
    return OnnxModel(ir_version, opsets, metadata, nodes, initializers, inputs, outputs, infos)
