"""Policy files for the shipped pendulum: a valid one, and one for each reason for refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper

from onrig.runtime.policy.contract import PolicyContract, contract_for
from onrig.tools.load import load
from tests.runtime.policy.models import node, policy, proto, serialized


def contract(policy_id: int = 7, config: str = "pendulum") -> PolicyContract:
    run = load(config)
    return contract_for(run.rig, run.rate_hz, policy_id=policy_id, parent_run="earlier", training_step=100)


def sound_policy() -> bytes:
    return serialized(policy(contract=contract()))


def policy_with_wrong_shapes() -> bytes:
    model = policy(contract=contract())
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("observation", 1, [1, 3]))
    return serialized(model)


def policy_with_nan_outputs() -> bytes:
    """The square root of a state: NaN if that is negative."""
    nodes = [
        node("MatMul", ["observation", "w"], ["h"]),
        node("Sqrt", ["h"], ["x"]),
        node("Tanh", ["x"], ["action"]),
    ]
    return serialized(proto(nodes, {"w": np.full((2, 1), 0.1, np.float32)}, contract=contract()))


def policy_with_external_data() -> bytes:
    model = policy(contract=contract())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return serialized(model)


def policy_for_another_rig() -> bytes:
    return serialized(policy(contract=contract(config="magman")))


BAD_POLICIES: Final[dict[str, tuple[Callable[[], bytes], str, str]]] = {
    "wrong shapes": (policy_with_wrong_shapes, "shapes", "[1, 3]"),
    "NaN outputs": (policy_with_nan_outputs, "finite", "action 'voltage' is nan at angle"),
    "external data": (policy_with_external_data, "format", "external data"),
    "100 MB": (lambda: b"", "size", "104857600 bytes, at most 4194304"),
    "another rig": (policy_for_another_rig, "contract", "rig is 'magman'; the rig has 'pendulum'"),
    "garbage": (lambda: b"no policy at all", "format", ""),
}
"""Name to (bytes, refusing stage, part of the reason)."""


def write_bad_policy(name: str, folder: Path) -> Path:
    path = folder / "policy.onnx"
    path.write_bytes(BAD_POLICIES[name][0]())
    if name == "100 MB":
        with path.open("r+b") as file:
            file.truncate(100 << 20)  # a hole: takes no disk space
    return path
