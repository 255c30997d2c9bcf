"""``onrig replay``: output and exit codes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onrig.hw.native import LibraryState, executor, executor_of, library, provenance, variant
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.log import mcap_log
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.record import Flag
from onrig.tools import cli
from onrig.tools.replaying import recomputation
from tests.tools.replaying.runs import LoggedRun

needs_library = pytest.mark.skipif(library() is None, reason="needs the C library")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    return LoggedRun(tmp_path_factory.mktemp("runs") / "run", "pendulum", "episodes=1").run()


def test_an_unchanged_run_is_equal_and_the_table_lists_what_was_compared(
    run: LoggedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["episodes", "1", "train,", "1", "eval"] in lines
    assert ["ticks", "compared", "62", "(31", "train,", "31", "eval)"] in lines
    assert ["ticks", "that", "differ", "0"] in lines
    assert ["reward", "0"] in lines
    assert any("MB/h at 200 Hz" in " ".join(line) for line in lines)


def test_a_difference_ends_with_70_and_states_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1")
    original_encode = StepMessages.encode

    def encode_altered(messages: StepMessages, records: np.ndarray) -> bytes:
        altered = records.copy()
        altered["reward"][records["tick"] == 9] -= 1.0
        return original_encode(messages, altered)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepMessages, "encode", encode_altered)
        run.run()
    assert cli.main(["replay", str(run.folder)]) == ExitCode.INTERNAL
    captured = capsys.readouterr()
    assert ["reward", "1"] in [line.split() for line in captured.out.splitlines()]
    [line] = captured.err.splitlines()
    assert line.startswith("onrig replay: first difference: episode 1 (train), tick 9: reward is recorded as ")


def test_a_damaged_log_ends_with_70_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1").run()
    path = run.folder / "log.mcap"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert cli.main(["replay", str(run.folder)]) == ExitCode.INTERNAL
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"onrig replay: {path}: ")


def test_a_truncated_log_is_replayed_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tear_log(run: LoggedRun) -> None:
        run._log_pending()
        run.log.poll(float("inf"))
        (run.folder / "torn").write_bytes((run.folder / "log.mcap").read_bytes())

    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", actions_at={45: tear_log}).run()
    (run.folder / "torn").rename(run.folder / "log.mcap")
    assert cli.main(["replay", str(run.folder)]) == ExitCode.INCOMPLETE
    captured = capsys.readouterr()
    assert "log.mcap is incomplete" in captured.out
    assert "1 ticks: the next frame was not recorded" in captured.out
    assert captured.err == "onrig replay: equal, but 17 of the run's 62 ticks are missing from its log\n"


@pytest.mark.parametrize("n_bytes", [*range(1, 9), 20, 40])
def test_a_log_without_its_last_bytes_has_all_ticks(
    tmp_path: Path, run: LoggedRun, capsys: pytest.CaptureFixture[str], n_bytes: int
) -> None:
    copied_folder = shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("shm"))
    log = copied_folder / "log.mcap"
    os.truncate(log, log.stat().st_size - n_bytes)
    assert cli.main(["replay", str(copied_folder)]) == ExitCode.OK
    assert "log.mcap is incomplete" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["config.yaml", "log.mcap", "episodes.csv", "policies/1.onnx", "policies"])
@pytest.mark.parametrize("make_file", [os.mkfifo, os.mkdir])
def test_something_that_is_not_a_file_is_named_without_blocking(
    tmp_path: Path, run: LoggedRun, capsys: pytest.CaptureFixture[str], name: str, make_file: Callable[[Path], None]
) -> None:
    copied_folder = shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("shm"))
    path = copied_folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make_file(path)
    code = cli.main(["replay", str(copied_folder)])
    captured = capsys.readouterr()
    if name.startswith("policies"):  # the answers of a missing policy are taken from the records
        assert code == ExitCode.OK
        assert str(copied_folder / "policies" / "1.onnx") in captured.out
    else:
        assert code in (ExitCode.CONFIGURATION, ExitCode.INTERNAL)
        [line] = captured.err.splitlines()
        assert name in line


@pytest.mark.parametrize(
    ("missing", "message"),
    [("no run", "contains no run (config.yaml)"), ("no log", "contains no log (log.mcap)")],
)
def test_without_a_log_to_replay_one_line_reports_it(
    tmp_path: Path, run: LoggedRun, capsys: pytest.CaptureFixture[str], missing: str, message: str
) -> None:
    if missing == "no log":
        (tmp_path / "config.yaml").write_bytes((run.folder / "config.yaml").read_bytes())
    assert cli.main(["replay", str(tmp_path)]) == ExitCode.CONFIGURATION
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_unreadable_configuration_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("rig: 1\n")
    assert cli.main(["replay", str(tmp_path)]) == ExitCode.CONFIGURATION
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"onrig replay: {tmp_path / 'config.yaml'}:1:")


def test_a_decimated_log_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", "log.decimation=4").run()
    assert cli.main(["replay", str(run.folder)]) == ExitCode.CONFIGURATION
    captured = capsys.readouterr()
    assert "the log contains only some of the ticks" in captured.out
    assert captured.err == "onrig replay: no tick could be verified\n"


@pytest.mark.parametrize("tolerance", ["-1", "2", "nan"])
def test_a_tolerance_out_of_range_is_refused(
    run: LoggedRun, capsys: pytest.CaptureFixture[str], tolerance: str
) -> None:
    assert cli.main(["replay", str(run.folder), f"--tolerance={tolerance}"]) == ExitCode.CONFIGURATION
    assert "--tolerance" in capsys.readouterr().err


def test_the_file_of_the_first_policy_is_no_longer_needed(tmp_path: Path) -> None:
    (tmp_path / "p.onnx").write_bytes(b"")
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", f"policy={tmp_path / 'p.onnx'}").run()
    (tmp_path / "p.onnx").unlink()
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK


def test_an_unchanged_run_is_also_equal_with_a_tolerance(run: LoggedRun) -> None:
    assert cli.main(["replay", str(run.folder), "--tolerance", "1e-6"]) == ExitCode.OK


def rewrite_library(run: LoggedRun, folder: Path, library: str) -> Path:
    """A run like this one whose log names another variant of the C library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcap_log, "variant", lambda: library)
        return LoggedRun(folder, "pendulum", "episodes=1", native=run.native).run().folder


