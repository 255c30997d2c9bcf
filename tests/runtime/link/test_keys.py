from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from zmq.utils import z85

from onrig.runtime.link.keys import (
    KeyFileError,
    fingerprint,
    generate_key_pair,
    is_valid_name,
    load_learner_keys,
    load_rig_keys,
    pair_fingerprint,
    write_key,
)
from onrig.tools.key_folder import make_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    assert make_keys(folder) == 0
    return folder


def test_rig_and_learner_know_each_other(folder: Path) -> None:
    rig, learner = load_rig_keys(folder), load_learner_keys(folder)
    assert rig == load_rig_keys(folder / "rig")
    assert learner == load_learner_keys(folder / "learner")
    assert learner.rig == rig.pair.public
    assert rig.names_by_key == {z85.decode(learner.pair.public): "learner"}
    assert rig.pair.secret != learner.pair.secret


def test_a_fingerprint_is_short_and_made_from_the_public_key() -> None:
    pair = generate_key_pair()
    assert pair_fingerprint(pair) == fingerprint(z85.decode(pair.public))
    assert len(pair_fingerprint(pair)) == 10
    assert pair_fingerprint(generate_key_pair()) != pair_fingerprint(pair)


@pytest.mark.parametrize("name", ["secret.key", "learners", "learners/learner.key"])
@pytest.mark.parametrize("mode", [0o004, 0o020, 0o040, 0o640])
def test_keys_accessible_to_others_are_refused_with_the_remedy(folder: Path, name: str, mode: int) -> None:
    path = folder / "rig" / name
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(KeyFileError, match=r"open to other users \(mode 0.*\); chmod [67]00") as fault:
        load_rig_keys(folder)
    assert str(path) in str(fault.value)


def test_the_parent_folders_are_checked_too(folder: Path) -> None:
    (folder / "learner").chmod(0o755)
    with pytest.raises(KeyFileError, match="chmod 700"):
        load_learner_keys(folder)
    (folder / "learner").chmod(0o700)
    folder.chmod(0o750)
    with pytest.raises(KeyFileError, match="chmod 700"):
        load_learner_keys(folder)


def test_keys_of_another_user_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own_uid + 1)
    with pytest.raises(KeyFileError, match=f"belongs to another user \\(uid {own_uid}\\)"):
        load_learner_keys(folder)


def _replace(path: Path, text: str) -> None:
    path.write_text(text)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGED_KEYS: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda p: p.unlink(), "No such file.*onrig keys"),
    "empty": (lambda p: _replace(p, ""), "no secret key"),
    "public only": (lambda p: _replace(p, p.read_text().split("    secret")[0]), "no secret key"),
    "short": (lambda p: _replace(p, p.read_text()[:-5]), "no secret key"),
    "no key": (lambda p: _replace(p, 'secret-key = "' + "~" * 40 + '"'), "secret key is damaged"),
    "another's": (
        lambda p: _replace(p, p.read_text().replace(p.read_text().split('"')[1], generate_key_pair().public.decode())),
        "do not match",
    ),
    "huge": (lambda p: _replace(p, "x" * 5000), "larger than 4096 bytes; copy the file again"),
    "no text": (lambda p: p.write_bytes(b"\xff\x00"), "not a key file"),
    "a folder": (_make_folder, "not a key file"),
}


@pytest.mark.parametrize("damage", DAMAGED_KEYS)
def test_damaged_keys_are_refused_in_one_line(folder: Path, damage: str) -> None:
    path = folder / "rig" / "secret.key"
    damage_file, message = DAMAGED_KEYS[damage]
    damage_file(path)
    with pytest.raises(KeyFileError, match=message) as fault:
        load_rig_keys(folder)
    assert "\n" not in str(fault.value)
    assert str(path) in str(fault.value)


def test_a_link_to_keys_elsewhere_is_refused(folder: Path) -> None:
    path = folder / "rig" / "secret.key"
    path.rename(folder / "elsewhere.key")
    path.symlink_to(folder / "elsewhere.key")
    with pytest.raises(KeyFileError, match="not a key file"):
        load_rig_keys(folder)


def test_a_list_without_learners_is_refused(folder: Path) -> None:
    (folder / "rig" / "learners" / "learner.key").unlink()
    with pytest.raises(KeyFileError, match="contains no learner's key"):
        load_rig_keys(folder)


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    write_key(path, generate_key_pair(), with_secret=True, owner="a")
    content = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_key(path, generate_key_pair(), with_secret=True, owner="a")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [("learner", True), ("a-b_c.1", True), ("rig", False), ("", False), ("../x", False), (".x", False)],
)
def test_the_name_of_a_learner_must_be_a_valid_folder_name(name: str, is_valid: bool) -> None:
    assert is_valid_name(name) is is_valid
