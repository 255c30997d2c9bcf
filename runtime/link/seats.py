"""Seats for newcomers: which TCP connections ZeroMQ serves, and which are closed under overload. Pure.

New connections are always accepted.  After its greeting a connection waits in the queue of its address for a *seat*, on
which ZeroMQ serves its handshake until the rig has received its first request.  A seat is guaranteed for SEAT_S; after
that it passes to the next in the queue. Connections that greet, fall silent and reconnect therefore cannot displace a
newcomer: the k-th in the queue of an address gets a seat within ``ceil(k / 18)`` times SEAT_S, where 18 is three
quarters of SEATS_PER_ADDRESS, reserved for the longest waiting.  The last quarter is for the newest, so that a long
queue of stalled connections does not delay it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from onrig.runtime.link.pending import PendingConnection, Stage

SEATS: Final = 64
SEATS_PER_ADDRESS: Final = 24
SEAT_S: Final = 2.0
"""Minimum tenure of a seat: enough for a handshake with a round trip of 0.25 s."""
AHEAD: Final = 4
"""One of this many seats may be given to the newest in the queue instead of the longest waiting."""
WAITING: Final = 128
SILENT: Final = 64
SILENT_PER_ADDRESS: Final = 24
INSIDE: Final = 64
INSIDE_PER_ADDRESS: Final = 32


class _Limit(NamedTuple):
    stage: Stage
    total: int
    per_address: int
    since: Callable[[PendingConnection], float]
    """Order of eviction, lowest first."""


_LIMITS: Final = (
    _Limit(Stage.SILENT, SILENT, SILENT_PER_ADDRESS, lambda g: g.arrived_s),
    _Limit(Stage.WAITING, WAITING, WAITING, lambda g: g.arrived_s),
    _Limit(Stage.INSIDE, INSIDE, INSIDE_PER_ADDRESS, lambda g: g.last_request_s),
)


def surplus(connections: Iterable[PendingConnection]) -> list[PendingConnection]:
    """List the connections beyond the limits: for the address with the most in a stage, the longest silent or the
    oldest."""
    by_stage: dict[Stage, dict[str, list[PendingConnection]]] = defaultdict(lambda: defaultdict(list))
    for connection in connections:
        by_stage[connection.stage][connection.address].append(connection)
    leaving: list[PendingConnection] = []
    for limit in _LIMITS:
        crowds = by_stage[limit.stage].values()
        total = sum(map(len, crowds))
        while total:
            crowd = max(crowds, key=len)
            if len(crowd) <= limit.per_address and total <= limit.total:
                break
            first = min(crowd, key=limit.since)
            crowd.remove(first)
            leaving.append(first)
            total -= 1
    return leaving


class Change(NamedTuple):
    """Assignment of a seat."""

    to: PendingConnection
    ahead: bool
    """Whether others have waited longer."""
    previous: PendingConnection | None = None
    """Previous holder of the seat."""


def next_change(connections: Collection[PendingConnection], now_s: float) -> Change | None:
    """Return the next assignment, if any; call until it returns None.

    The address with the fewest seats comes first. Without a free seat, the one held longest is reassigned after SEAT_S:
    a seat of the same address if that has its full share, otherwise of the address with the most seats.
    """
    seated = [g for g in connections if g.stage is Stage.SEATED]
    lines: dict[str, list[PendingConnection]] = defaultdict(list)
    for connection in sorted((g for g in connections if g.stage is Stage.WAITING), key=lambda g: g.arrived_s):
        lines[connection.address].append(connection)
    n_seats = Counter(g.address for g in seated)
    for address, line in sorted(lines.items(), key=lambda item: (n_seats[item[0]], item[1][0].arrived_s)):
        gives_way: PendingConnection | None = None
        full = n_seats[address] >= SEATS_PER_ADDRESS
        if full or len(seated) >= SEATS:
            crowd = address if full else n_seats.most_common(1)[0][0]
            gives_way = min((g for g in seated if g.address == crowd), key=_seated_s)
            if now_s - _seated_s(gives_way) < SEAT_S:
                continue
        ahead = sum(g.ahead for g in seated if g.address == address and g is not gives_way)
        jumps = len(line) > 1 and AHEAD * (ahead + 1) <= n_seats[address]
        return Change(line[-1 if jumps else 0], jumps, gives_way)
    return None


def _seated_s(connection: PendingConnection) -> float:
    return 0.0 if connection.seated_s is None else connection.seated_s
