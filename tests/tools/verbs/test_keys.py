"""``onrig keys``: files that it writes, and files that it never touches."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.keys import load_learner_keys, load_rig_keys
from onrig.tools import key_folder
from onrig.tools.cli import main


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_files_are_0600_and_folders_0700_whatever_the_umask(tmp_path: Path) -> None:
    umask_before = os.umask(0)
    try:
        assert main(["keys", str(tmp_path / "keys")]) == ExitCode.OK
        assert main(["keys", str(tmp_path / "keys"), "--learner", "second"]) == ExitCode.OK
    finally:
        os.umask(umask_before)
    for path in [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_second_learner_is_added_and_nothing_else_changes(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    main(["keys", str(folder)])
    content_before = content(folder)
    assert main(["keys", str(folder), "--learner", "lab"]) == ExitCode.OK
    content_after = content(folder)
    assert {name: content_after[name] for name in content_before} == content_before
    assert set(content_after) - set(content_before) == {"lab/secret.key", "lab/rig.key", "rig/learners/lab.key"}
    assert sorted(load_rig_keys(folder).names_by_key.values()) == ["lab", "learner"]
    assert load_learner_keys(folder / "lab").rig == load_rig_keys(folder).pair.public


@pytest.mark.parametrize("name", ["learner", "gone"])
def test_existing_keys_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = tmp_path / "keys"
    main(["keys", str(folder), "--learner", name])
    if name == "gone":  # the learner's folder has been moved to its machine
        (folder / name).rename(tmp_path / "elsewhere")
    content_before = content(folder)
    assert main(["keys", str(folder), "--learner", name]) == ExitCode.CONFIGURATION
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "never overwritten" in err
    assert content(folder) == content_before


def test_a_folder_with_other_contents_is_left_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters").mkdir(mode=0o700)
    (tmp_path / "letters" / "a").write_text("dear")
    assert main(["keys", str(tmp_path / "letters")]) == ExitCode.PREFLIGHT
    assert capsys.readouterr().err.count("\n") == 1
    assert content(tmp_path / "letters") == {"a": b"dear"}


@pytest.mark.parametrize("name", ["rig", "../x", ""])
def test_an_invalid_folder_name_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path / "keys"), "--learner", name]) == ExitCode.CONFIGURATION
    assert "is not a valid name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*arguments: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_folder, "_write_learner", raise_error)
    assert main(["keys", str(tmp_path / "keys")]) == ExitCode.CONFIGURATION
    assert list(tmp_path.iterdir()) == []


def test_a_missing_place_for_the_folder_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", str(tmp_path / "no" / "where")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.count("\n") == 1
