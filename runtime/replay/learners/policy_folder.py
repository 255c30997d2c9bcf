"""``policies/`` of a run folder: files of the admitted policies, except those that never acted.

Ids increase, and the loop takes policies in order of their ids, so two rules identify policies that can no longer act:

* Once a record names a later policy, a policy that has not acted never will.  (One that has acted may be rolled back
  to.)
* If the slot holds a newer policy, and the loop last took an older one (``PolicySlot.taken_id``), a policy in between
  never acts.  This rule applies only in real time: in lockstep the files of a run must depend only on its records.

If records were lost, all files written up to then are kept, because their policies may have acted.  The folder thus
contains the policies that acted, the newest one, and the few in between.  This includes the policies in a checkpoint's
loop state, because they have acted.  A file that is not listed in ``index.csv`` does not belong to the run.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from onrig.runtime.files import read_file, replace_own_file
from onrig.runtime.record import MAX_POLICY_ID
from onrig.runtime.replay.learners.policy_watch import policy_digest
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.checksums import extent_of
from onrig.runtime.run_state.policy_index import PolicyIndex
from onrig.runtime.shm.latest import MAX_POLICY_BYTES

MAX_UNFILED_BYTES: Final = 16 << 20
"""Maximum total size of the policies waiting for disk space; beyond it, the oldest are dropped."""
_MAX_SEARCHED_FILES: Final = 16
"""Number of a previous process's latest files that are searched for a repeated offer."""


