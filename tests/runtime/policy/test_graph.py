from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onrig.runtime.policy.call import Value, value_of
from onrig.runtime.policy.contract import ModelRefused, ports_for
from onrig.runtime.policy.graph import MAX_ELEMENTS, Cost, check_graph, check_operators
from onrig.runtime.policy.onnx_wire import FLOAT, read_model
from onrig.runtime.policy.operators import OPERATORS, infer_result
from tests.runtime.policy import models
from tests.runtime.policy.models import node


def compute_cost(model: onnx.ModelProto, max_parameters: int = 10_000, max_operations: int = 1_000_000) -> Cost:
    parsed = read_model(models.serialized(model))
    check_operators(parsed)
    return check_graph(parsed, ports_for(2, 1), max_parameters, max_operations)


def refusal_of(model: onnx.ModelProto, max_parameters: int = 10_000, max_operations: int = 1_000_000) -> str:
    with pytest.raises(ModelRefused) as error:
        compute_cost(model, max_parameters, max_operations)
    return str(error.value)


def test_counts_the_operations_of_a_network() -> None:
    # 2-50-50-1: weights and biases, and the scale; each multiply-add, bias and activation once (16 for tanh).
    assert compute_cost(models.policy()) == Cost(2751 + 1, (3 * 50 + 50) + (51 * 50 + 50) + (51 + 16) + 2, 4 * 50 + 3)


@pytest.mark.parametrize("opset", [20, 22, 25, 26])
def test_infers_the_shapes_through_every_kind_of_operator(opset: int) -> None:
    assert compute_cost(models.wide_policy(opset)).parameters > 0


def test_counts_the_operations_of_convolutions() -> None:
    # Each filter element and bias once per output: 3 (7, 5) images of 2 3 2 elements, then 4 (2, 2) of 3 2 2.
    first_size, second_size = 3 * 7 * 5, 4 * 2 * 2
    parameters = 120 + 4 + 36 + 3 + 48 + 16 + 1
    operations = (
        60 * 3
        + 60
        + 60
        + first_size * (12 + 1 + 1)
        + second_size * (12 + 1 + 1)
        + second_size
        + (second_size + 1)
        + 16
        + 2
    )
    assert compute_cost(models.convolving()) == Cost(
        parameters, operations, 3 * 60 + 2 * first_size + 3 * second_size + 3
    )


@pytest.mark.parametrize(
    "op", ["If", "Loop", "Expand", "Tile", "RandomNormal", "ConstantOfShape", "NonZero", "LSTM", ""]
)
def test_refuses_operators_that_are_not_allowed(op: str) -> None:
    assert refusal_of(models.linear([node(op, ["observation"], ["x"])])).startswith(
        f"operators: operator '{op}' is not"
    )


def test_refuses_operators_of_other_domains() -> None:
    model = models.linear([node("Gelu", ["observation"], ["x"], domain="com.microsoft")])
    assert "'com.microsoft.Gelu' is not allowed" in refusal_of(model)


@pytest.mark.parametrize("opset", [0, 12, 27])
def test_refuses_operator_sets_whose_rules_are_unknown(opset: int) -> None:
    assert f"operator set {opset}; allowed: 13 to 26" in refusal_of(models.linear(opset=opset))


def test_refuses_an_operator_before_the_set_that_introduced_it() -> None:
    assert "Gelu requires operator set 20" in refusal_of(
        models.linear([node("Gelu", ["observation"], ["x"])], opset=17)
    )


def test_refuses_unknown_attributes() -> None:
    assert "attribute 'beta'" in refusal_of(models.linear([node("Relu", ["observation"], ["x"], beta=1.0)]))
    assert "attribute 'axis'" in refusal_of(models.linear([node("Flatten", ["observation"], ["x"], axis=1.0)]))
    bad_attributes: list[tuple[str, Any]] = [
        ("auto_pad", "SAME_UPPER"),
        ("strides", 1),
        ("strides", [1.0, 1.0]),
        ("group", [1]),
    ]
    for name, value in bad_attributes:
        convolution = node("Conv", ["observation", "w"], ["x"], **{name: value})
        assert f"Conv is not allowed with an attribute '{name}'" in refusal_of(models.linear([convolution]))


