"""Connected learners, and the one that pushes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onrig.runtime.link.server import Ticket
from onrig.runtime.replay.learners.lease import Lease

_MAX_PEERS: Final = 64
"""Maximum number of connections remembered; beyond that, the one that has been silent longest must attach again."""
_MAX_SILENCE_S: Final = 5.0
"""Time without a message from a learner after which the run ends without waiting for it."""


@dataclass
class _Peer:
    session: bytes
    key: str
    last_message_s: float


class Peers:
    """Connections that have attached.

    ``is_gone`` reports whether a connection is closed.
    """

    def __init__(self, is_gone: Callable[[bytes], bool]) -> None:
        self._is_gone = is_gone
        self._peers: dict[bytes, _Peer] = {}
        self.lease: Final = Lease(is_gone)
        self.last_message_ns = 0
        """Monotonic time of the pushing learner's last message; 0 before the first."""

    def enter(self, ticket: Ticket, session: bytes, now_s: float) -> bool:
        """Add a connection; return whether it had attached before."""
        was_known = ticket.peer in self._peers
        if not was_known and len(self._peers) >= _MAX_PEERS:
            self._peers.pop(min(self._peers, key=lambda p: self._peers[p].last_message_s))
        self._peers[ticket.peer] = _Peer(session, ticket.key, now_s)
        return was_known

    def request_lease(self, ticket: Ticket, session: bytes, now_s: float) -> str | None:
        """Request the lease; return None if it is granted, otherwise a description of its holder."""
        holder = self.lease.request(session, ticket.key, ticket.peer, now_s)
        if holder is None:
            self.last_message_ns = round(now_s * 1e9)
        return holder

    def on_message(self, ticket: Ticket, now_s: float) -> bool:
        """Record a message; return whether its connection has attached."""
        peer = self._peers.get(ticket.peer)
        if peer is None:
            return False
        peer.last_message_s = now_s
        self.lease.on_message(ticket.peer, now_s)
        if self.lease.held_by(ticket.peer):
            self.last_message_ns = round(now_s * 1e9)
        return True

    def leave(self, peer: bytes) -> None:
        """Remove a connection, and release its lease."""
        self._peers.pop(peer, None)
        self.lease.release(peer)

    @property
    def has_recent_learner(self) -> bool:
        """Whether a recently active learner is still connected; learners disconnect when notified of the run's end."""
        now_s = time.monotonic()
        recent_peers = [name for name, peer in self._peers.items() if peer.last_message_s > now_s - _MAX_SILENCE_S]
        return any(not self._is_gone(name) for name in recent_peers)
