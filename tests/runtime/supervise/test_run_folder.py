from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onrig.runtime.files import read_fields
from onrig.runtime.run_changes import Difference
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.checksums import EMPTY_CHECKSUM, difference, extent_of, read_list, write_list
from onrig.runtime.run_state.completeness import Completeness, ItemCount
from onrig.runtime.run_state.folder_access import FolderBusy, claim, lock_folder
from onrig.runtime.supervise.run_folder import (
    Resumption,
    complete_summary,
    environment_facts,
    fresh_folder,
    reopen_run_folder,
    seal_run_folder,
    write_run_folder,
)
from tests.runtime.samples import PENDULUM


def test_a_fresh_folder_is_one_that_does_not_exist(tmp_path: Path) -> None:
    folders = []
    for _ in range(3):
        folder = fresh_folder(tmp_path, "pendulum")
        assert folder.name.startswith("pendulum-2")
        folder.mkdir()
        folders.append(folder)
    assert len(set(folders)) == 3


def test_the_folder_records_what_runs_and_with_what(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    write_run_folder(folder, PENDULUM)
    assert load_resolved(folder / "config.yaml") == PENDULUM
    meta = msgspec.json.decode((folder / "meta.json").read_bytes())
    assert meta["seed"] == PENDULUM.seed
    assert {"git_revision", "git_dirty", "versions", "board", "kernel"} <= meta.keys()
    assert {"python", "numpy", "onnxruntime", "msgspec"} <= meta["versions"].keys()


def test_a_folder_with_a_non_text_name_holds_a_run_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"b\xffd")
    monkeypatch.setattr(sys, "argv", ["onrig", "run", "pendulum", "--run-dir", str(folder)])
    write_run_folder(folder, PENDULUM)
    assert read_fields(folder / "meta.json")["command"] == [*sys.argv[:4], f"{tmp_path}/b\\udcffd"]