INT64 = np.int64
ZERO = np.array([0], INT64)
BAD_CONVOLUTIONS: list[tuple[str, Any]] = [
    ("strides", [0, 1]), ("strides", [-1, 1]), ("strides", [1, 6]), ("strides", [1, (1 << 63) - 1]), ("strides", [1]),
    ("strides", [1, 1, 1]), ("pads", [0, 0]), ("pads", [0, 0, -1, 0]), ("pads", [2, 0, 0, 0]), ("pads", [0, 0, 0, 3]),
    ("pads", [1 << 62] * 4), ("dilations", [2, 1]), ("dilations", [1]), ("dilations", [0, 0]), ("group", 2),
    ("group", 0), ("group", -1), ("kernel_shape", [3, 2]), ("kernel_shape", [2, 3, 1]), ("kernel_shape", [0, 0]),
]  # fmt: skip
BAD_NODES = [
    (node("Gemm", ["observation", "a"], ["x"]), {"a": np.zeros((3, 1), np.float32)}),
    (node("Gemm", ["observation", "a", "b"], ["x"]), {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}),
    (node("Gemm", ["observation", "a"], ["x"]), {"a": np.zeros(2, np.float32)}),
    (node("MatMul", ["observation", "a"], ["x"]), {"a": np.zeros((3, 2), np.float32)}),
    (node("MatMul", ["observation", "a"], ["x"]), {"a": np.float32(1)}),
    (node("Add", ["observation", "a"], ["x"]), {"a": np.zeros(3, np.float32)}),
    (node("Add", ["observation", "a"], ["x"]), {"a": np.zeros(2)}),
    (node("Add", ["observation", ""], ["x"]), {}),
    (node("Div", ["a", "a"], ["x"]), {"a": np.zeros(2, INT64)}),
    (node("Clip", ["observation", "a"], ["x"]), {"a": np.zeros(1, np.float32)}),
    (node("Clip", ["observation", "a"], ["x"]), {"a": np.zeros(())}),
    (node("Cast", ["observation"], ["x"], to=7), {}),
    (node("Cast", ["observation"], ["x"]), {}),
    (node("Concat", ["observation", "a"], ["x"], axis=0), {"a": np.zeros((1, 3), np.float32)}),
    (node("Concat", ["observation"], ["x"], axis=2), {}),
    (node("Concat", ["observation"], ["x"]), {}),
    (node("Reshape", ["observation", "observation"], ["x"]), {}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([3], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([-1, -1], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([-2, -1], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([1, 2, 0], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([1 << 62, 4], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"], allowzero=1), {"a": np.array([2, 1], INT64)}),
    (node("Reshape", ["observation", "a"], ["x"]), {"a": np.array([1, 1, 1, 1, 1, 1, 2], INT64)}),
    (node("Flatten", ["observation"], ["x"], axis=3), {}),
    (node("Unsqueeze", ["observation", "a"], ["x"]), {"a": np.array([0, 0], INT64)}),
    (node("Unsqueeze", ["observation", "a"], ["x"]), {"a": np.array([3], INT64)}),
    (node("Unsqueeze", ["observation", "a"], ["x"]), {"a": np.array(0, INT64)}),
    (node("Squeeze", ["observation", "a"], ["x"]), {"a": np.array([1], INT64)}),
    (node("Slice", ["observation", "a", "a"], ["x"]), {"a": np.array([0], INT64)}),
    (node("Slice", ["observation", "a", "b"], ["x"]), {"a": np.array([0], INT64), "b": np.array([1, 1], INT64)}),
    (node("Slice", ["observation", "a", "b", "a", "c"], ["x"]), {"a": ZERO, "b": ZERO + 1, "c": ZERO - 1}),
    (node("Split", ["observation", "a"], ["x", "y"], axis=1), {"a": np.array([1, 2], INT64)}),
    (node("Split", ["observation", "a"], ["x", "y"], axis=1), {"a": np.array([2], INT64)}),
    (node("Split", ["observation"], ["x", "y", "z"], axis=1), {}),
    (node("Softmax", ["observation"], ["x"], axis=2), {}),
    (node("Transpose", ["observation"], ["x"], perm=[0, 0]), {}),
    (node("Gather", ["observation", "a"], ["x"], axis=1), {"a": np.array([2], INT64)}),
    (node("Gather", ["observation", "observation"], ["x"], axis=1), {}),
    (node("LayerNormalization", ["observation", "a"], ["x"]), {"a": np.ones(1, np.float32)}),
    *((node("Conv", ["image", "filters"], ["x"], **{name: value}), {}) for name, value in BAD_CONVOLUTIONS),
    *((node("Conv", ["image", name], ["x"]), {name: np.zeros(shape, np.float32)}) for name, shape in (
        ("deep", (3, 1, 2, 3)), ("tall", (3, 2, 5, 3)), ("wide", (3, 2, 2, 6)), ("flat", (3, 2, 2)), ("number", ()),
        ("solid", (3, 2, 2, 3, 1)),
    )),
    (node("Conv", ["image", "filters", "b"], ["x"]), {"b": np.zeros(2, np.float32)}),
    (node("Conv", ["image", "filters", "b"], ["x"]), {"b": np.zeros((3, 1), np.float32)}),
    (node("Conv", ["image", "filters", "b"], ["x"]), {"b": np.zeros(3)}),
    (node("Conv", ["image", "b"], ["x"]), {"b": np.zeros((3, 2, 2, 3))}),
    (node("Conv", ["b", "b"], ["x"]), {"b": np.zeros((2, 2, 2, 3))}),
    (node("Conv", ["observation", "filters"], ["x"]), {}),
    (node("Floor", ["a"], ["x"]), {"a": np.zeros(2, INT64)}),
    (node("Relu", ["missing"], ["x"]), {}),
    (node("Relu", ["observation"], ["observation"]), {}),
    (node("Relu", ["observation"], ["w"]), {}),
    (node("Relu", ["observation"], [""]), {}),
    (node("Constant", [], ["x"]), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("bad_node", "constants"), BAD_NODES, ids=[f"{i}-{n.op_type}" for i, (n, _) in enumerate(BAD_NODES)]
)
def test_refuses_inputs_that_do_not_match_the_operator(bad_node: onnx.NodeProto, constants: models.Arrays) -> None:
    images = {"image": np.ones((1, 2, 4, 5), np.float32), "filters": np.ones((3, 2, 2, 3), np.float32)}
    reason = refusal_of(models.linear([bad_node], {**images, **constants}, opset=18))
    assert reason.startswith(f"shapes: {bad_node.op_type}" if bad_node.op_type == "Conv" else "shapes: ")


def test_the_best_of_some_values_may_select_from_as_many_but_not_from_fewer() -> None:
    nodes = [node("ArgMax", ["observation"], ["best"], axis=1), node("Gather", ["levels", "best"], ["x"])]
    for levels, message in ((np.zeros(2, np.float32), ""), (np.zeros(1, np.float32), "indices up to 1 exceed 1")):
        model = models.linear([*nodes], {"levels": levels})
        if message:
            assert message in refusal_of(model)
        else:
            assert compute_cost(model).parameters == 2 + 2


def test_refuses_nodes_out_of_order() -> None:
    model = models.linear([node("Relu", ["observation"], ["a"])])
    model.graph.node[0].input[0] = "s"
    assert "uses 's' before it is defined" in refusal_of(model)


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ([], None, "0 inputs"),
        (["observation", "mask"], None, "2 inputs ['observation', 'mask']"),
        (["state"], None, "['state']"),
        (None, ["action", "s"], "2 outputs"),
        (None, [], "0 outputs"),
    ],
)
def test_refuses_other_ports(inputs: list[str] | None, outputs: list[str] | None, reason: str) -> None:
    model = models.linear()
    for field, names in ((model.graph.input, inputs), (model.graph.output, outputs)):
        if names is not None:
            del field[:]
            field.extend(helper.make_tensor_value_info(n, 1, [1, 2]) for n in names)
    assert reason in refusal_of(model)


@pytest.mark.parametrize(
    ("port", "shape", "kind", "reason"),
    [
        ("input", [1, 3], 1, "'observation' has shape [1, 3]; the rig needs [1, 2]"),
        ("input", [2], 1, "has shape [2]"),
        ("input", [4, 2], 1, "has shape [4, 2]"),
        ("input", [-1, 2], 1, "has shape [-1, 2]"),
        ("input", ["batch", "width"], 1, "['batch', 'width']"),
        ("input", None, 1, "shape None"),
        ("input", [1, 2], 11, "element type 11"),
        ("output", [1, 2], 1, "'action' has shape [1, 2]; the rig needs [1, 1]"),
        ("output", [1, 1], 11, "element type 11"),
    ],
)
def test_refuses_ports_of_other_shapes(port: str, shape: list[int | str] | None, kind: int, reason: str) -> None:
    model = models.linear()
    getattr(model.graph, port)[0].CopyFrom(
        helper.make_tensor_value_info("observation" if port == "input" else "action", kind, shape)
    )
    assert reason in refusal_of(model)


def test_refuses_an_output_of_another_shape_or_type_than_declared() -> None:
    model = models.linear()
    model.graph.node[-1].output[0] = "y"
    model.graph.node.append(node("Concat", ["y", "y"], ["action"], axis=1))
    assert "(1, (1, 2))" in refusal_of(model)
    model.graph.node[-1].CopyFrom(node("Cast", ["y"], ["action"], to=11))
    assert "(11, (1, 1))" in refusal_of(model)


def test_refuses_an_output_that_nothing_computes() -> None:
    model = models.linear()
    model.graph.node[-1].output[0] = "y"
    assert "no node computes" in refusal_of(model)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 1), np.float32), "action"))
    assert "no node computes" in refusal_of(model)


@pytest.mark.parametrize("shape", [[1 << 40, 1], [2, 1], ["batch", "batch", "batch"], [1, 2]])
def test_refuses_a_false_declaration(shape: list[int | str]) -> None:
    model = models.linear()
    model.graph.value_info.append(helper.make_tensor_value_info("s", 1, shape))
    assert "'s' is declared as" in refusal_of(model)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_non_finite_weights(value: float) -> None:
    model = models.linear([node("Add", ["observation", "a"], ["x"])], {"a": np.array([[0, value]], np.float32)})
    assert refusal_of(model).startswith("finite: constant 'a' has 1 non-finite elements")


def test_refuses_more_parameters_or_operations_than_allowed() -> None:
    assert "more than 2751 parameters" in refusal_of(models.policy(), max_parameters=2751)
    assert "more than 2868 operations" in refusal_of(models.policy(), max_operations=2868)
    assert compute_cost(models.policy(), 2752, 2869).operations == 2869


COLUMN, ROW = np.zeros((3000, 1), np.float32), np.zeros((1, 3000), np.float32)
OVERSIZED_GRAPHS: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "broadcast": ([node("Add", ["a", "b"], ["x"])], {"a": COLUMN, "b": ROW}),
    "outer product": ([node("MatMul", ["a", "b"], ["x"])], {"a": COLUMN, "b": ROW}),
    "concat": ([node("Concat", [f"x{i}" if i else "observation"] * 64, [f"x{i + 1}"], axis=0) for i in range(4)], {}),
}


