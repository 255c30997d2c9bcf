"""Pieces in files that a configuration names: what may run, what is registered, and what is said otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from onrig.runtime import python_files, registry
from onrig.runtime.config.document import Document, parse_content, parse_document
from onrig.runtime.config.pieces import (
    holds_results,
    read_copies,
    register_resolved,
    with_copies,
    with_files,
    with_plugins,
)
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.config.yaml_nodes import value_at
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.run_folder import write_run_folder
from onrig.tools.cli import main
from onrig.tools.load import load_for_rig

SOURCE = """\
from onrig.runtime.memory.keepers.cyclic import Fifo

class Mine(Fifo):
    name = "Mine"
"""

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has read no configuration, in a folder of its own."""
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    monkeypatch.setattr(python_files, "_trusts_everything", False)
    monkeypatch.setenv("ONRIG_TRUST", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(source: str) -> Path:
        (tmp_path / "mine.py").write_text(source)
        return tmp_path / "mine.py"

    return written


def named(place: str = "mine.py:Mine", name: str = "Mine", group: str = "retentions") -> Document:
    return parse_content(f"python: {{{group}: {{{name}: '{place}'}}}}".encode(), "run.yaml")


def said(document: Document, base: Path | None = Path()) -> str:
    with pytest.raises(ConfigError) as failure:
        with_plugins(document, base)
    return str(failure.value)


def resolved(document: Document) -> str:
    place = with_plugins(document, Path()).data["python"]["retentions"]["Mine"]  # type: ignore[index,call-overload]
    assert isinstance(place, str)
    return place


def test_a_name_is_registered_without_running_the_file(write: Write) -> None:
    path = write("raise SystemExit('it ran')\n")
    assert re.fullmatch(rf"{path}:Mine#sha256:[0-9a-f]{{64}}", resolved(named()))
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_its_object_has_the_rights_of_any_other(write: Write) -> None:
    write(SOURCE)
    with_plugins(named(), Path())
    keeper = registry.load(registry.RETENTIONS, "Mine")
    assert keeper.name == "Mine"
    assert registry.is_third_party(keeper)
    origin = registry.plugin_origin(registry.RETENTIONS, "Mine")
    assert origin is not None
    assert origin.source.endswith("mine.py")
    assert registry.import_home(keeper, ":Mine") is keeper
    assert registry.load(registry.RETENTIONS, "Mine") is keeper


def test_a_configuration_outside_the_working_directory_runs_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(SOURCE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert said(named(), tmp_path).endswith(f"its Python code runs only with --trust; read it first: {path}")
    assert "Mine" not in registry.names(registry.RETENTIONS)
    python_files.trust_everything()
    with_plugins(named(), tmp_path)
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_a_resolved_one_runs_only_what_was_allowed_to(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SOURCE)
    place = resolved(named())
    with_plugins(named(place), None)  # allowed by the configuration itself, also for child processes
    allowed = os.environ["ONRIG_TRUST"]
    monkeypatch.setenv("ONRIG_TRUST", "")
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    assert "only with --trust" in said(named(place), None)
    with pytest.raises(python_files.NotTrusted):
        register_resolved(f'{{"python": {{"retentions": {{"Mine": "{place}"}}}}}}'.encode())
    monkeypatch.setenv("ONRIG_TRUST", allowed)
    register_resolved(f'{{"python": {{"retentions": {{"Mine": "{place}"}}}}}}'.encode())
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_what_another_machine_sends_runs_without_a_file_here(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(SOURCE)
    place = resolved(named())
    sent = python_files.allowed_contents()
    path.unlink()
    for name in ("_allowed_by_digest", "_received_by_digest"):
        monkeypatch.setattr(python_files, name, {})
    monkeypatch.setenv("ONRIG_TRUST", "")
    assert "cannot be read" in said(named(place), base=None)
    python_files.receive(sent)
    with_plugins(named(place), None)
    assert registry.load(registry.RETENTIONS, "Mine").name == "Mine"


def test_a_file_that_has_changed_is_refused(write: Write) -> None:
    write(SOURCE)
    place = resolved(named())
    write(SOURCE + "# changed\n")
    assert "mine.py' has changed since the run began: restore it, or start a new run" in said(named(place), None)


def test_what_is_run_is_what_was_hashed(write: Write) -> None:
    write(SOURCE + "# never run before\n")
    with_plugins(named(), Path())
    write(SOURCE + "# changed in between\n")
    with pytest.raises(ValueError, match="has changed since it was checked"):
        registry.load(registry.RETENTIONS, "Mine")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (named("/etc/mine.py:Mine"), "'/etc/mine.py' must be in the configuration's folder or below it"),
        (named("../mine.py:Mine"), "must be in the configuration's folder"),
        (named("absent.py:Mine"), "absent.py' cannot be read: No such file or directory at python.retentions.Mine"),
        (named("mine:Mine"), "'mine:Mine' does not name a plugin in a file: expected FILE.py:NAME"),
        (named(name="FIFO"), "onrig registers 'FIFO' in onrig.retentions: choose another name"),
        (named(group="retention"), "unknown group 'retention' (did you mean 'retentions'?)"),
    ],
)
def test_mistakes_are_told_with_their_place(write: Write, document: Document, message: str) -> None:
    write(SOURCE)
    assert message in said(document)
    assert said(document).startswith("run.yaml:1:")


def test_one_name_for_two_files_is_refused(write: Write, tmp_path: Path) -> None:
    write(SOURCE)
    (tmp_path / "other.py").write_text(SOURCE + "# another\n")
    (tmp_path / "copy.py").write_text(SOURCE)
    with_plugins(named(), Path())
    with_plugins(named("copy.py:Mine"), Path())  # the same content elsewhere is the same piece
    assert re.search(
        r"'Mine' is already the name of \S+/mine\.py:Mine: choose another name", said(named("other.py:Mine"))
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:\n", r"SyntaxError: invalid syntax \(mine\.py, line 1\)"),
        ("import nothing_of_that_name\n", r"ModuleNotFoundError: .* \(\S+/mine\.py, line 1\)"),
        ("Other = 1\n", r"AttributeError: .* has no attribute 'Mine'"),
    ],
)
def test_a_broken_file_is_told_with_its_line(write: Write, source: str, message: str) -> None:
    write(source)
    with_plugins(named(), Path())
    with pytest.raises(ValueError, match=rf"'Mine' of retentions does not load from \S+/mine\.py:Mine: {message}"):
        registry.load(registry.RETENTIONS, "Mine")


