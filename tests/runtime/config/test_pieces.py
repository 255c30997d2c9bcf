"""Pieces in files named by a configuration: what may run, what is registered, and the messages otherwise."""

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
def isolate_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has loaded no configuration, in its own folder."""
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    monkeypatch.setattr(python_files, "_trusts_everything", False)
    monkeypatch.setenv("ONRIG_TRUST", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_source(source: str) -> Path:
        (tmp_path / "mine.py").write_text(source)
        return tmp_path / "mine.py"

    return write_source


def plugin_document(location: str = "mine.py:Mine", name: str = "Mine", group: str = "retentions") -> Document:
    return parse_content(f"python: {{{group}: {{{name}: '{location}'}}}}".encode(), "run.yaml")


def loading_message(document: Document, base: Path | None = Path()) -> str:
    with pytest.raises(ConfigError) as error:
        with_plugins(document, base)
    return str(error.value)


def resolve_location(document: Document) -> str:
    location = with_plugins(document, Path()).data["python"]["retentions"]["Mine"]  # type: ignore[index,call-overload]
    assert isinstance(location, str)
    return location


def test_a_name_is_registered_without_running_the_file(write: Write) -> None:
    path = write("raise SystemExit('it ran')\n")
    assert re.fullmatch(rf"{path}:Mine#sha256:[0-9a-f]{{64}}", resolve_location(plugin_document()))
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_its_object_has_the_same_rights_as_any_other(write: Write) -> None:
    write(SOURCE)
    with_plugins(plugin_document(), Path())
    keeper = registry.load(registry.RETENTIONS, "Mine")
    assert keeper.name == "Mine"
    assert registry.is_third_party(keeper)
    origin = registry.plugin_origin(registry.RETENTIONS, "Mine")
    assert origin is not None
    assert origin.source.endswith("mine.py")
    assert registry.import_home(keeper, ":Mine") is keeper
    assert registry.load(registry.RETENTIONS, "Mine") is keeper


def test_a_configuration_outside_the_working_directory_runs_no_code(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(SOURCE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert loading_message(plugin_document(), tmp_path).endswith(
        f"its Python code runs only with --trust; read it first: {path}"
    )
    assert "Mine" not in registry.names(registry.RETENTIONS)
    python_files.trust_everything()
    with_plugins(plugin_document(), tmp_path)
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_a_resolved_configuration_runs_only_trusted_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SOURCE)
    location = resolve_location(plugin_document())
    with_plugins(plugin_document(location), None)  # allowed by the configuration itself, also for child processes
    trusted = os.environ["ONRIG_TRUST"]
    monkeypatch.setenv("ONRIG_TRUST", "")
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    assert "only with --trust" in loading_message(plugin_document(location), None)
    with pytest.raises(python_files.NotTrusted):
        register_resolved(f'{{"python": {{"retentions": {{"Mine": "{location}"}}}}}}'.encode())
    monkeypatch.setenv("ONRIG_TRUST", trusted)
    register_resolved(f'{{"python": {{"retentions": {{"Mine": "{location}"}}}}}}'.encode())
    assert "Mine" in registry.names(registry.RETENTIONS)


def test_code_sent_by_another_machine_runs_without_a_local_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(SOURCE)
    location = resolve_location(plugin_document())
    sent = python_files.allowed_contents()
    path.unlink()
    for name in ("_allowed_by_digest", "_received_by_digest"):
        monkeypatch.setattr(python_files, name, {})
    monkeypatch.setenv("ONRIG_TRUST", "")
    assert "cannot be read" in loading_message(plugin_document(location), base=None)
    python_files.receive(sent)
    with_plugins(plugin_document(location), None)
    assert registry.load(registry.RETENTIONS, "Mine").name == "Mine"


def test_a_changed_file_is_refused(write: Write) -> None:
    write(SOURCE)
    location = resolve_location(plugin_document())
    write(SOURCE + "# changed\n")
    assert "mine.py' has changed since the run began: restore it, or start a new run" in loading_message(
        plugin_document(location), None
    )


def test_the_code_that_runs_is_what_was_hashed(write: Write) -> None:
    write(SOURCE + "# never run before\n")
    with_plugins(plugin_document(), Path())
    write(SOURCE + "# changed in between\n")
    with pytest.raises(ValueError, match="has changed since it was checked"):
        registry.load(registry.RETENTIONS, "Mine")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (plugin_document("/etc/mine.py:Mine"), "'/etc/mine.py' must be in the configuration's folder or a subfolder"),
        (plugin_document("../mine.py:Mine"), "must be in the configuration's folder"),
        (
            plugin_document("absent.py:Mine"),
            "absent.py' cannot be read: No such file or directory at python.retentions.Mine",
        ),
        (plugin_document("mine:Mine"), "'mine:Mine' does not name a plugin in a file: expected FILE.py:NAME"),
        (plugin_document(name="FIFO"), "onrig registers 'FIFO' in onrig.retentions: choose another name"),
        (plugin_document(group="retention"), "unknown group 'retention' (did you mean 'retentions'?)"),
    ],
)
def test_mistakes_are_reported_with_their_place(write: Write, document: Document, message: str) -> None:
    write(SOURCE)
    assert message in loading_message(document)
    assert loading_message(document).startswith("run.yaml:1:")


def test_one_name_for_two_files_is_refused(write: Write, tmp_path: Path) -> None:
    write(SOURCE)
    (tmp_path / "other.py").write_text(SOURCE + "# another\n")
    (tmp_path / "copy.py").write_text(SOURCE)
    with_plugins(plugin_document(), Path())
    with_plugins(plugin_document("copy.py:Mine"), Path())  # the same content elsewhere is the same piece
    assert re.search(
        r"'Mine' is already the name of \S+/mine\.py:Mine: choose another name",
        loading_message(plugin_document("other.py:Mine")),
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:\n", r"SyntaxError: invalid syntax \(mine\.py, line 1\)"),
        ("import nothing_of_that_name\n", r"ModuleNotFoundError: .* \(\S+/mine\.py, line 1\)"),
        ("Other = 1\n", r"AttributeError: .* has no attribute 'Mine'"),
    ],
)
def test_a_broken_file_is_reported_with_its_line(write: Write, source: str, message: str) -> None:
    write(source)
    with_plugins(plugin_document(), Path())
    with pytest.raises(ValueError, match=rf"'Mine' of retentions does not load from \S+/mine\.py:Mine: {message}"):
        registry.load(registry.RETENTIONS, "Mine")


def test_a_run_uses_its_copy_of_a_missing_or_changed_file(tmp_path: Path) -> None:
    table = tmp_path / "beam.barrier"
    table.write_bytes(b"table")
    text = "limits: {predicted: {kind: sampled, table: beam.barrier}}"
    resolve_location = with_files(parse_document(text, "run.yaml"), tmp_path)
    run = tmp_path / "run"
    ((name, content),) = read_copies(resolve_location.data).items()
    (run / name).parent.mkdir(parents=True)
    (run / name).write_bytes(content)

    def read() -> object:
        return value_at(with_copies(resolve_location, run).data, ("limits", "predicted", "table"))

    assert read() == str(table)
    table.write_bytes(b"another")
    assert read() == str(run / name)
    table.unlink()
    assert read() == str(run / name)
    (run / name).unlink()
    assert read() == str(table)


def test_the_configuration_in_a_folder_of_results_is_data(tmp_path: Path) -> None:
    for name, marker in (
        ("config.yaml", "meta.json"),
        ("config.yaml", "checksums.json"),
        ("spec.yaml", "cells.json"),
    ):
        folder = tmp_path / marker.partition(".")[0]
        folder.mkdir()
        assert not holds_results(folder / name), "without a marker the folder is the user's own"
        (folder / marker).touch()
        assert holds_results(folder / name)
        assert not holds_results(folder / "run.yaml")


@pytest.mark.parametrize("words", [("run", "--resume", "{}"), ("check", "{}/config.yaml"), ("twin", "{}/config.yaml")])
def test_no_code_inside_a_run_folder_is_run(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    write_run_folder(folder, load_for_rig("pendulum"))
    text = (folder / "config.yaml").read_text().replace("    wall: null\n", "    terms: {more: {kind: evil}}\n")
    (folder / "config.yaml").write_text(f"{text}python: {{rewards: {{evil: evil.py:Evil}}}}\n")
    (folder / "evil.py").write_text("raise SystemExit('it ran')\n")
    assert main([word.format(folder) for word in words]) == ExitCode.CONFIGURATION
    assert "'evil.py' lacks the SHA-256 that the files of a run or an experiment have" in capsys.readouterr().err
