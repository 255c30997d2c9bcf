"""Creation of a folder with CURVE key pairs for a rig and its learners."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.keys import (
    LEARNER_FOLDER,
    LEARNERS_FOLDER,
    RIG_FOLDER,
    RIG_PUBLIC_FILE,
    SECRET_FILE,
    KeyFileError,
    KeyPair,
    check_folder,
    generate_key_pair,
    is_valid_name,
    load_rig_keys,
    pair_fingerprint,
    write_key,
)
from onrig.tools.terminal import complain


def make_keys(folder: Path, name: str = LEARNER_FOLDER) -> int:
    """Generate the keys of a learner and, in a new folder, those of the rig, and return the exit code. Existing keys
    are never overwritten.
    """
    if not is_valid_name(name):
        return complain(
            "keys", f"--learner: '{name}' is not a valid name; use letters, digits, '.', '-', '_', not 'rig'"
        )
    try:
        rig, learner = _make_learner_keys(folder, name) if folder.exists() else _make_first_keys(folder, name)
    except KeyFileError as error:
        return complain("keys", str(error), ExitCode.PREFLIGHT)
    except FileExistsError as error:
        existing_path = error.filename2 or error.filename
        return complain(
            "keys", f"{existing_path}: these keys already exist and are never overwritten; choose another NAME"
        )
    except OSError as error:
        return complain("keys", f"{folder}: {error.strerror or error}")
    print(f"rig {pair_fingerprint(rig)}: copy {folder / RIG_FOLDER} to the rig (link.keys)")
    print(f"{name} {pair_fingerprint(learner)}: copy {folder / name} to the learner (--keys)")
    return ExitCode.OK


def _make_first_keys(folder: Path, name: str) -> tuple[KeyPair, KeyPair]:
    """Generate the keys of a rig and its first learner; on failure, none are kept."""
    rig, learner = generate_key_pair(), generate_key_pair()
    temporary_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
    try:
        for subfolder in (
            temporary_folder / RIG_FOLDER,
            temporary_folder / RIG_FOLDER / LEARNERS_FOLDER,
            temporary_folder / name,
        ):
            subfolder.mkdir(mode=0o700)
        write_key(temporary_folder / RIG_FOLDER / SECRET_FILE, rig, with_secret=True, owner="the rig")
        write_key(
            temporary_folder / RIG_FOLDER / LEARNERS_FOLDER / f"{name}.key", learner, with_secret=False, owner=name
        )
        _write_learner(temporary_folder / name, learner, rig, name)
        temporary_folder.rename(folder)
    except BaseException:
        shutil.rmtree(temporary_folder, ignore_errors=True)
        raise
    return rig, learner


def _make_learner_keys(folder: Path, name: str) -> tuple[KeyPair, KeyPair]:
    """Generate keys for another learner of an existing rig."""
    check_folder(folder)
    rig = load_rig_keys(folder / RIG_FOLDER).pair
    learner = generate_key_pair()
    public_key_file = folder / RIG_FOLDER / LEARNERS_FOLDER / f"{name}.key"
    if public_key_file.exists():
        raise FileExistsError(17, "exists", str(public_key_file))
    (folder / name).mkdir(mode=0o700)
    try:
        _write_learner(folder / name, learner, rig, name)
        write_key(public_key_file, learner, with_secret=False, owner=name)
    except BaseException:
        shutil.rmtree(folder / name, ignore_errors=True)
        raise
    return rig, learner


def _write_learner(folder: Path, learner: KeyPair, rig: KeyPair, name: str) -> None:
    os.chmod(folder, 0o700)
    write_key(folder / SECRET_FILE, learner, with_secret=True, owner=name)
    write_key(folder / RIG_PUBLIC_FILE, rig, with_secret=False, owner="the rig")