@needs_library
def test_policies_of_another_variant_end_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", native=True).run()
    assert all(row["flags"] & Flag.NATIVE for row in run.records if not row["flags"] & Flag.NO_ACTION)
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    capsys.readouterr()
    rewritten_folder = rewrite_library(run, tmp_path / "there", "riscv64")
    assert cli.main(["replay", str(rewritten_folder)]) == ExitCode.CONFIGURATION
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"onrig replay: the policies' actions were computed by the C library (riscv64); here it would be {executor()}, "
        "which rounds differently: only a machine with the C library (riscv64) gives the same results; or accept "
        "differences with --tolerance\n"
    )
    assert cli.main(["replay", str(rewritten_folder), "--tolerance", "1e-5"]) == ExitCode.OK


@needs_library
def test_native_policies_are_not_replayed_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", native=True).run()
    monkeypatch.setattr(
        provenance, "library_state", lambda: LibraryState(None, "none", "switched off by ONRIG_NATIVE=off")
    )
    assert cli.main(["replay", str(run.folder)]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == (
        f"onrig replay: the policies' actions were computed by {executor_of(variant())}; here it would be numpy, which "
        f"rounds differently: put ONRIG_NATIVE={variant()} before the command; or accept differences with --tolerance\n"
    )
    monkeypatch.setattr(recomputation, "library", lambda: None)
    assert cli.main(["replay", str(run.folder), "--tolerance", "1e-5"]) == ExitCode.OK


def test_the_library_does_not_matter_if_onnxruntime_evaluated(run: LoggedRun, tmp_path: Path) -> None:
    assert cli.main(["replay", str(rewrite_library(run, tmp_path / "there", "riscv64"))]) == ExitCode.OK
