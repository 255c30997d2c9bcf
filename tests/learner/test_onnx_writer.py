"""Exported models compared with the onnx library, which checks them and writes the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onrig.learner.export import (
    InputFilter,
    Layers,
    LogStdHead,
    export_discrete_policy,
    export_gaussian_policy,
    export_policy,
    export_recurrent_policy,
)
from onrig.learner.onnx_writer import tensor
from onrig.runtime.policy.contract import DETERMINISTIC, GAUSSIAN, SQUASHED_GAUSSIAN, PolicyContract, contract_for
from onrig.runtime.policy.onnx_wire import read_model
from onrig.tools.load import load

RNG = np.random.default_rng(0)
Export = Callable[[PolicyContract], bytes]


def _layers(*widths: int) -> Layers:
    return [(RNG.normal(size=(i, o)), RNG.normal(size=o)) for i, o in itertools.pairwise(widths)]


def _contract(behaviour: str) -> PolicyContract:
    rig = load("pendulum", []).rig
    return contract_for(rig, 50.0, policy_id=300, parent_run="r\u00fcn", training_step=1200, behaviour=behaviour)


EXPORTS: dict[str, tuple[str, Export]] = {
    "actor": (DETERMINISTIC, lambda c: export_policy(_layers(2, 7, 5, 1), c)),
    "squashed": (
        SQUASHED_GAUSSIAN,
        lambda c: export_policy(
            _layers(2, 7, 1), c, LogStdHead(RNG.normal(size=(7, 1)), RNG.normal(size=1), (-5.0, 2.0))
        ),
    ),
    "gaussian": (GAUSSIAN, lambda c: export_gaussian_policy(_layers(2, 9, 1), np.ones(1), c, has_bounded_mean=True)),
    "filtered": (
        GAUSSIAN,
        lambda c: export_gaussian_policy(
            _layers(2, 9, 1), np.ones(1), c, activation="Tanh", input_filter=InputFilter(np.zeros(2), np.ones(2), 5.0)
        ),
    ),
    "discrete": (DETERMINISTIC, lambda c: export_discrete_policy(_layers(2, 6, 5), np.linspace(-1, 1, 5), c)),
    "distributions": (
        DETERMINISTIC,
        lambda c: export_discrete_policy(_layers(2, 6, 15), np.linspace(-1, 1, 5), c, np.linspace(-1, 1, 3)),
    ),
    "recurrent": (
        GAUSSIAN,
        lambda c: export_recurrent_policy([*_layers(2 + 4, 16), *_layers(4, 1)], np.ones(1), c),
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_onnx_library_accepts_the_model_and_writes_the_same_bytes(name: str) -> None:
    behaviour, export = EXPORTS[name]
    data = export(_contract(behaviour))
    model = onnx.load_model_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == data
    parsed = read_model(data)
    assert [node.op_type for node in parsed.nodes] == [node.op_type for node in model.graph.node]
    assert [p.key for p in model.metadata_props] == list(parsed.metadata)


@pytest.mark.parametrize("array", [np.array(1.5), np.zeros((0, 3)), np.arange(300), np.full((130, 2), -1.0)])
def test_constants_match_those_of_the_onnx_library(array: np.ndarray) -> None:
    proto = onnx.TensorProto.FromString(tensor("name", array))
    array_read = onnx.numpy_helper.to_array(proto)
    assert array_read.dtype == (np.float32 if array.dtype.kind == "f" else np.int64)
    np.testing.assert_array_equal(array_read, array)
    assert proto.SerializeToString(deterministic=True) == tensor("name", array)
