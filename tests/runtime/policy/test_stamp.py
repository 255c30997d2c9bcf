from __future__ import annotations

import pytest

from onrig.runtime.policy.contract import METADATA_KEY, ModelRefused, contract_for, encode_contract
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.policy.stamp import stamp_contract
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM

ONE, TWO = (contract_for(PENDULUM.rig, 50.0, policy_id=i, parent_run="", training_step=0) for i in (1, 2))


def test_a_model_gets_a_contract_and_another_one_in_its_place() -> None:
    bare = models.serialized(models.policy())
    once, twice = stamp_contract(bare, ONE), stamp_contract(stamp_contract(bare, ONE), TWO)
    assert read_model(once).metadata[METADATA_KEY] == encode_contract(ONE)
    assert read_model(twice).metadata[METADATA_KEY] == encode_contract(TWO)
    assert twice == stamp_contract(bare, TWO)
    onnx = pytest.importorskip("onnx")
    before, after = onnx.load_from_string(bare), onnx.load_from_string(twice)
    assert after.graph == before.graph


@pytest.mark.parametrize("broken", [b"no model", b"\xff" * 12, b"\x72\x05ab"])
def test_bytes_that_are_no_message_are_refused(broken: bytes) -> None:
    with pytest.raises(ModelRefused):
        stamp_contract(broken, ONE)
