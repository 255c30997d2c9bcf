"""The generated file: its content, what a hostile contract cannot do, and the verb."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from onrig.hw.renewal import policy_name
from onrig.runtime.policy.contract import Signal
from onrig.tools.cli import main
from onrig.tools.policy_to_c.source import c_name, source_of
from onrig.tools.policy_to_c.workspace import literal
from tests.hw.firmware.build import ROOT
from tests.runtime.policy.models import CONTRACT, convolving, policy, recurrent, serialized
from tests.tools.policy_to_c.compiled import compile_policy

SWING_UP = ROOT / "tests" / "hw" / "firmware" / "swing_up.onnx"


def test_the_header_has_names_units_ranges_rate_and_hash() -> None:
    model = SWING_UP.read_bytes()
    header_comment = source_of(model, "swing_up").text.split("*/")[0]
    for part in (
        f"SHA-256 of the ONNX model: {hashlib.sha256(model).hexdigest()}",
        "for the rig 'pendulum' at 50 Hz, after 22500 training steps",
        "observation: angle (rad, -3.14159 to 3.14159), velocity (rad/s, -30 to 30)",
        "action: voltage (V, -3 to 3)",
        "Constants: 4736 bytes",
    ):
        assert part in header_comment


def test_the_file_depends_only_on_the_model() -> None:
    model = serialized(policy())
    assert source_of(model, "policy").text == source_of(model, "policy").text


def test_foreign_text_remains_text(tmp_path: Path) -> None:
    """Names that would end a comment or a string do not."""
    signals = (Signal('a"; */ #error', "\\", -1.0, 1.0), Signal("ω\n/*", "rad/s", -1.0, 1.0))
    contract = msgspec.structs.replace(CONTRACT, rig="x */ int i;", parent_run="/* */", observations=signals)
    model = serialized(policy(contract=contract))
    assert compile_policy(model, tmp_path).check() <= 1e-5
    assert '"\\317\\211\\012/*"' in source_of(model, "policy").text


def test_a_constant_is_written_exactly() -> None:
    assert [literal(v) for v in (1.0, -0.1, 1e-7, 3e8, 0.0)] == [
        "1.0f",
        "-0.100000001f",
        "1.00000001e-07f",
        "300000000.0f",
        "0.0f",
    ]


@pytest.mark.parametrize(("stem", "name"), [("best", "best"), ("12", "policy_12"), ("a-b é", "a_b__")])
def test_the_function_is_named_after_the_file(stem: str, name: str) -> None:
    assert c_name(stem) == name


def test_the_verb_writes_only_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["policy", "to-c", str(SWING_UP)]) == 0
    digest = policy_name(SWING_UP.read_bytes()).hex()
    expected = "swing_up.c: swing_up_act for 'pendulum' at 50 Hz, 4736 bytes of constants, 256 bytes of RAM; policy "
    assert capsys.readouterr().out == f"{expected}{digest}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["swing_up.c"]
    assert "void swing_up_act(const float observation[2], float action[1])" in (tmp_path / "swing_up.c").read_text()


def refusal_message(model: bytes, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    path = folder / "policy.onnx"
    path.write_bytes(model)
    assert main(["policy", "to-c", str(path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not list(folder.glob("*.c"))
    return line.replace(str(folder), "")


def test_untranslatable_policies_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    message_start = "onrig policy: /policy.onnx: cannot be translated"
    memory = "ports: the C function does not support a hidden state: export a policy without memory"
    assert refusal_message(serialized(recurrent()), tmp_path, capsys) == f"{message_start} ({memory})"
    images = "operators: Floor -> 'whole' cannot be translated to C"
    assert refusal_message(serialized(convolving()), tmp_path, capsys) == f"{message_start} ({images})"
    model_without_contract = serialized(policy(contract=None))
    stamp = "contract: missing; add the contract of the rig with onrig policy stamp"
    assert refusal_message(model_without_contract, tmp_path, capsys) == f"{message_start} ({stamp})"
    assert refusal_message(b"no model", tmp_path, capsys).startswith(f"{message_start} (format: ")
    assert refusal_message(bytes(5 << 20), tmp_path, capsys) == f"{message_start} (size: more than 4194304 bytes)"
    assert "expected a file whose name ends in .c" in refusal_message(
        model_without_contract, tmp_path, capsys, "--out", "policy.h"
    )
    assert main(["policy", "to-c", "missing.onnx"]) == 2
    assert capsys.readouterr().err == "onrig policy: 'missing.onnx': No such file or directory\n"
