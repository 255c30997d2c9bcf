"""Costs of policies on this board."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.policy.admission import Admitted
from onrig.sim.evaluation import admission_verdict
from onrig.tools.bench import policy
from onrig.tools.bench.policy import Plan, random_policies
from onrig.tools.cli import main
from onrig.tools.load import load
from tests.tools import policies


@pytest.fixture(autouse=True)
def shrink_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FULL", Plan(1, 2, 1, 1))
    monkeypatch.setattr(policy, "_CACHE_FILLER_BYTES", 1 << 10)
    monkeypatch.setattr(policy, "disable_collector", lambda: None)


def test_sizes_and_kinds_are_measured_next_to_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "policy", "magman", "--hidden", "8,4", "--json", str(tmp_path / "it.json")]) == 0
    out = capsys.readouterr().out
    report = msgspec.json.decode((tmp_path / "it.json").read_bytes())
    subjects = {(row["case"], row["subject"]) for row in report["rows"]}
    assert subjects >= {("8-4: run", "onrig"), ("8-4: run, caches cold", "numpy"), ("LSTM 32-32: build", "onrig")}
    assert all(0.0 < row["p50"] <= row["max"] for row in report["rows"])
    assert [check["bound"] for check in report["checks"]] == [200.0] * 3
    assert "8-4, Gaussian: run, caches cold" in out


def test_a_file_is_measured_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "7.onnx"
    path.write_bytes(policies.sound_policy())
    assert main(["bench", "policy", "--file", str(path)]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert [line.split("  ")[0] for line in lines] == ["7.onnx: run", "7.onnx: run, caches cold", "7.onnx: build"]


def test_the_rig_admits_generated_policies_and_peers_compute_the_same() -> None:
    config = load("pendulum", ["learner.algorithm=vracer", "exploration={process: own}"])
    policies = random_policies(config, [[8, 4]])
    verdicts = [admission_verdict(policy.model, config) for policy in policies]
    assert [isinstance(verdict, Admitted) for verdict in verdicts] == [False, True, True], "the first draws nothing"
    assert isinstance(admission_verdict(policies[0].model, load("pendulum")), Admitted)
    observation = (0.5,) * len(config.signals)
    numpy, torch = (policies[0].peers[name](observation) for name in ("numpy", "torch"))
    assert numpy == pytest.approx(torch, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden", "8,x"], "--hidden: expected numbers from 1 to 4096, separated by commas, got '8,x'"),
        (["--file", "nowhere.onnx"], "--file: 'nowhere.onnx' cannot be read: No such file or directory"),
        (["--json", "nowhere/x.json"], "--json: no such folder 'nowhere'"),
    ],
)
def test_unsupported_measurements_are_reported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "policy", *arguments]) == 2
    assert capsys.readouterr().err == f"onrig bench policy: {message}\n"


def test_a_policy_that_no_rig_would_admit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = policies.write_bad_policy("wrong shapes", tmp_path)
    assert main(["bench", "policy", "--file", str(path)]) == 2
    assert "refused by the shapes check" in capsys.readouterr().err