@pytest.mark.parametrize("name", OVERSIZED_GRAPHS)
def test_refuses_graphs_that_grow_without_running_them(name: str) -> None:
    nodes, constants = OVERSIZED_GRAPHS[name]
    reason = refusal_of(models.linear(nodes, constants), max_operations=1 << 40)
    assert reason.startswith(f"size: more than {MAX_ELEMENTS} elements to compute")


def pair(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=2, max_size=2)


@st.composite
def calls(draw: st.DrawFn) -> tuple[onnx.NodeProto, tuple[int, ...], dict[str, np.ndarray]]:
    """Draw one operator, the shape of its first input, and its constants; many do not match, and are refused."""
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=4)))
    rank = len(shape)
    axis = st.integers(-rank - 1, rank)
    axes = st.lists(axis, min_size=1, max_size=2)
    sizes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    flags = st.integers(-1, 2)
    constants: dict[str, np.ndarray] = {}
    attributes: dict[str, object] = {}
    outputs = ["y"]
    op = draw(st.sampled_from(sorted(OPERATORS.keys() - {"Constant", "Clip"})))
    if op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        constants["b"] = np.ones(draw(sizes), np.float32)
    elif op == "Gemm":
        attributes |= {"transA": draw(flags), "transB": draw(flags)}
        constants |= {"b": np.ones(draw(sizes), np.float32), "c": np.ones(draw(sizes), np.float32)}
    elif op == "MatMul":
        constants["b"] = np.ones(draw(sizes), np.float32)
    elif op == "Conv":
        shape = (*draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), *draw(pair(1, 5)))
        constants["b"] = np.ones((draw(st.integers(1, 3)), draw(st.integers(1, 2)), *draw(pair(1, 4))), np.float32)
        if draw(st.booleans()):
            constants["c"] = np.ones(draw(st.integers(1, 3)), np.float32)
        attributes |= {"strides": draw(pair(0, 4)), "pads": [*draw(pair(-1, 3)), *draw(pair(-1, 3))]}
    elif op == "Reshape":
        constants["b"] = np.array(draw(st.lists(st.integers(-1, 3), min_size=1, max_size=3)), np.int64)
    elif op in ("Unsqueeze", "Squeeze"):
        constants["b"] = np.array(draw(axes), np.int64)
    elif op == "Slice":
        count = draw(st.integers(1, 2))
        lists = st.lists(st.integers(-4, 4), min_size=count, max_size=count)
        constants |= {k: np.array(draw(lists), np.int64) for k in ("b", "c")}
        constants["d"] = np.array(draw(st.lists(axis, min_size=count, max_size=count)), np.int64)
        constants["e"] = np.array(draw(st.lists(st.integers(1, 2), min_size=count, max_size=count)), np.int64)
    elif op == "Gather":
        attributes["axis"] = draw(axis)
        constants["b"] = np.array(
            draw(st.integers(-3, 2) | st.lists(st.integers(-3, 2), min_size=1, max_size=3)), np.int64
        )
    elif op == "Softmax":
        attributes["axis"] = draw(axis)
    elif op == "LayerNormalization":
        attributes["axis"] = draw(axis)
        constants["b"] = np.ones(draw(sizes), np.float32)
    elif op == "Split":
        outputs = ["y", "z"]
        attributes["axis"] = draw(axis)
        constants["b"] = np.array(draw(st.lists(st.integers(1, 2), min_size=2, max_size=2)), np.int64)
    elif op in ("Flatten", "Concat"):
        attributes["axis"] = draw(axis)
    elif op == "ArgMax":
        attributes |= {"axis": draw(axis), "keepdims": draw(flags)}
    elif op == "Transpose":
        attributes["perm"] = draw(st.permutations(range(max(rank, 1))))
    elif op == "Cast":
        attributes["to"] = 11
    made_node = helper.make_node(op, ["observation", *constants], outputs)
    made_node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    return made_node, shape, constants


