"""Run folders with every file damaged in every way: every reader names the damage, or is not affected by it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.replay.evidence import Grade, faults, read_evidence
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.recovery import Point
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.completeness import Completeness, ItemCount
from onrig.runtime.view.run_view import RunView
from onrig.tools import cli
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import Run
from tests.processes.power_cut import last_episode, outcome_of
from tests.processes.test_lockstep import SETTINGS

EPISODES: Final = 5
KILLED_AT: Final = 4

Damage = Callable[[Path], None]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x01
    path.write_bytes(content)


def deleted(path: Path) -> None:
    path.unlink()


def duplicated(path: Path) -> None:
    path.write_bytes(2 * path.read_bytes())


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: Final = (truncated, flipped, deleted, duplicated, replaced_by_directory, replaced_by_fifo)
UNCHECKED: Final = ("stderr.log", "learning_curve.png")
"""Files that are never read, or are redrawn."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that ended successfully."""
    folder = tmp_path_factory.mktemp("damaged") / "ended"
    with Run(folder, "pendulum", *SETTINGS, f"episodes={EPISODES}") as run:
        assert run.ended(4 * PATIENCE_S) == ExitCode.OK
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same run, killed as by a power failure."""
    folder = tmp_path_factory.mktemp("damaged") / "killed"
    with Run(folder, "pendulum", *SETTINGS, f"episodes={EPISODES}") as run:
        run.until(lambda: last_episode(folder) >= KILLED_AT, "the kill")
        run.cut()
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(folder, tmp_path / folder.name))


def damages_of(folder: Path) -> Iterator[tuple[str, Damage]]:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    for name in names:
        if name not in UNCHECKED and not name.startswith(("buffer/", "learner/")):
            yield from ((name, damage) for damage in DAMAGES)


def graded_faults(folder: Path, *, lockstep: bool = False) -> dict[str, Grade]:
    return {fault.name: fault.grade for fault in faults(folder, read_evidence(folder), lockstep=lockstep)}


def restore_file(path: Path, before: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copy2(before, path)


def test_any_damage_to_a_file_of_a_finished_run_is_named(ended: Path, copy: Callable[[Path], Path]) -> None:
    folder = copy(ended)
    assert graded_faults(folder) == {}
    for name, damage in damages_of(ended):
        damage(folder / name)
        found = graded_faults(folder)
        if name.endswith("index.csv"):
            assert found.pop(name) is Grade.ESSENTIAL
        else:
            assert found.keys() == {name}, (name, damage.__name__, found)
        restore_file(folder / name, ended / name)


def is_intact_up_to_checkpoint(name: str, folder: Path, before: Path, point: Point) -> bool:
    """Whether only a later part of a growing file was damaged, which is then repeated."""
    size = point.files[name].bytes if name in point.files else 0
    path = folder / name
    return bool(size) and path.is_file() and path.read_bytes()[:size] == (before / name).read_bytes()[:size]


def test_any_damage_to_a_file_that_a_killed_run_resumes_from_is_named(
    killed: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(killed)
    assert graded_faults(folder, lockstep=True) == {}
    point, counts = read_evidence(killed).point, read_evidence(killed).counts
    assert point is not None
    for name, damage in damages_of(killed):
        damage(folder / name)
        found = graded_faults(folder, lockstep=True)
        later = name.endswith(".onnx") and int(Path(name).stem) >= counts["next_policy"]
        assert later or name in found or is_intact_up_to_checkpoint(name, folder, killed, point), (
            name,
            damage.__name__,
        )
        restore_file(folder / name, killed / name)


def test_a_damaged_memory_or_learner_is_named(ended: Path, copy: Callable[[Path], Path]) -> None:
    folder = copy(ended)
    config = load_resolved(folder / "config.yaml")
    for path in sorted((ended / "buffer").iterdir()):
        at = folder / "buffer" / path.name
        for damage in DAMAGES:
            damage(at)
            memory = RunView(folder, config).memory()
            assert isinstance(memory, str | Memory)  # the previous checkpoint, or the reason why there is none
            restore_file(at, path)


def resume(folder: Path, *settings: str) -> int:
    more = [word for setting in settings for word in ("--set", setting)]
    return cli.main(["run", "--resume", str(folder), "--set", f"episodes={EPISODES + 1}", "--dry-run", *more])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("episodes.csv", flipped, "episodes.csv differs from what the run wrote"),
        ("policies/3.onnx", flipped, "policies/3.onnx differs from what the run wrote"),
        ("policies/3.onnx", deleted, "policies/3.onnx is missing"),
        ("policies/index.csv", truncated, "policies/index.csv is truncated"),
        ("learner/learner-00000005.npz", flipped, "learner/learner-00000005.npz is damaged"),
        ("learner/learner-00000005.npz", deleted, "learner/learner-00000005.npz is missing"),
    ],
)
def test_a_run_is_resumed_only_from_the_files_it_left(
    name: str,
    damage: Damage,
    message: str,
    ended: Path,
    copy: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = copy(ended)
    damage(folder / name)
    assert resume(folder) == ExitCode.CONFIGURATION
    stderr = capsys.readouterr().err
    assert f"'{folder}' has changed since the run ended: {message}" in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("change", ["removed", "doubled"])
def test_a_missing_or_duplicated_row_is_reported(
    change: str, ended: Path, copy: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy(ended) / "episodes.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3] + lines[4:] if change == "removed" else lines[:4] + lines[3:]))
    assert resume(path.parent) == ExitCode.CONFIGURATION
    assert "episodes.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "edited", "message"),
    [
        ("rate_hz: 50.0", "rate_hz: 100.0", "rate_hz is 50.0 in the run and 100.0 here"),
        ("seed: 0", "seed: 1", "seed is 0 in the run and 1 here"),
        ("gamma: 0.9", "gamma: 0.8", "gamma is 0.9"),
    ],
)
def test_an_edited_configuration_is_compared_with_the_one_that_the_memory_was_made_under(
    line: str,
    edited: str,
    message: str,
    ended: Path,
    copy: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copy(ended) / "config.yaml"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, edited))
    assert resume(path.parent) == ExitCode.CONFIGURATION
    assert message in capsys.readouterr().err


def test_on_resumption_limits_may_become_tighter_but_not_wider(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resume(ended, "limits.envelope.velocity.high=14.5") == ExitCode.OK
    assert resume(ended, "limits.envelope.velocity.high=15.5") == ExitCode.CONFIGURATION
    assert "may only become stricter" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(
    ended: Path, killed: Path, copy: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(ended)
    shutil.rmtree(folder / "buffer")
    shutil.copytree(killed / "buffer", folder / "buffer")
    assert resume(folder) == ExitCode.CONFIGURATION
    assert "buffer holds the checkpoint of another run" in capsys.readouterr().err


def test_verbs_that_read_a_folder_name_the_damage_and_do_not_exit_with_0(
    ended: Path, copy: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(ended)
    flipped(folder / "episodes.csv")
    monkeypatch.setattr("onrig.tools.web.process.serve_page", lambda *arguments: ExitCode.OK)
    monkeypatch.setattr("onrig.runtime.run_state.report.use_plain_output", lambda: None)  # for the whole process
    assert cli.main(["web", str(folder)]) == ExitCode.OK
    assert f"onrig web: {folder}: episodes.csv differs from what the run wrote" in capsys.readouterr().err
    assert cli.main(["report", str(folder)]) == ExitCode.INCOMPLETE
    assert f"onrig report: {folder}: episodes.csv differs from what the run wrote" in capsys.readouterr().err
    assert "episodes.csv differs from what the run wrote" in (folder / "report.html").read_text()

    flipped(folder / "policies" / "3.onnx")
    assert cli.main(["replay", str(folder)]) != ExitCode.OK
    assert "policies/3.onnx differs from what the run wrote" in capsys.readouterr().err
    flipped(folder / "log.mcap")
    assert cli.main(["identify", str(folder)]) != ExitCode.OK
    assert "log.mcap differs from what the run wrote" in capsys.readouterr().err
    assert cli.main(["policy", "check", str(folder / "policies" / "3.onnx"), "pendulum"]) == ExitCode.CONFIGURATION
    assert "3.onnx: differs from what the run wrote" in capsys.readouterr().err


def test_a_run_with_a_missing_log_continues_and_does_not_end_as_complete(
    ended: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(ended)
    deleted(folder / "log.mcap")
    with Run(folder, "pendulum", f"episodes={EPISODES + 1}", resume=True) as run:
        assert run.ended(4 * PATIENCE_S) == ExitCode.INCOMPLETE
        assert "log.mcap is missing: the run ends as incomplete" in run.output
        assert "DATA INCOMPLETE: files: log.mcap is missing" in run.output
    assert completeness_of(folder).reproducible


def test_a_kill_between_the_last_checkpoint_and_the_summary_does_not_change_the_summary(
    ended: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(ended)
    for name in ("summary.json", "checksums.json"):
        deleted(folder / name)
    with Run(folder, "pendulum", resume=True) as run:
        assert run.ended(4 * PATIENCE_S) == ExitCode.OK
    assert outcome_of(folder) == outcome_of(ended)
    more = ItemCount(7, 7)  # another log
    assert completeness_of(folder) == msgspec.structs.replace(completeness_of(ended), files=more)


def completeness_of(folder: Path) -> Completeness:
    return msgspec.convert(read_fields(folder / "summary.json")["whole"], Completeness)
