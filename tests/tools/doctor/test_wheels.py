from __future__ import annotations

import base64
import sys
import zlib

import pytest

from onrig.tools.doctor.wheels import (
    GEMM_MODEL,
    WHEELS,
    Wheel,
    WheelFacts,
    check_wheel,
    is_importable,
    read_wheel,
    read_wheels,
    required_wheels,
)

NUMPY, TORCH = WHEELS[0], WHEELS[-1]


def wheel_running(code: str) -> Wheel:
    return Wheel("pytest", code)


def test_a_working_wheel_passes_with_its_version() -> None:
    facts = read_wheel(Wheel("pyyaml", next(w.code for w in WHEELS if w.package == "pyyaml")))
    assert is_importable(facts)
    assert check_wheel(facts) == ("wheel-pyyaml", check_wheel(facts).verdict, facts.version, "", None)


def test_a_wheel_that_kills_its_process_is_caught_and_named() -> None:
    facts = read_wheel(wheel_running("import os, signal; os.kill(os.getpid(), signal.SIGILL)"))
    check = check_wheel(facts)
    assert check.verdict.value == "FAIL"
    assert "crashes with SIGILL: it uses instructions that this processor lacks" in check.finding
    assert check.remedy == f"{sys.executable} -m pip install 'pytest<{facts.version}'"


def test_a_wheel_that_raises_is_reported_by_its_last_line() -> None:
    check = check_wheel(read_wheel(wheel_running("raise ImportError('libgomp.so.1: cannot open')")))
    assert check.verdict.value == "FAIL"
    assert "ImportError: libgomp.so.1" in check.finding


def test_a_missing_wheel_fails_with_the_command_that_installs_it() -> None:
    check = check_wheel(read_wheel(Wheel("onrig-no-such-package", "")))
    assert (check.verdict.value, check.finding) == ("FAIL", "not installed")
    assert check.remedy.endswith("-m pip install onrig-no-such-package")


def test_a_wheel_that_does_not_load_is_reported() -> None:
    check = check_wheel(WheelFacts(NUMPY, "2.0", None, ""))
    assert check.verdict.value == "FAIL"
    assert "did not start" in check.finding


@pytest.mark.parametrize(("version", "code", "verdict"), [(None, 0, "PASS"), ("2.0", -4, "WARN"), ("2.0", 0, "PASS")])
def test_a_learner_does_not_need_torch(version: str | None, code: int, verdict: str) -> None:
    assert check_wheel(WheelFacts(TORCH, version, code, "")).verdict.value == verdict


def test_a_rig_without_a_learner_does_not_need_torch() -> None:
    assert TORCH not in required_wheels(False)
    assert TORCH in required_wheels(True)
    assert TORCH in required_wheels(None)


def test_several_are_tried_and_returned_in_their_order() -> None:
    facts = read_wheels(WHEELS, lambda wheel: WheelFacts(wheel, "1", 0, ""))
    assert [f.wheel for f in facts] == list(WHEELS)


def test_the_model_used_to_try_onnxruntime_is_the_documented_one() -> None:
    helper = pytest.importorskip("onnx.helper")
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(zlib.decompress(base64.b85decode(GEMM_MODEL)))
    onnx.checker.check_model(model)
    (node,) = model.graph.node
    (weights,) = model.graph.initializer
    assert (node.op_type, list(node.input), list(node.output)) == ("Gemm", ["x", "w"], ["y"])
    array = onnx.numpy_helper.to_array(weights)
    assert (array.shape, set(array.ravel().tolist())) == ((8, 8), {0.5})
    assert [helper.printable_type(v.type) for v in model.graph.input] == ["FLOAT, 1x8"]
