"""CURVE keys of a rig and its learners, stored in private folders.

A folder of keys holds one folder for each machine, to be copied there::

    rig/secret.key          pair of the rig
    rig/learners/NAME.key   public keys of learners that may connect
    NAME/secret.key         pair of a learner
    NAME/rig.key            public key of its rig

Every file is 0600, every folder 0700; a key that others could read or replace is rejected.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from onrig.runtime.files import read_file

RIG_FOLDER: Final = "rig"
LEARNER_FOLDER: Final = "learner"
SECRET_FILE: Final = "secret.key"
RIG_PUBLIC_FILE: Final = "rig.key"
LEARNERS_FOLDER: Final = "learners"
_MAX_KEY_FILE_BYTES: Final = 4096
_MAX_LEARNER_KEYS: Final = 1000
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_FIELD_PATTERN: Final = re.compile(r'^\s*(public-key|secret-key)\s*=\s*"([^"\n]{40})"\s*$', re.MULTILINE)


class KeyFileError(Exception):
    """Missing, damaged or exposed keys; the message is one line and includes the remedy."""


class KeyPair(NamedTuple):
    """A key pair in Z85 encoding."""

    public: bytes
    secret: bytes


class RigKeys(NamedTuple):
    """Keys of a rig."""

    pair: KeyPair
    names_by_key: Mapping[bytes, str]
    """Names of the admitted learners, by public key (32 bytes)."""


class LearnerKeys(NamedTuple):
    """Keys of a learner."""

    pair: KeyPair
    rig: bytes
    """The rig's public key, Z85."""


def fingerprint(public: bytes) -> str:
    """Return a short name for a public key (32 bytes): ten hex digits of its BLAKE2b hash."""
    return hashlib.blake2b(public, digest_size=5).hexdigest()


def pair_fingerprint(pair: KeyPair) -> str:
    """Return the fingerprint of a pair's public key."""
    return fingerprint(z85.decode(pair.public))


def is_valid_name(name: str) -> bool:
    """Return whether a name is valid for a learner: letters, digits, dots, dashes and underscores, but not ``rig``."""
    return _NAME_PATTERN.fullmatch(name) is not None and name != RIG_FOLDER


def load_rig_keys(folder: Path) -> RigKeys:
    """Read a rig's keys from its folder, or from the parent folder of keys; raises KeyFileError."""
    folder = _resolve_folder(folder, RIG_FOLDER)
    pair = _read_pair(folder / SECRET_FILE)
    learners_folder = folder / LEARNERS_FOLDER
    _check_folder(learners_folder)
    names_by_key: dict[bytes, str] = {}
    for path in sorted(learners_folder.glob("*.key"))[: _MAX_LEARNER_KEYS + 1]:
        names_by_key[z85.decode(_read_public_key(path))] = path.stem
    if not names_by_key:
        raise KeyFileError(
            f"{learners_folder}: contains no learner's key; put a NAME.key there (onrig keys DIR --learner NAME)"
        )
    if len(names_by_key) > _MAX_LEARNER_KEYS:
        raise KeyFileError(f"{learners_folder}: more than {_MAX_LEARNER_KEYS} keys")
    if z85.decode(pair.public) in names_by_key:
        raise KeyFileError(
            f"{folder / SECRET_FILE}: also the key of a learner; the keys of rig and learner were swapped"
        )
    return RigKeys(pair, names_by_key)


def load_learner_keys(folder: Path) -> LearnerKeys:
    """Read a learner's keys from its folder, or from ``learner`` in the parent folder of keys; raises KeyFileError."""
    folder = _resolve_folder(folder, LEARNER_FOLDER)
    keys = LearnerKeys(_read_pair(folder / SECRET_FILE), _read_public_key(folder / RIG_PUBLIC_FILE))
    if keys.pair.public == keys.rig:
        raise KeyFileError(f"{folder / SECRET_FILE}: also the key of the rig; the keys of rig and learner were swapped")
    return keys


def write_key(path: Path, pair: KeyPair, *, with_secret: bool, owner: str) -> None:
    """Write a new key file (0600); raises FileExistsError if it exists, because keys are never overwritten."""
    lines = [f"# Onrig: {'secret key' if with_secret else 'public key'} of {owner}", "metadata", "curve"]
    lines.append(f'    public-key = "{pair.public.decode()}"')
    if with_secret:
        lines.append(f'    secret-key = "{pair.secret.decode()}"')
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        os.fchmod(fd, 0o600)  # regardless of the umask
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(fd)


def generate_key_pair() -> KeyPair:
    """Generate a key pair."""
    return KeyPair(*zmq.curve_keypair())


def check_folder(folder: Path) -> None:
    """Raise KeyFileError unless a folder exists, belongs to this user and is inaccessible to others."""
    _check_folder(folder)


def _resolve_folder(folder: Path, name: str) -> Path:
    _check_folder(folder)
    if not (folder / SECRET_FILE).exists() and (folder / name).is_dir():
        folder = folder / name
        _check_folder(folder)
    return folder


def _check_folder(folder: Path) -> None:
    status = _stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise KeyFileError(f"{folder}: not a folder of keys; make one with `onrig keys DIR`")
    _check_private(folder, status, 0o700)


def _read_pair(path: Path) -> KeyPair:
    fields = _read_fields(path)
    secret = fields.get("secret-key")
    if secret is None:
        raise KeyFileError(f"{path}: contains no secret key; copy the file again, or make new keys (onrig keys)")
    public = fields.get("public-key")
    try:
        derived_public_key = zmq.curve_public(secret)
    except (ValueError, zmq.ZMQError):
        raise KeyFileError(f"{path}: the secret key is damaged; copy the file again") from None
    if public != derived_public_key:
        raise KeyFileError(f"{path}: the two keys do not match; copy the file again")
    return KeyPair(derived_public_key, secret)


def _read_public_key(path: Path) -> bytes:
    public = _read_fields(path).get("public-key")
    if public is None:
        raise KeyFileError(f"{path}: contains no public key; copy the file again")
    try:
        z85.decode(public)
    except (ValueError, KeyError, IndexError, struct.error):
        raise KeyFileError(f"{path}: the public key is damaged; copy the file again") from None
    return public


def _read_fields(path: Path) -> dict[str, bytes]:
    status = _stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path}: not a key file; make one with `onrig keys DIR`")
    _check_private(path, status, 0o600)
    try:
        text = read_file(path, _MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}; copy the file again") from None
    if not text.isascii():
        raise KeyFileError(f"{path}: not a key file; copy it again")
    return {name: value.encode() for name, value in _FIELD_PATTERN.findall(text.decode("ascii"))}


def _stat(path: Path) -> os.stat_result:
    try:
        return path.lstat() if path.name.endswith(".key") else path.stat()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}; make keys with `onrig keys DIR` and copy them here") from None


def _check_private(path: Path, status: os.stat_result, mode: int) -> None:
    if status.st_uid != os.geteuid():
        raise KeyFileError(f"{path}: belongs to another user (uid {status.st_uid}); chown it to uid {os.geteuid()}")
    if status.st_mode & 0o077:
        actual_mode = stat.S_IMODE(status.st_mode)
        raise KeyFileError(
            f"{path}: open to other users (mode {actual_mode:04o}); chmod {mode:o} it, and renew the keys if in doubt"
        )
