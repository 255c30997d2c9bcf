"""Policies that were rolled back, in ``policies/rolled_back.json`` of the run folder: none of them acts again.

The file is written whole, synced and renamed, so that neither a new replay process nor a resumed run takes one of them
for good.  A policy is known by its bytes; its id is for people.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.replaced_file import replace_own_file

FILE_NAME: Final = "rolled_back.json"


class Entry(msgspec.Struct, frozen=True):
    """One of them."""

    policy: int
    digest: str
    """Of its bytes: BLAKE2b with 16 bytes, hexadecimal."""
    reason: str


def digest_of(model: bytes) -> bytes:
    """Name the bytes of a policy."""
    return hashlib.blake2b(model, digest_size=16).digest()


class RolledBack:
    """The list of one run folder's ``policies``.

    A list that cannot be read counts as empty, and ``damaged`` says so.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._entries: dict[str, Entry] = {}
        self.damaged = ""
        self._unwritten = False
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=list[Entry])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            self.damaged = str(error)
            return
        self._entries = {e.digest: e for e in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, policy_id: int) -> bool:
        """Whether a policy of this id is on the list."""
        return any(entry.policy == policy_id for entry in self._entries.values())

    def entry(self, digest: bytes) -> Entry | None:
        """Say which policy was rolled back and why; None where it was not."""
        return self._entries.get(digest.hex())

    def add(self, policy_id: int, digest: bytes, reason: str) -> None:
        """Put a policy on the list; raises OSError where that waits for `retry`."""
        self._entries[digest.hex()] = Entry(policy_id, digest.hex(), reason)
        self._write()

    def keep(self, count: int) -> None:
        """Forget all but the first ``count``: what they did has not happened yet; raises OSError."""
        if len(self._entries) > count:
            self._entries = dict(list(self._entries.items())[:count])
            self._write()

    def retry(self) -> None:
        """Write what a full disk did not take."""
        if self._unwritten:
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        self._unwritten = True
        data = msgspec.json.format(msgspec.json.encode(list(self._entries.values())), indent=1) + b"\n"
        replace_own_file(self._path, data, durable=True)
        self._unwritten = False
