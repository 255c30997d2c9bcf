"""The policy slot: the replay process puts admitted policies in, the loop takes them out between ticks.

Two buffers alternate, so that the one being read is never the one being written; a CRC catches the rest.
It covers version and id as well: a weakly ordered memory may show the version before what lies behind it.
In return the loop leaves word of what it took, so that the replay process knows what can no longer act.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from onrig.runtime.shm.segment import Segment

SLOT_SCHEMA: Final = "policy-slot-3"
MAX_POLICY_BYTES: Final = 4 * 1024 * 1024
_META: Final = struct.Struct("<III")  # policy id, length, CRC-32
_BUFFER_BYTES: Final = MAX_POLICY_BYTES + 64
SLOT_BYTES: Final = 64 + 2 * _BUFFER_BYTES


class SlotPolicy(NamedTuple):
    """One policy as it lies in the slot."""

    version: int
    policy_id: int
    model: bytes


def _crc(version: int, policy_id: int, model: bytes) -> int:
    seed = zlib.crc32(b"%d %d" % (version, policy_id))
    return zlib.crc32(model, seed)


class PolicySlot:
    """Single writer, single reader; ``version`` counts the policies put in, ``taken`` is the reader's."""

    def __init__(self, segment: Segment) -> None:
        self._version = segment.body[:8].cast("Q")
        self._taken = segment.body[8:16].cast("Q")
        self._body = segment.body

    @property
    def version(self) -> int:
        """Number of policies put in so far; cheap enough to look at in every tick."""
        return self._version[0]

    @property
    def taken(self) -> int:
        """Id of the policy that the loop took last; 0 before the first.  One between it and the newest never acts."""
        return self._taken[0]

    @property
    def newest_bytes(self) -> int:
        """Length of the newest policy (0 without one): what copying it will cost."""
        version = self._version[0]
        length: int = _META.unpack_from(self._body, 64 + (version & 1) * _BUFFER_BYTES)[1] if version else 0
        return length

    def put(self, policy_id: int, model: bytes) -> None:
        """Publish a policy (replay process only); raises ValueError when it is larger than the slot."""
        if len(model) > MAX_POLICY_BYTES:
            raise ValueError(f"policy of {len(model)} bytes; the slot holds {MAX_POLICY_BYTES}")
        version = self._version[0] + 1
        start = 64 + (version & 1) * _BUFFER_BYTES
        self._body[start + 64 : start + 64 + len(model)] = model
        _META.pack_into(self._body, start, policy_id, len(model), _crc(version, policy_id, model))
        self._version[0] = version

    def take(self) -> SlotPolicy | None:
        """Copy the newest policy out (loop only); None when there is none, or when it was overwritten meanwhile."""
        version = self._version[0]
        if version:
            # Said before it is copied: a writer that replaces it while this goes on sees the word, or is seen here.
            self._taken[0] = _META.unpack_from(self._body, 64 + (version & 1) * _BUFFER_BYTES)[0]
        return self.peek()

    def peek(self) -> SlotPolicy | None:
        """Copy the newest policy out and leave no word of it; None as in ``take``."""
        version = self._version[0]
        if version == 0:
            return None
        start = 64 + (version & 1) * _BUFFER_BYTES
        policy_id, length, crc = _META.unpack_from(self._body, start)
        if length > MAX_POLICY_BYTES:
            return None
        model = bytes(self._body[start + 64 : start + 64 + length])
        if _crc(version, policy_id, model) != crc or self._version[0] != version:
            return None
        return SlotPolicy(version, policy_id, model)

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._version.release()
        self._taken.release()