def infer_shapes(
    made_node: onnx.NodeProto, shape: tuple[int, ...], constants: dict[str, np.ndarray]
) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes expected by the rule, after checking them against onnxruntime; None if it refuses."""
    port = helper.make_tensor_value_info("observation", 1, shape)
    outputs = [onnx.ValueInfoProto(name=name) for name in made_node.output]
    for output in outputs:
        output.type.tensor_type.elem_type = {"Cast": 11, "ArgMax": 7}.get(made_node.op_type, 1)
    model = models.serialized(models.proto([made_node], constants, opset=20, inputs=[port], outputs=outputs))
    parsed = read_model(model)
    values = [Value(FLOAT, shape), *map(value_of, parsed.initializers.values())]
    try:
        expected = infer_result(parsed.nodes[0], tuple(values)).shapes
    except ModelRefused:
        return None
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    results = session.run(None, {"observation": np.ones(shape, np.float32)})
    assert tuple(r.shape for r in results) == expected
    return expected


@settings(max_examples=300)
@given(calls())
def test_onnxruntime_agrees_with_every_accepted_shape(
    call: tuple[onnx.NodeProto, tuple[int, ...], dict[str, np.ndarray]],
) -> None:
    infer_shapes(*call)


@pytest.mark.parametrize(
    ("op", "shape", "lists", "attributes", "expected"),
    [
        ("Gather", (2, 3, 4), [[0, -1, 1, 0, 2]], {"axis": 1}, [(2, 5, 4)]),
        ("Unsqueeze", (2, 3), [[-1, 0]], {}, [(1, 2, 3, 1)]),
        ("Unsqueeze", (2, 3), [[2, 0]], {}, [(1, 2, 1, 3)]),
        ("Squeeze", (1, 2, 1, 3), [], {}, [(2, 3)]),
        ("Squeeze", (1, 2, 1, 3), [[-2]], {}, [(1, 2, 3)]),
        ("Slice", (4, 5), [[1, -9], [1 << 62, -1], [1, 0]], {}, [(3, 4)]),
        ("Slice", (9,), [[1], [8], [0], [3]], {}, [(3,)]),
        ("Split", (2, 6), [], {"axis": 1, "num_outputs": 3}, [(2, 2)] * 3),
        ("Split", (2, 6), [], {"axis": 1, "num_outputs": 4}, None),
        ("Split", (2, 6), [[1, 5]], {"axis": -1}, [(2, 1), (2, 5)]),
        ("Reshape", (2, 6), [[0, -1, 3]], {}, [(2, 2, 3)]),
        ("Flatten", (2, 3, 4), [], {"axis": -1}, [(6, 4)]),
        ("Transpose", (2, 3, 4), [], {"perm": [2, 0, 1]}, [(4, 2, 3)]),
        ("Transpose", (2, 3), [], {}, [(3, 2)]),
        ("Concat", (2, 3), [], {"axis": -1}, [(2, 3)]),
        ("ArgMax", (2, 3, 4), [], {"axis": 1}, [(2, 1, 4)]),
        ("ArgMax", (2, 3, 4), [], {"axis": -1, "keepdims": 0}, [(2, 3)]),
        ("ArgMax", (2, 3, 4), [], {"axis": -1, "keepdims": 2}, None),
        ("ArgMax", (2, 3, 4), [], {"axis": -1, "keepdims": -1}, None),
    ],
)
def test_computes_the_shapes_of_the_specification(
    op: str,
    shape: tuple[int, ...],
    lists: list[list[int]],
    attributes: dict[str, object],
    expected: list[tuple[int, ...]] | None,
) -> None:
    constants = {f"c{i}": np.array(values, np.int64) for i, values in enumerate(lists)}
    count = attributes.get("num_outputs", len(expected or (1,)))
    assert isinstance(count, int)
    made_node = helper.make_node(op, ["observation", *constants], [f"y{i}" for i in range(count)])
    made_node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    assert infer_shapes(made_node, shape, constants) == (None if expected is None else tuple(expected))
