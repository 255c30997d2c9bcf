"""What ``onrig init`` writes: the shipped configuration under other names, and a README whose commands work."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import VERBS, main
from onrig.tools.first_rig import SOURCES, rig_name
from onrig.tools.load import load
from tests.docs.commands import commands_of

PLANTS = sorted(SOURCES)


def begun(folder: Path, plant: str) -> Path:
    """A folder that the verb has filled."""
    assert main(["init", str(folder), "--plant", plant]) == ExitCode.OK
    return folder


@pytest.mark.parametrize("plant", PLANTS)
def test_the_run_is_that_of_the_shipped_configuration_under_names_of_its_own(plant: str, tmp_path: Path) -> None:
    folder = begun(tmp_path / "my bench", plant)
    mine, shipped = load(str(folder / "run.yaml")), load(SOURCES[plant].run)
    assert (mine.rig.name, mine.task.name) == ("my-bench", f"my-bench-{SOURCES[plant].purpose}")
    rig = msgspec.structs.replace(mine.rig, name=shipped.rig.name)
    task = msgspec.structs.replace(mine.task, name=shipped.task.name)
    assert msgspec.structs.replace(mine, rig=rig, task=task) == shipped


@pytest.mark.parametrize("plant", PLANTS)
def test_the_files_refer_to_each_other_wherever_they_are(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path / "here", plant).rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "there/run.yaml"]) == ExitCode.OK
    assert "rig here, task here-" in capsys.readouterr().out


@pytest.mark.parametrize("plant", PLANTS)
def test_the_comments_of_the_shipped_files_are_kept(plant: str, tmp_path: Path) -> None:
    run = (begun(tmp_path / "bench", plant) / "run.yaml").read_text()
    assert "# plants that the shield's guarantee covers" in run
    assert "# port: {path: /dev/serial/by-id/usb-..., baud: 921600}" in run


@pytest.mark.parametrize("plant", PLANTS)
def test_what_the_readme_tells_to_type_is_sound(
    plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path / "bench", plant)
    monkeypatch.chdir(folder)
    readme = (folder / "README.md").read_text()
    assert "$" not in readme
    tried = 0
    for command in commands_of(folder / "README.md"):
        # Nothing has been identified yet, and no device is there.
        text = command.text.replace("--set identified=identified/identified.yaml", "").replace("PORT", "/dev/null")
        program, verb, *rest = shlex.split(text)
        assert program == "python" or verb in VERBS
        if verb in ("check", "run"):
            dry = ["--dry-run"] if verb == "run" and "--dry-run" not in rest else []
            assert main([verb, *rest, *dry]) == ExitCode.OK, (text, capsys.readouterr().err)
            tried += 1
    assert tried == 6


def test_a_folder_that_holds_anything_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == ExitCode.CONFIGURATION
    assert f"'{tmp_path}' is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["init", str(tmp_path / "notes.txt")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig init: '{tmp_path / 'notes.txt'}' cannot be written: File exists\n"


def test_a_full_disk_leaves_nothing_in_the_way_of_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, folder = Path.write_text, tmp_path / "my rig"

    def full(path: Path, text: str, encoding: str) -> int:
        if path.name == "run.yaml":
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        assert main(["init", str(folder)]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig init: '{folder}' cannot be written: No space left on device\n"
    assert main(["init", str(folder)]) == ExitCode.OK
    assert f"onrig run '{folder}/run.yaml'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("lab", "lab"),
        ("my rig (2)", "my-rig-2"),
        ("a-name-far-too-long", "a-name-far-too-l"),
        ("ü", "pendulum"),
        ("12", "12"),
    ],
)
def test_a_rig_is_named_after_its_folder_as_far_as_the_wire_can_carry_it(
    folder: str, name: str, tmp_path: Path
) -> None:
    assert rig_name(tmp_path / folder, "pendulum") == name
    assert load(str(begun(tmp_path / folder, "pendulum") / "run.yaml")).rig.name == name
