"""Folders that other users could tamper with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onrig.runtime.run_state.folder_access import UnsafeFolder, check_folder, check_path, lock_folder
from onrig.runtime.supervise.run_folder import write_run_folder
from onrig.tools.cli import main
from onrig.tools.load import load

OTHER_UID = 54_321


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir(mode=0o755)
    return folder


def pretend_foreign_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all existing files belong to another user."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)


def test_ones_own_folder_is_accepted_whether_or_not_it_exists(runs: Path) -> None:
    check_path(runs / "fresh")
    (runs / "policies").mkdir()
    (runs / "policies" / "1.onnx").write_bytes(b"")
    check_folder(runs)


def test_ones_own_link_to_ones_own_folder_is_accepted(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to(runs)
    check_folder(tmp_path / "disk")


@pytest.mark.parametrize("name", ["config.yaml", "events.jsonl", "summary.tmp", "policies", "policies/1.onnx"])
def test_a_link_inside_is_refused_wherever_it_leads(name: str, runs: Path, tmp_path: Path) -> None:
    (runs / name).parent.mkdir(exist_ok=True)
    (runs / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFolder, match=f"{name} is a link; remove it"):
        check_folder(runs)


@pytest.mark.parametrize("name", ["events.jsonl", "policies/1.onnx", "buffer/rows-0.seg"])
def test_a_fifo_inside_is_refused(name: str, runs: Path) -> None:
    (runs / name).parent.mkdir(exist_ok=True)
    os.mkfifo(runs / name)
    with pytest.raises(UnsafeFolder, match=f"{name} is neither a file nor a folder; remove it"):
        check_folder(runs)


def test_a_folder_of_another_user_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_foreign_owner(monkeypatch)
    with pytest.raises(UnsafeFolder, match=r"runs belongs to user .*; use another folder, or run as that user"):
        check_folder(runs)


def test_a_folder_writable_by_anyone_is_refused_sticky_or_not(runs: Path) -> None:
    for mode in (0o777, 0o1777):
        runs.chmod(mode)
        with pytest.raises(UnsafeFolder, match="by every user of this machine; use another folder, or chmod o-w it"):
            check_folder(runs)


def test_no_parent_folder_may_be_writable_by_anyone(runs: Path) -> None:
    runs.chmod(0o777)
    with pytest.raises(UnsafeFolder, match="is writable by every user"):
        check_path(runs / "fresh" / "run")
    runs.chmod(0o1777)  # like /tmp: others cannot rename our files
    check_path(runs / "fresh" / "run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links that belong to others")
def test_a_link_of_another_user_is_not_followed(runs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(runs)
    os.lchown(link, OTHER_UID, OTHER_UID)
    with pytest.raises(UnsafeFolder, match=f"link is a link owned by user {OTHER_UID}; name its target instead"):
        check_path(link)
    (runs / "notes").write_text("")
    os.chown(runs / "notes", OTHER_UID, OTHER_UID)
    with pytest.raises(UnsafeFolder, match=f"notes belongs to user {OTHER_UID}; remove it"):
        check_folder(runs)


def test_a_run_writes_nothing_into_such_a_folder(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (runs / "meta.json.tmp").symlink_to(target)
    with pytest.raises(UnsafeFolder):
        write_run_folder(runs, load("pendulum"))
    (runs / "meta.json.tmp").unlink()
    (runs / "stderr.log").symlink_to(target)
    with pytest.raises(UnsafeFolder):
        lock_folder(runs)
    assert target.read_text() == "precious"
    assert [p.name for p in runs.iterdir()] == ["stderr.log"]
    with pytest.raises(UnsafeFolder):
        write_run_folder(runs, load("pendulum"))


def test_the_command_reports_it_in_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "events.jsonl").symlink_to(tmp_path / "elsewhere")
    assert main(["run", "pendulum", "--run-dir", str(runs), "--set", "local_learner=false"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"onrig run: --run-dir: '{runs}' is not empty and does not contain a run; choose another folder"
    assert not (tmp_path / "elsewhere").exists()


def test_a_report_writes_nothing_into_it_either(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "report.html").symlink_to(tmp_path / "elsewhere")
    assert main(["report", str(runs)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "report.html is a link; remove it" in line