class PolicyFolder:
    """Files of admitted policies, keyed by the id that the rig assigned; ``newest_id`` is the highest one so far."""

    repeats_checks: ClassVar[bool] = False
    """Whether policies that were checked after a checkpoint are checked again when the run returns to it."""

    def __init__(self, path: Path) -> None:
        self.root = path
        path.mkdir(exist_ok=True)
        self._index = PolicyIndex(path)
        ids = self.ids()
        self.newest_id = ids[-1] if ids else 0
        self.last_acted_id = self.newest_id
        """Highest id of a policy that has acted."""
        self._has_acted_by_id: dict[int, bool] = {}
        """Whether each policy whose file may still be removed has acted, keyed by its id; all other files are kept."""
        self._unsynced_ids: dict[int, None] = dict.fromkeys(ids)
        self._unfiled_models: dict[int, bytes] = {}
        self._previous_ids = ids[-_MAX_SEARCHED_FILES:]
        self._previous_digests: dict[bytes, int] | None = None
        self.n_lost = 0
        """Number of admitted policies that were lost because the disk was full for too long."""

    def ids(self) -> list[int]:
        """Return the ids of the stored policies, in ascending order."""
        stems = (name.removesuffix(".onnx") for name in os.listdir(self.root) if name.endswith(".onnx"))
        return sorted(i for stem in stems if _is_id(stem) and self._index.get(i := int(stem)) is not None)

    def path(self, policy_id: int) -> Path:
        """Return the path of a policy's file, which may not exist."""
        return self.root / f"{policy_id}.onnx"

    def model(self, policy_id: int) -> bytes:
        """Read a policy; raises OSError if it cannot be read or its content has changed since it was stored."""
        pending_model = self._unfiled_models.get(policy_id)
        if pending_model is not None:
            return pending_model
        model = read_file(self.path(policy_id), MAX_POLICY_BYTES)
        if extent_of(model) != self._index.get(policy_id):
            raise OSError(errno.EIO, "its content has changed since it was stored", str(self.path(policy_id)))
        return model

    def find_previous(self, digest: bytes) -> int | None:
        """Find the policy with this digest among a previous process's latest files; return its id, or None."""
        if self._previous_digests is None:
            self._previous_digests = {}
            for policy_id in self._previous_ids:
                try:
                    self._previous_digests[policy_digest(self.model(policy_id))] = policy_id
                except OSError:
                    continue
        return self._previous_digests.get(digest)

    # -- filing ------------------------------------------------------------------------------------------------------

    def file(self, policy_id: int, model: bytes) -> str:
        """Write a policy's file atomically; return "", or the reason why a later ``retry`` has to write it."""
        self.newest_id = max(self.newest_id, policy_id)
        self._has_acted_by_id.setdefault(policy_id, False)
        reason = self._write(policy_id, model)
        if reason:
            self._unfiled_models[policy_id] = model
            while len(self._unfiled_models) > 1 and sum(map(len, self._unfiled_models.values())) > MAX_UNFILED_BYTES:
                del self._unfiled_models[next(iter(self._unfiled_models))]
                self.n_lost += 1
        return reason

    def retry(self) -> None:
        """Retry the writes that a full disk rejected."""
        for policy_id in [*self._unfiled_models]:
            if self._write(policy_id, self._unfiled_models[policy_id]):
                return
            del self._unfiled_models[policy_id]

    def _write(self, policy_id: int, model: bytes) -> str:
        try:
            self._index.add(policy_id, model)  # first, so that a killed process leaves no unlisted file
            replace_own_file(self.path(policy_id), model)
        except OSError as error:
            return error.strerror or str(error)
        self._unsynced_ids[policy_id] = None
        return ""

    # -- pruning -----------------------------------------------------------------------------------------------------

    def resume(self, newest_id: int, acted: int) -> None:
        """Continue from a checkpoint that relies on the policies up to ``newest_id``; ``acted`` was the last to act."""
        self.newest_id = max(self.newest_id, newest_id)
        self._unsynced_ids = {i: None for i in self._unsynced_ids if i > newest_id}

    def note(self, acting_ids: Iterable[int]) -> None:
        """Record which policies acted in the next records, and remove those that can therefore no longer act."""
        previous = self.last_acted_id
        self._record_acting(acting_ids)
        if self.last_acted_id > previous:
            self.prune()

    def _record_acting(self, acting_ids: Iterable[int]) -> None:
        for policy_id in acting_ids:
            if policy_id in self._has_acted_by_id:
                self._has_acted_by_id[policy_id] = True
            self.last_acted_id = max(self.last_acted_id, policy_id)

    def keep_all(self) -> None:
        """Keep all files, because records were lost and any policy may have acted."""
        self._has_acted_by_id = dict.fromkeys(self._has_acted_by_id, True)

    def prune(self) -> None:
        """Remove the policies that had not acted by the time a later one did."""
        for policy_id in [i for i in self._has_acted_by_id if i < self.last_acted_id]:
            if not self._has_acted_by_id.pop(policy_id):
                self._discard(policy_id)
        if self._has_acted_by_id.get(self.last_acted_id):
            del self._has_acted_by_id[self.last_acted_id]

    def remove_superseded(self, taken_id: int) -> None:
        """Remove the policies that follow the last one that the loop took or that acted, except for the newest one."""
        last_used = max(taken_id, self.last_acted_id)
        for policy_id in [
            i for i, has_acted in self._has_acted_by_id.items() if last_used < i < self.newest_id and not has_acted
        ]:
            del self._has_acted_by_id[policy_id]
            self._discard(policy_id)

    def _discard(self, policy_id: int) -> None:
        self._unfiled_models.pop(policy_id, None)
        self._unsynced_ids.pop(policy_id, None)
        _remove(self.path(policy_id))

    @property
    def unfiled(self) -> int:
        """Number of policies waiting for disk space."""
        return len(self._unfiled_models)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def unsynced(self) -> list[int]:
        """Return the ids of the policies that no checkpoint covers yet."""
        return [*self._unsynced_ids]

    def mark_synced(self, policy_ids: Iterable[int]) -> None:
        """Mark these policies as covered by a checkpoint."""
        for policy_id in policy_ids:
            self._unsynced_ids.pop(policy_id, None)


class RepeatedPolicyFolder(PolicyFolder):
    """Folder in lockstep: everything after a checkpoint is repeated, so files must depend only on records, and change
    only at barriers.
    """

    repeats_checks = True

    def find_previous(self, digest: bytes) -> int | None:
        """Return None, because earlier checks are repeated."""
        return None

    def resume(self, newest: int, acted: int) -> None:
        """Continue from a checkpoint; stored policies with an id above ``acted`` have not acted yet."""
        super().resume(newest, acted)
        self.last_acted_id = acted
        self._has_acted_by_id = {i: False for i in self.ids() if i > acted}

    def note(self, acting_ids: Iterable[int]) -> None:
        """Record which policies acted, without removing any; only ``prune`` does that."""
        self._record_acting(acting_ids)

    def remove_superseded(self, taken_id: int) -> None:
        """Do nothing, because the result would depend on when the loop polled the slot."""


def policy_folder(config: RunConfig, path: Path) -> PolicyFolder:
    """Return the policy folder of a run."""
    return RepeatedPolicyFolder(path) if config.lockstep else PolicyFolder(path)


def _is_id(name: str) -> bool:
    return (
        name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_POLICY_ID)) and 0 < int(name) <= MAX_POLICY_ID
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # a leftover file only costs disk space
        return