def test_a_run_uses_its_copy_of_a_file_that_is_missing_or_has_changed(tmp_path: Path) -> None:
    table = tmp_path / "beam.barrier"
    table.write_bytes(b"table")
    text = "limits: {predicted: {kind: sampled, table: beam.barrier}}"
    resolved = with_files(parse_document(text, "run.yaml"), tmp_path)
    run = tmp_path / "run"
    ((name, content),) = read_copies(resolved.data).items()
    (run / name).parent.mkdir(parents=True)
    (run / name).write_bytes(content)

    def read() -> object:
        return value_at(with_copies(resolved, run).data, ("limits", "predicted", "table"))

    assert read() == str(table)
    table.write_bytes(b"another")
    assert read() == str(run / name)
    table.unlink()
    assert read() == str(run / name)
    (run / name).unlink()
    assert read() == str(table)


def test_the_configuration_in_a_folder_of_results_is_data(tmp_path: Path) -> None:
    for name, neighbour in (
        ("config.yaml", "meta.json"),
        ("config.yaml", "checksums.json"),
        ("spec.yaml", "cells.json"),
    ):
        folder = tmp_path / neighbour.partition(".")[0]
        folder.mkdir()
        assert not holds_results(folder / name), "alone it is its user's"
        (folder / neighbour).touch()
        assert holds_results(folder / name)
        assert not holds_results(folder / "run.yaml")


@pytest.mark.parametrize("words", [("run", "--resume", "{}"), ("check", "{}/config.yaml"), ("twin", "{}/config.yaml")])
def test_a_run_folder_runs_no_code_that_it_brings_along(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    write_run_folder(folder, load_for_rig("pendulum"))
    text = (folder / "config.yaml").read_text().replace("    wall: null\n", "    terms: {more: {kind: evil}}\n")
    (folder / "config.yaml").write_text(f"{text}python: {{rewards: {{evil: evil.py:Evil}}}}\n")
    (folder / "evil.py").write_text("raise SystemExit('it ran')\n")
    assert main([word.format(folder) for word in words]) == ExitCode.CONFIGURATION
    assert "'evil.py' lacks the SHA-256 that the files of a run or an experiment have" in capsys.readouterr().err
