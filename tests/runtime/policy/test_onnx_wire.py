import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onrig.runtime.policy import onnx_wire, protobuf_wire
from onrig.runtime.policy.contract import METADATA_KEY, ModelRefused, encode_contract
from onrig.runtime.policy.onnx_wire import Attribute, read_model
from tests.runtime.policy import models


def refusal_message(data: bytes) -> str:
    with pytest.raises(ModelRefused) as error:
        read_model(data)
    assert error.value.stage == "format"
    return error.value.reason


def field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def model_with_tensor(tensor: onnx.TensorProto) -> bytes:
    model = models.linear()
    model.graph.initializer.append(tensor)
    return models.serialized(model)


def model_with_raw_tensor(payload: bytes) -> bytes:
    def length_delimited(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2, len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14]) + body

    return b"\x08\x08" + length_delimited(7, length_delimited(5, payload))


@pytest.mark.parametrize("model", [models.policy(), models.wide_policy()], ids=["plain", "wide"])
def test_reads_the_same_as_onnx(model: onnx.ModelProto) -> None:
    parsed = read_model(models.serialized(model))
    assert parsed.ir_version == model.ir_version
    assert parsed.opsets == {o.domain: o.version for o in model.opset_import}
    assert parsed.metadata == {METADATA_KEY: encode_contract(models.CONTRACT)}
    assert [(n.op_type, n.inputs, n.outputs) for n in parsed.nodes] == [
        (n.op_type, tuple(n.input), tuple(n.output)) for n in model.graph.node
    ]
    for parsed_node, onnx_node in zip(parsed.nodes, model.graph.node, strict=True):
        assert {a.name: a.type for a in onnx_node.attribute} == {
            name: a.type for name, a in parsed_node.attributes.items()
        }
    assert list(parsed.initializers) == [t.name for t in model.graph.initializer]
    for tensor in model.graph.initializer:
        expected = numpy_helper.to_array(tensor)
        assert parsed.initializers[tensor.name].dtype == expected.dtype
        np.testing.assert_array_equal(parsed.initializers[tensor.name], expected)
    assert [v.name for v in parsed.inputs] == ["observation"]
    assert [v.name for v in parsed.outputs] == ["action"]
    assert [v.shape for v in parsed.value_infos] == [
        tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in model.graph.value_info
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("alpha", 0.5, Attribute(1, 0.5)),
        ("axis", -(1 << 63), Attribute(2, -(1 << 63))),
        ("mode", "linear", Attribute(3, b"linear")),
        ("weights", [1.0, -2.0], Attribute(6, (1.0, -2.0))),
        ("axes", [0, -1, 1 << 40], Attribute(7, (0, -1, 1 << 40))),
    ],
)
def test_reads_every_kind_of_attribute(name: str, value: object, expected: Attribute) -> None:
    model = models.linear([models.node("Relu", ["observation"], ["r"])])
    model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    assert read_model(models.serialized(model)).nodes[0].attributes == {name: expected}


@pytest.mark.parametrize("array", [np.array([[1.5], [-2.0]], np.float32), np.array([0.1]), np.array([-1, 1 << 62])])
def test_reads_elements_in_typed_fields(array: np.ndarray) -> None:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    parsed = read_model(model_with_tensor(helper.make_tensor("t", kind, array.shape, array.ravel().tolist())))
    np.testing.assert_array_equal(parsed.initializers["t"], array)
    assert not parsed.initializers["t"].flags.writeable


def test_every_truncation_is_refused_or_lacks_complete_fields() -> None:
    data = models.serialized(models.policy(hidden=2))
    complete = read_model(data)
    for length in range(len(data)):
        try:
            parsed = read_model(data[:length])
        except ModelRefused:
            continue
        # A prefix may end between two top-level fields, and is then a model of its own.
        assert (parsed.opsets, parsed.metadata) != (complete.opsets, complete.metadata)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "IR version 0"),
        (b"\x08\x08", "no graph"),
        (b"garbage from the line", "unknown field 12"),
        (b"\x08", "truncated"),
        (b"\x08" + b"\xff" * 11, "more than ten bytes"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (b"\x08\x08\x08\x08", "field 1 twice"),
        (b"\x0a\x01\x08", "wire type 2, expected 0"),
        (b"\x3b\x3c", "wire type 3, expected 2"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "truncated"),
        (b"\x3a\x7f\x00", "truncated"),
        (b"\x08\x63", "IR version 99"),
        (b"\x08\x03", "IR version 3"),
        (b"\x08\x08" + field(7, b"") + field(7, b""), "field 7 twice"),
        (b"\x08\x08\xa2\x01\x00", "training info"),
        (b"\x08\x08\xca\x01\x00", "functions"),
        (b"\x08\x08\xd2\x01\x00", "device configurations"),
        (b"\x08\x08" + field(7, field(15, b"")), "sparse initializers"),
        (b"\x08\x08" + field(7, field(14, b"")), "quantization"),
        (b"\x08\x08" + field(7, field(1, field(4, b"\xff"))), "not UTF-8"),
        (b"\x08\x08" + field(7, field(1, field(5, field(6, b"")))), "a subgraph"),
        (b"\x08\x08" + field(7, field(1, field(5, field(11, b"")))), "subgraphs"),
        (b"\x08\x08" + field(7, field(11, field(2, field(4, b"")))), "a sequence"),
    ],
)
def test_refuses_bytes_that_are_not_a_policy(data: bytes, reason: str) -> None:
    assert reason in refusal_message(data)


