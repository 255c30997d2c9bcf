"""``policies/`` of a run folder: a file for each admitted policy, and none for one that never acted.

Ids count up and the loop takes policies in that order, so two rules tell which ones can no longer act:

* A record names a later policy: one that has not acted by then never will.  (One that has may be rolled back to.)
* The loop took an older one last, and the slot holds a newer one (``PolicySlot.taken``).  Real time only: in lockstep
  the files of a run must not depend on when the loop looked.

Where records were lost, everything filed by then stays: it may have acted unseen.  What remains is whatever acted,
the newest, and the few in between; those in a checkpoint's loop state are among them, because they have acted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from onrig.runtime.files import replace_own_file
from onrig.runtime.record import MAX_POLICY_ID
from onrig.runtime.replay.learners.policy_watch import digest_of

MAX_UNFILED_BYTES: Final = 16 << 20
"""Policies that wait for a full disk to have room, in all; the oldest go first."""
_RECALLED: Final = 16
"""Files of a process before this one that are known by their bytes: the latest, one of which may be offered again."""


class PolicyFolder:
    """Files of admitted policies, by the id that the rig gave them; ``newest`` is the highest id ever given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(exist_ok=True)
        found = self.ids()
        self.newest = found[-1] if found else 0
        self.acted = self.newest
        """Highest id that a record has named."""
        self._open: dict[int, bool] = {}
        """Policies that may still be removed, in order, and whether each has acted; every other file stays."""
        self._unsynced: dict[int, None] = dict.fromkeys(found)
        self._unfiled: dict[int, bytes] = {}
        self._before = found[-_RECALLED:]
        self._recalled: dict[bytes, int] | None = None
        self.lost = 0
        """Policies that were admitted and will never be on file: a disk was full for too long."""

    def ids(self) -> list[int]:
        """List the policies on file, in order."""
        stems = (name.removesuffix(".onnx") for name in os.listdir(self._path) if name.endswith(".onnx"))
        return sorted(int(stem) for stem in stems if _is_id(stem))

    def path(self, policy_id: int) -> Path:
        """Where a policy lies, if it is there."""
        return self._path / f"{policy_id}.onnx"

    def model(self, policy_id: int) -> bytes:
        """Read a policy; raises OSError."""
        waiting = self._unfiled.get(policy_id)
        return self.path(policy_id).read_bytes() if waiting is None else waiting

    def recall(self, digest: bytes) -> int | None:
        """Find the policy with these bytes among the latest of a process before this one."""
        if self._recalled is None:
            self._recalled = {}
            for policy_id in self._before:
                try:
                    self._recalled[digest_of(self.model(policy_id))] = policy_id
                except OSError:
                    continue
        return self._recalled.get(digest)

    # -- what comes in -----------------------------------------------------------------------------------------------

    def file(self, policy_id: int, model: bytes) -> str:
        """Put a policy on file, whole; empty, or why that has to wait for ``retry``."""
        self.newest = max(self.newest, policy_id)
        self._open.setdefault(policy_id, False)
        reason = self._write(policy_id, model)
        if reason:
            self._unfiled[policy_id] = model
            while len(self._unfiled) > 1 and sum(map(len, self._unfiled.values())) > MAX_UNFILED_BYTES:
                del self._unfiled[next(iter(self._unfiled))]
                self.lost += 1
        return reason

    def retry(self) -> None:
        """File what a full disk did not take."""
        for policy_id in [*self._unfiled]:
            if self._write(policy_id, self._unfiled[policy_id]):
                return
            del self._unfiled[policy_id]

    def _write(self, policy_id: int, model: bytes) -> str:
        try:
            replace_own_file(self.path(policy_id), model)
        except OSError as error:
            return error.strerror or str(error)
        self._unsynced[policy_id] = None
        return ""

    # -- what goes ---------------------------------------------------------------------------------------------------

    def go_on(self, newest: int) -> None:
        """Go on from a checkpoint, which relies on the policies up to ``newest``."""
        self.newest = max(self.newest, newest)
        self._unsynced = {i: None for i in self._unsynced if i > newest}

    def reopen(self, acted: int) -> None:
        """Of the policies on file, those after ``acted`` have not acted yet."""
        self.acted = acted
        self._open = {i: False for i in self.ids() if i > acted}

    def note(self, acting: Iterable[int]) -> bool:
        """Hear which policies the next records name; True when that may let others go."""
        before = self.acted
        for policy_id in acting:
            if policy_id in self._open:
                self._open[policy_id] = True
            self.acted = max(self.acted, policy_id)
        return self.acted > before

    def keep_all(self) -> None:
        """Records were lost: whatever is on file may have acted."""
        self._open = dict.fromkeys(self._open, True)

    def prune(self) -> None:
        """Remove what a policy that acts has superseded."""
        for policy_id in [i for i in self._open if i < self.acted]:
            if not self._open.pop(policy_id):
                self._discard(policy_id)
        if self._open.get(self.acted):
            del self._open[self.acted]

    def drop_overtaken(self, taken: int) -> None:
        """Remove what lies between the policy that the loop took last and the newest one."""
        after = max(taken, self.acted)
        for policy_id in [i for i, acted in self._open.items() if after < i < self.newest and not acted]:
            del self._open[policy_id]
            self._discard(policy_id)

    def _discard(self, policy_id: int) -> None:
        self._unfiled.pop(policy_id, None)
        self._unsynced.pop(policy_id, None)
        _remove(self.path(policy_id))

    @property
    def unfiled(self) -> int:
        """How many policies wait for room."""
        return len(self._unfiled)

    # -- what a checkpoint relies on ---------------------------------------------------------------------------------

    def unsynced(self) -> list[int]:
        """List what was filed since a checkpoint last took everything along, and is still there."""
        return [*self._unsynced]

    def synced(self, policy_ids: Iterable[int]) -> None:
        """Hear that a checkpoint takes these along."""
        for policy_id in policy_ids:
            self._unsynced.pop(policy_id, None)


def _is_id(name: str) -> bool:
    return (
        name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_POLICY_ID)) and 0 < int(name) <= MAX_POLICY_ID
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # it stays, which costs its room and nothing else
        return
