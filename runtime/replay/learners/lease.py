"""Lease to push: many learners may mirror a rig's memory, but only one sends policies and TD errors.

The first learner that requests the lease receives it.  It is released when the holder leaves, or when another learner
requests it after the holder's connection has closed or been silent for MAX_SILENCE_S.  A holder that reconnects before
another learner requests the lease keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_SILENCE_S: Final = 30.0
"""Silence after which another learner may take the lease.  A holder that is alive sends TD errors while it is busy, and
polls while it is idle."""


@dataclass
class _Holder:
    session: bytes
    key: str
    peer: bytes
    since_s: float
    last_message_s: float


class Lease:
    """Right to push, held by at most one session."""

    def __init__(self, is_gone: Callable[[bytes], bool]) -> None:
        self._is_gone = is_gone
        self._holder: _Holder | None = None

    def request(self, session: bytes, key: str, peer: bytes, now_s: float) -> str | None:
        """Acquire or renew the lease; return None on success, otherwise a description of its holder."""
        holder = self._holder
        if holder is not None and (holder.session, holder.key) != (session, key):
            if not (self._is_gone(holder.peer) or now_s - holder.last_message_s > MAX_SILENCE_S):
                return (
                    f"another learner pushes ({holder.key}, for {now_s - holder.since_s:.0f} s, last message "
                    f"{now_s - holder.last_message_s:.0f} s ago)"
                )
            holder = None
        if holder is None:
            self._holder = _Holder(session, key, peer, now_s, now_s)
        else:
            holder.peer, holder.last_message_s = peer, now_s
        return None

    def held_by(self, peer: bytes) -> bool:
        """Whether this peer may push."""
        return self._holder is not None and self._holder.peer == peer

    def belongs_to(self, session: bytes, key: str) -> bool:
        """Whether this session holds the lease, on any connection."""
        return self._holder is not None and (self._holder.session, self._holder.key) == (session, key)

    def on_message(self, peer: bytes, now_s: float) -> None:
        """Record a message from a peer."""
        if self._holder is not None and self._holder.peer == peer:
            self._holder.last_message_s = now_s

    def release(self, peer: bytes) -> None:
        """Release the lease if this departing peer holds it."""
        if self.held_by(peer):
            self._holder = None

    @property
    def holder(self) -> str:
        """Key of the holder; empty if there is none."""
        return "" if self._holder is None else self._holder.key