def test_refuses_a_length_that_fits_only_the_outer_message() -> None:
    node = field(1, b"\x22\x05Re")  # op_type claims five bytes, the node ends after two
    assert "truncated" in refusal_message(b"\x08\x08" + field(7, node + field(2, b"policy")))


@pytest.mark.parametrize("location", ["location", "entries"])
def test_refuses_external_data(location: str) -> None:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), "t")
    if location == "location":
        tensor.data_location = onnx.TensorProto.EXTERNAL
    else:
        tensor.external_data.add(key="location", value="../../etc/passwd")
    assert "external data" in refusal_message(model_with_tensor(tensor))


def test_refuses_external_data_in_a_constant() -> None:
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), "t")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    assert "external data" in refusal_message(
        models.serialized(models.linear([models.node("Constant", [], ["c"], value=tensor)]))
    )


@pytest.mark.parametrize(
    ("dims", "raw", "reason"),
    [
        ([3], bytes(8), "has 8 bytes; its dimensions [3] need 12"),
        ([1], bytes(8), "need 4"),
        ([-2, -1], bytes(8), "dimensions [-2, -1]"),
        ([0], b"", "dimensions [0]"),
        ([1 << 62, 4], bytes(0), "has 0 bytes"),
        ([1] * 7, bytes(4), "dimensions"),
    ],
)
def test_refuses_a_tensor_whose_bytes_and_dimensions_disagree(dims: list[int], raw: bytes, reason: str) -> None:
    tensor = onnx.TensorProto(name="t", data_type=1, dims=dims, raw_data=raw)
    assert reason in refusal_message(model_with_tensor(tensor))


def test_refuses_a_tensor_whose_elements_are_given_twice() -> None:
    tensor = onnx.TensorProto(name="t", data_type=1, dims=[1], raw_data=bytes(4), float_data=[1.0])
    assert "fields [4, 9]" in refusal_message(model_with_tensor(tensor))


@pytest.mark.parametrize("kind", [0, 2, 6, 8, 10, 16, 99])
def test_refuses_element_types_that_policies_do_not_need(kind: int) -> None:
    assert f"element type {kind}" in refusal_message(
        model_with_tensor(onnx.TensorProto(name="t", data_type=kind, dims=[1]))
    )


def test_refuses_an_attribute_whose_type_names_another_field() -> None:
    model = models.linear([models.node("Elu", ["observation"], ["e"], alpha=1.0)])
    model.graph.node[0].attribute[0].type = onnx.AttributeProto.INT
    assert "attribute 'alpha' of type 2" in refusal_message(models.serialized(model))


def test_refuses_names_given_twice() -> None:
    model = models.linear()
    model.graph.initializer.append(model.graph.initializer[0])
    assert "'w' is given twice" in refusal_message(models.serialized(model))
    model = models.linear([models.node("Elu", ["observation"], ["e"], alpha=1.0)])
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    assert "'alpha' twice" in refusal_message(models.serialized(model))
    model = models.linear()
    model.metadata_props.append(model.metadata_props[0])
    assert "given twice" in refusal_message(models.serialized(model))
    model = models.linear()
    model.opset_import.add(domain="ai.onnx", version=17)
    assert "imported twice" in refusal_message(models.serialized(model))


def test_refuses_more_nodes_or_fields_than_a_policy_has() -> None:
    relu = [models.node("Relu", ["observation"], [f"r{i}"]) for i in range(onnx_wire.MAX_NODES)]
    assert "514 nodes; at most 512" in refusal_message(models.serialized(models.linear(relu)))
    many_fields = b"\x72\x00" * (protobuf_wire.MAX_FIELDS + 1)
    assert f"more than {protobuf_wire.MAX_FIELDS} fields" in refusal_message(many_fields)
    dims = onnx.TensorProto(name="t", data_type=1, dims=[1] * protobuf_wire.MAX_FIELDS)
    nested_fields = field(1, bytes(100)) * (protobuf_wire.MAX_FIELDS // 100)
    assert f"more than {protobuf_wire.MAX_FIELDS} fields" in refusal_message(model_with_tensor(dims))
    assert f"more than {protobuf_wire.MAX_FIELDS} fields" in refusal_message(model_with_raw_tensor(nested_fields))


def test_a_long_reason_is_one_short_line() -> None:
    model = models.linear()
    model.graph.initializer[0].name = "\n\x1b[31m" + "x" * 400
    model.graph.initializer[0].ClearField("raw_data")
    reason = refusal_message(models.serialized(model))
    assert len(reason) <= 300
    assert reason.isprintable()