def test_two_commands_cannot_resume_the_same_folder(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    first_lock = lock_folder(tmp_path)
    with pytest.raises(FolderBusy, match="another `onrig run` is using it"):
        lock_folder(tmp_path)
    os.close(claim(tmp_path, 0.0))  # the replay process of its owner writes nevertheless
    os.close(first_lock)
    os.close(lock_folder(tmp_path))


def test_a_folder_that_holds_a_run_is_left_unchanged(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    content_before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(FileExistsError, match="already contains a run"):
        write_run_folder(tmp_path, PENDULUM)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == content_before


def test_if_two_runs_begin_in_one_folder_the_second_leaves_the_first_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def create_other_run(path: Path, other_names: Collection[str]) -> None:
        """Let another run create the folder after this one has found it missing."""
        if not path.exists():
            monkeypatch.undo()
            write_run_folder(folder, PENDULUM)

    monkeypatch.setattr("onrig.runtime.supervise.run_folder.occupied_reason", create_other_run)
    with pytest.raises(FileExistsError):
        write_run_folder(folder, msgspec.structs.replace(PENDULUM, seed=7))
    assert load_resolved(folder / "config.yaml") == PENDULUM
    assert read_fields(folder / "meta.json")["seed"] == PENDULUM.seed


def test_git_is_called_without_a_lock_that_a_kill_would_leave_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    original_run = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return original_run(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    environment_facts()
    assert [command[:2] for command in commands] == [["git", "--no-optional-locks"]] * 2


def test_a_run_that_never_started_is_removed_without_earlier_contents(tmp_path: Path) -> None:
    undo = write_run_folder(tmp_path / "new" / "run", PENDULUM)
    (tmp_path / "new" / "run" / "policies").mkdir()
    undo()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".notes").write_text("mine")
    undo = write_run_folder(tmp_path, PENDULUM)
    undo()
    assert [p.name for p in tmp_path.iterdir()] == [".notes"]


@pytest.mark.parametrize("name", ["meta.json", "episodes.csv", "policies/7.onnx", "notes.txt"])
def test_a_folder_with_foreign_contents_takes_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        write_run_folder(tmp_path, PENDULUM)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine"]


COMPLETE: dict[str, Any] = {"complete": True, "rows": {"expected": 3, "present": 3}}
REPORTED_COMPLETENESS = Completeness(True, ItemCount(3, 3))
FALLBACK_COMPLETENESS = Completeness(False, ItemCount(3, 1), lost=("rows",))


def test_the_summary_is_completed_without_losing_anything(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode({"ticks": 3, "whole": COMPLETE}))
    outcome: dict[str, object] = {"exit_reason": "completed", "fault": "device_lease"}
    figures: dict[str, object] = {"peak_rss_mb": {"control": 50.5}}
    assert complete_summary(tmp_path, outcome, figures, lambda: FALLBACK_COMPLETENESS) == REPORTED_COMPLETENESS
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert summary == {"exit_reason": "completed", "fault": "device_lease", "ticks": 3, "whole": COMPLETE, **figures}


@pytest.mark.parametrize("content", [None, "", "{", "[1]"], ids=["missing", "empty", "cut short", "something else"])
def test_a_summary_exists_even_if_the_replay_process_left_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert (
        complete_summary(tmp_path, {"exit_reason": "control was killed"}, {}, lambda: FALLBACK_COMPLETENESS)
        == FALLBACK_COMPLETENESS
    )
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert (summary["exit_reason"], summary["whole"]["complete"]) == ("control was killed", False)


def test_a_full_disk_keeps_the_existing_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summary.json").write_text('{"ticks": 3}')

    def fail_replace(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail_replace)
    complete_summary(tmp_path, {"exit_reason": "completed"}, {}, lambda: FALLBACK_COMPLETENESS)
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert (tmp_path / "summary.json").read_text() == '{"ticks": 3}'


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_resumed_run_is_recorded_and_its_partial_last_event_removed(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    config = (tmp_path / "config.yaml").read_bytes()
    (tmp_path / "events.jsonl").write_bytes(b'{"kind": "one"}\n{"kind": "tw')
    for n_resumes in (1, 2):
        resumption = reopen_run_folder(tmp_path, Resumption(PENDULUM))
        assert resumption.cut == (12 if n_resumes == 1 else 0)
        meta = msgspec.json.decode((tmp_path / "meta.json").read_bytes())
        assert len(meta["resumes"]) == n_resumes
        assert {"time", "git_revision", "command"} <= meta["resumes"][-1].keys()
        assert meta["seed"] == PENDULUM.seed
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"kind": "one"}\n'
    assert (tmp_path / "config.yaml").read_bytes() == config


def test_a_resume_that_never_started_is_undone_to_the_byte(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    (tmp_path / "events.jsonl").write_bytes(b'{"kind": "one"}\n{"kind": "tw')
    (tmp_path / "stderr.log").write_bytes(b"old\n")
    content_before = content(tmp_path)
    longer_config = msgspec.structs.replace(PENDULUM, episodes=PENDULUM.episodes + 1)
    undo, _ = reopen_run_folder(tmp_path, Resumption(longer_config))
    assert load_resolved(tmp_path / "config.yaml") == longer_config
    for name in ("events.jsonl", "stderr.log"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"something new\n")
    undo()
    assert content(tmp_path) == content_before


def test_changes_on_a_resume_are_in_the_events_and_damage_is_remembered(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    run = read_fields(tmp_path / "meta.json")["run"]
    assert read_list(tmp_path).files.keys() == {"config.yaml", "meta.json"}
    (tmp_path / "meta.json").write_bytes(b"{")
    (tmp_path / "log.mcap").write_bytes(b"log")
    write_list(tmp_path, {**read_list(tmp_path).files, "log.mcap": extent_of(b"logs"), "episodes.csv": EMPTY_CHECKSUM})
    longer_config = msgspec.structs.replace(PENDULUM, episodes=PENDULUM.episodes + 1)
    difference = Difference(("episodes",), PENDULUM.episodes, longer_config.episodes)
    reopen_run_folder(tmp_path, Resumption(longer_config, [difference], ["meta.json", "log.mcap"], str(run)))
    file_list = read_list(tmp_path)
    assert file_list.files.keys() == {"config.yaml", "meta.json", "log.mcap"}, "files that will grow have no checksum"
    assert file_list.files["log.mcap"] == extent_of(b"logs")
    assert file_list.damaged == ("log.mcap", "meta.json")
    assert read_fields(tmp_path / "meta.json")["run"] == run
    events = [msgspec.json.decode(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    recorded = [(event["kind"], event.get("setting", event.get("file"))) for event in events]
    assert recorded == [
        ("configuration_changed", "episodes"),
        ("file_damaged", "meta.json"),
        ("file_damaged", "log.mcap"),
    ]
    assert events[0]["now"] == str(longer_config.episodes)
    reopen_run_folder(tmp_path, Resumption(longer_config))
    assert read_list(tmp_path).damaged == ("log.mcap", "meta.json")


def test_at_the_end_every_file_has_its_checksum_unless_the_replay_process_did_not_finish(tmp_path: Path) -> None:
    write_run_folder(tmp_path, PENDULUM)
    for name in ("summary.json", "events.jsonl", "episodes.csv"):
        (tmp_path / name).write_bytes(name.encode())
    seal_run_folder(tmp_path)
    assert not read_list(tmp_path).is_final
    write_list(tmp_path, {**read_list(tmp_path).files, "episodes.csv": extent_of(b"episodes.csv")})
    seal_run_folder(tmp_path)
    file_list = read_list(tmp_path)
    assert file_list.is_final
    names = {"config.yaml", "meta.json", "summary.json", "events.jsonl", "episodes.csv"}
    assert file_list.files.keys() == names
    assert all(difference(tmp_path / name, file_list.files[name]) is None for name in names)


def test_a_folder_is_claimed_by_one_process_at_a_time(tmp_path: Path) -> None:
    first_claim = claim(tmp_path, 0.0)
    with pytest.raises(FolderBusy, match="another process is still writing"):
        claim(tmp_path, 0.0)
    os.close(first_claim)
    os.close(claim(tmp_path, 0.0))


def test_the_summary_reports_the_end_of_this_run_and_not_of_the_one_it_resumed(tmp_path: Path) -> None:
    content_before = {"exit_reason": "interrupted", "fault": "device_lease", "ticks": 3, "whole": COMPLETE}
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode(content_before))
    complete_summary(
        tmp_path, {"exit_reason": "replay ended with code 1", "fault": None}, {}, lambda: FALLBACK_COMPLETENESS
    )
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes())
    assert summary == {**content_before, "exit_reason": "replay ended with code 1", "fault": None}
