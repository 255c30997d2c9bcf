from __future__ import annotations

import pytest

from onrig.runtime.policy.contract import METADATA_KEY, ModelRefused, contract_for, encode_contract
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.policy.stamp import stamp_contract
from tests.runtime.policy import models
from tests.runtime.samples import PENDULUM

FIRST_CONTRACT, SECOND_CONTRACT = (
    contract_for(PENDULUM.rig, 50.0, policy_id=i, parent_run="", training_step=0) for i in (1, 2)
)


def test_a_contract_is_added_to_a_model_or_replaced() -> None:
    unstamped = models.serialized(models.policy())
    stamped, restamped = (
        stamp_contract(unstamped, FIRST_CONTRACT),
        stamp_contract(stamp_contract(unstamped, FIRST_CONTRACT), SECOND_CONTRACT),
    )
    assert read_model(stamped).metadata[METADATA_KEY] == encode_contract(FIRST_CONTRACT)
    assert read_model(restamped).metadata[METADATA_KEY] == encode_contract(SECOND_CONTRACT)
    assert restamped == stamp_contract(unstamped, SECOND_CONTRACT)
    onnx = pytest.importorskip("onnx")
    before, after = onnx.load_from_string(unstamped), onnx.load_from_string(restamped)
    assert after.graph == before.graph


@pytest.mark.parametrize("data", [b"no model", b"\xff" * 12, b"\x72\x05ab"])
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(ModelRefused):
        stamp_contract(data, FIRST_CONTRACT)
