"""Runs that cannot be resumed: one line with the reason, the right exit code, and nothing changed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from onrig.hw.native import LibraryState, describe_difference, executor, executor_of, provenance
from onrig.learner.states import States
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.checksums import measure, write_list
from onrig.runtime.run_state.folder_access import claim
from onrig.runtime.run_state.running import Running
from onrig.runtime.safety.sampled import SampledBox
from onrig.runtime.supervise.run_folder import write_run_folder
from onrig.tools import resumption
from onrig.tools.beginning import read_beginning
from onrig.tools.cli import main
from onrig.tools.load import load_for_rig
from onrig.tools.resumption import prepare_resumption
from tests.learner.test_agent import agent
from tests.sim.barrier.beam import with_table

CONFIG = load_for_rig("pendulum", ["episodes=5"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_run_folder(folder, CONFIG)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal_message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", *arguments]) == ExitCode.CONFIGURATION
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("onrig run: ")
    return err.removeprefix("onrig run: ").rstrip()


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run_path in (tmp_path, tmp_path / "nowhere"):
        message = refusal_message(capsys, "--resume", str(run_path))
        assert message == f"--resume: '{run_path}' contains no run: config.yaml is missing"
    assert list(tmp_path.iterdir()) == []


def test_neither_a_configuration_nor_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run"])
    assert error.value.code == ExitCode.CONFIGURATION
    assert "or --resume DIR" in capsys.readouterr().err


def test_another_folder_to_resume_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal_message(capsys, "--resume", str(folder), "--run-dir", str(folder))
    assert message == "--run-dir cannot be combined with --resume: a resumed run remains in its folder"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pendulum", "--set", "seed=7"), "seed is 0 in the run and 7 here"),
        (("--set", "rate_hz=100", "--set", "seed=7"), "rate_hz is 50.0 in the run and 100.0 here; seed is 0"),
        (("magman",), "; and "),
    ],
    ids=["another seed", "two differences", "another rig"],
)
def test_another_configuration(
    folder: Path, arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content_before = content(folder)
    line = refusal_message(capsys, *arguments, "--resume", str(folder))
    assert line.startswith(f"--resume: the configuration differs from that of the run in '{folder}': ")
    assert expected in line
    assert content(folder) == content_before


def rewrite_meta(folder: Path, meta: dict[str, object], variant: str | None) -> None:
    """Rewrite a run's ``meta.json`` as if written with this variant of the library; None: as by earlier versions."""
    recorded = {} if variant is None else {"executor": executor_of(variant)}
    (folder / "meta.json").write_bytes(msgspec.json.encode({**meta, **recorded}))
    write_list(folder, {"meta.json": measure(folder / "meta.json")})


@pytest.mark.parametrize("variant", ["aarch64", "x86-64-v4", "none"])
@pytest.mark.parametrize("is_accepted", [False, True], ids=["begun", "resumed"])
def test_a_run_computed_by_another_executor(
    folder: Path, variant: str, is_accepted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provenance, "library_state", lambda: LibraryState(None, "x86-64-v3"))
    monkeypatch.setattr(provenance, "usable_variants", lambda: ["x86-64-v4", "x86-64-v3"])
    executor = executor_of(variant)
    rewrite_meta(
        folder,
        {"run": "r", "resumes": [{"executor": executor}]} if is_accepted else {},
        None if is_accepted else variant,
    )
    content_before = content(folder)
    message = refusal_message(capsys, "--resume", str(folder))
    difference = describe_difference(executor, executor_of("x86-64-v3"), ["x86-64-v4", "x86-64-v3"])
    assert message == f"--resume: the run in '{folder}' was {difference}"
    assert content(folder) == content_before


def test_without_metadata_the_executor_is_identified_by_the_learners_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_meta(folder, {}, None)
    (folder / "learner").mkdir()
    a = agent()
    a.last_completed_episode = 1
    with monkeypatch.context() as patch:
        patch.setattr("onrig.learner.agent.executor", lambda: executor_of("riscv64"))
        States(folder / "learner", pytest.fail).save(a)
    assert "was computed by the C library (riscv64); here" in refusal_message(capsys, "--resume", str(folder))


def test_a_run_of_an_earlier_version_resumes_and_the_executor_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_meta(folder, {}, None)
    assert main(["run", "--resume", str(folder), "--dry-run"]) == ExitCode.OK
    message = f"{folder}: meta.json does not name the run's executor; the run continues with {executor()}\n"
    assert message in capsys.readouterr().err


def test_a_complete_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "summary.json").write_text('{"exit_reason": "completed", "episodes": 5}')
    content_before = content(folder)
    message = refusal_message(capsys, "--resume", str(folder))
    assert message == f"--resume: the run in '{folder}' is complete with 5 episodes; --set episodes=N extends it to N"
    assert content(folder) == content_before
    assert main(["run", "--resume", str(folder), "--set", "episodes=6", "--dry-run"]) == ExitCode.OK


def test_a_running_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(resumption, "find_running", lambda _: Running(77, folder, folder.resolve()))
    content_before = content(folder)
    assert "is running (process 77)" in refusal_message(capsys, "--resume", str(folder))
    assert content(folder) == content_before


def test_a_run_whose_processes_still_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resumption, "_ORPHAN_TIMEOUT_S", 0.0)
    content_before = content(folder)
    folder_claim = claim(folder, 0.0)
    try:
        assert "another process is still writing to this folder" in refusal_message(capsys, "--resume", str(folder))
    finally:
        os.close(folder_claim)
    assert content(folder) == content_before


def test_a_port_instead_of_the_runs_own_twin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal_message(capsys, "--resume", str(folder), "--device", "/dev/ttyNOWHERE7")
    assert message == "--device: the run to resume uses a twin; omit --device"


def test_the_runs_own_configuration_may_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "pendulum", "--set", "episodes=9", "--resume", str(folder), "--dry-run"]
    assert main(arguments) == ExitCode.OK
    assert "would run 9 episodes" in capsys.readouterr().out


def test_a_moved_or_recomputed_barrier_does_not_prevent_a_resumption(tmp_path: Path) -> None:
    with_table(tmp_path)
    config = load_for_rig(str(tmp_path / "beam.yaml"))
    folder = tmp_path / "run"
    write_run_folder(folder, config, files=read_beginning(config).files)
    table = tmp_path / "beam.barrier"
    for damage_table in (lambda: table.write_bytes(b"another"), table.unlink):
        damage_table()
        resumed_config = prepare_resumption(folder, None, ["checkpoint_s=7"]).config
        assert isinstance(resumed_config.limits.predicted, SampledBox)
        assert Path(resumed_config.limits.predicted.table).parent == folder / "start"
