"""Newest value in shared memory: one writer, any number of readers, wait-free.

Two buffers alternate, so that a buffer is rarely read while it is being written; a CRC detects those cases.  It covers
version and label as well, because on weakly ordered memory the version may become visible before the content.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from onrig.runtime.shm.segment import Segment

_META: Final = struct.Struct("<QII")  # label, length, CRC-32
_HEAD_BYTES: Final = 64
_MAX_ATTEMPTS: Final = 8
"""Number of attempts per read; a preempted reader may find one buffer overwritten, and then the other."""


def latest_bytes(max_bytes: int) -> int:
    """Return the number of bytes of shared memory required for values of up to ``max_bytes``."""
    return _HEAD_BYTES + 2 * _stride(max_bytes)


def _stride(max_bytes: int) -> int:
    return _META.size + (max_bytes + 7) // 8 * 8


def _crc(version: int, label: int, content: bytes) -> int:
    seed = zlib.crc32(b"%d %d" % (version, label))
    return zlib.crc32(content, seed)


class Value(NamedTuple):
    """Published value, with its version and label."""

    version: int
    """Number of values published so far, including this one."""
    label: int
    content: bytes


class Latest:
    """Newest value, stored in ``buffer``, which has ``latest_bytes(max_bytes)`` bytes and is aligned to 8."""

    def __init__(self, buffer: memoryview, max_bytes: int) -> None:
        self._buffer, self._max_bytes = buffer, max_bytes
        self._version = buffer[:8].cast("Q")
        self._stride = _stride(max_bytes)

    @property
    def version(self) -> int:
        """Number of values written; cheap enough to read in every tick."""
        return self._version[0]

    @property
    def newest(self) -> tuple[int, int]:
        """Label and length of the newest value, unchecked, to estimate the cost of a copy; zeros without one."""
        version = self._version[0]
        label, length = _META.unpack_from(self._buffer, self._offset(version))[:2] if version else (0, 0)
        return label, length

    def put(self, content: bytes, label: int = 0) -> None:
        """Replace the value (writer only); raises ValueError if it is larger than ``max_bytes``."""
        if len(content) > self._max_bytes:
            raise ValueError(f"{len(content)} bytes; there is room for {self._max_bytes}")
        version = self._version[0] + 1
        start = self._offset(version)
        data = start + _META.size
        self._buffer[data : data + len(content)] = content
        _META.pack_into(self._buffer, start, label, len(content), _crc(version, label, content))
        self._version[0] = version

    def read(self) -> Value | None:
        """Try once to copy the newest value; return None if there is none yet or it was overwritten during the copy."""
        version = self._version[0]
        value = self._read_version(version)
        return value if self._version[0] == version else None

    def take(self) -> bytes | None:
        """Copy the content of the newest valid value, in a few attempts; return None before the first."""
        for _ in range(_MAX_ATTEMPTS):
            version = self._version[0]
            value = self._read_version(version) or self._read_version(version - 1)
            if value is not None:
                return value.content
            if not version:
                return None
        return None

    def _offset(self, version: int) -> int:
        return _HEAD_BYTES + (version & 1) * self._stride

    def _read_version(self, version: int) -> Value | None:
        """Return the value of this version; None if it has been overwritten."""
        if version <= 0:
            return None
        start = self._offset(version)
        label, length, crc = _META.unpack_from(self._buffer, start)
        if length > self._max_bytes:
            return None
        data = start + _META.size
        content = bytes(self._buffer[data : data + length])
        return Value(version, label, content) if _crc(version, label, content) == crc else None

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._version.release()
        self._buffer.release()


SLOT_SCHEMA: Final = "policy-slot-5"
_NATIVE: Final = 1 << 32
"""Bit of a label above the policy's id."""
MAX_POLICY_BYTES: Final = 4 * 1024 * 1024
SLOT_BYTES: Final = latest_bytes(MAX_POLICY_BYTES)


class SlotPolicy(NamedTuple):
    """Policy in the slot."""

    version: int
    policy_id: int
    model: bytes
    is_native: bool = False
    """Whether the C library evaluates the policy, as decided at admission."""


class PolicySlot:
    """Slot for the newest admitted policy, written by the replay process, read by the loop between ticks.

    The loop stores the id of the policy it has taken, so that the replay process knows which policies can no longer
    act.
    """

    def __init__(self, segment: Segment) -> None:
        self._latest = Latest(segment.body[:], MAX_POLICY_BYTES)
        self._taken_id = segment.body[8:16].cast("Q")

    @property
    def version(self) -> int:
        """Number of policies written so far; cheap enough to read in every tick."""
        return self._latest.version

    @property
    def taken_id(self) -> int:
        """Id of the policy last taken by the loop; 0 before the first. Policies between that one and the newest never
        act."""
        return self._taken_id[0]

    @property
    def newest_bytes(self) -> int:
        """Length in bytes of the newest policy (0 without one), to estimate the cost of a copy."""
        return self._latest.newest[1]

    def put(self, policy_id: int, model: bytes, *, is_native: bool = False) -> None:
        """Publish a policy (replay process only); raises ValueError if it is larger than the slot."""
        self._latest.put(model, policy_id | (_NATIVE if is_native else 0))

    def take(self) -> SlotPolicy | None:
        """Copy the newest policy (loop only); return None if the slot is empty or was overwritten during the copy."""
        if self._latest.version:
            # The id is stored before the copy, so that a writer that replaces the policy during the copy either reads
            # the id or is detected by ``peek``.
            self._taken_id[0] = self._latest.newest[0] & ~_NATIVE
        return self.peek()

    def peek(self) -> SlotPolicy | None:
        """Copy the newest policy without marking it as taken; return None as ``take`` does."""
        value = self._latest.read()
        if value is None:
            return None
        return SlotPolicy(value.version, value.label & ~_NATIVE, value.content, bool(value.label & _NATIVE))

    def close(self) -> None:
        """Release the views, so that the segment can be unmapped."""
        self._latest.close()
        self._taken_id.release()


_LOOP_STATE_BYTES: Final = 16_352
LOOP_STATE_BYTES: Final = latest_bytes(_LOOP_STATE_BYTES)


def loop_state_in(board: Segment) -> Latest:
    """Return the loop's state between two episodes, stored after the words of the board.

    Written by the loop and read by the replay process, which itself writes it once, before the loop of a resumed run
    starts.
    """
    return Latest(board.body[-LOOP_STATE_BYTES:], _LOOP_STATE_BYTES)
