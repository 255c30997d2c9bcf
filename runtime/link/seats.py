"""Seats for newcomers: which TCP connections ZeroMQ serves, and which are closed under overload. Pure.

New connections are always accepted.  After its greeting a connection waits in the queue of its address for a *seat*, on
which ZeroMQ serves its handshake until the rig has received its first request.  A seat is guaranteed for
MIN_SEAT_TENURE_S; after that it passes to the next in the queue. Connections that greet, fall silent and reconnect
therefore cannot displace a newcomer: the k-th in the queue of an address gets a seat within ``ceil(k / 18)`` times
MIN_SEAT_TENURE_S, where 18 is three quarters of MAX_SEATS_PER_ADDRESS, reserved for the longest waiting.  The last
quarter is for the newest, so that a long queue of stalled connections does not delay it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from onrig.runtime.link.pending import PendingConnection, Stage

MAX_SEATS: Final = 64
MAX_SEATS_PER_ADDRESS: Final = 24
MIN_SEAT_TENURE_S: Final = 2.0
"""Minimum tenure of a seat: enough for a handshake with a round trip of 0.25 s."""
SEATS_PER_QUEUE_JUMP: Final = 4
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
    eviction_key: Callable[[PendingConnection], float]
    """Order of eviction, lowest first."""


_LIMITS: Final = (
    _Limit(Stage.SILENT, SILENT, SILENT_PER_ADDRESS, lambda c: c.arrived_s),
    _Limit(Stage.WAITING, WAITING, WAITING, lambda c: c.arrived_s),
    _Limit(Stage.INSIDE, INSIDE, INSIDE_PER_ADDRESS, lambda c: c.last_request_s),
)


def surplus_connections(connections: Iterable[PendingConnection]) -> list[PendingConnection]:
    """List the connections beyond the limits: for the address with the most in a stage, the longest silent or the
    oldest."""
    by_stage: dict[Stage, dict[str, list[PendingConnection]]] = defaultdict(lambda: defaultdict(list))
    for connection in connections:
        by_stage[connection.stage][connection.address].append(connection)
    evicted: list[PendingConnection] = []
    for limit in _LIMITS:
        crowds = by_stage[limit.stage].values()
        total = sum(map(len, crowds))
        while total:
            crowded_address = max(crowds, key=len)
            if len(crowded_address) <= limit.per_address and total <= limit.total:
                break
            first = min(crowded_address, key=limit.eviction_key)
            crowded_address.remove(first)
            evicted.append(first)
            total -= 1
    return evicted


class SeatAssignment(NamedTuple):
    """Assignment of a seat."""

    connection: PendingConnection
    jumped_queue: bool
    """Whether others have waited longer."""
    previous: PendingConnection | None = None
    """Previous holder of the seat."""


def next_assignment(connections: Collection[PendingConnection], now_s: float) -> SeatAssignment | None:
    """Return the next assignment, if any; call until it returns None.

    The address with the fewest seats comes first. Without a free seat, the one held longest is reassigned after
    MIN_SEAT_TENURE_S: a seat of the same address if that has its full share, otherwise of the address with the most
    seats.
    """
    seated = [c for c in connections if c.stage is Stage.SEATED]
    queues: dict[str, list[PendingConnection]] = defaultdict(list)
    for connection in sorted((c for c in connections if c.stage is Stage.WAITING), key=lambda c: c.arrived_s):
        queues[connection.address].append(connection)
    n_seats = Counter(c.address for c in seated)
    for address, queue in sorted(queues.items(), key=lambda item: (n_seats[item[0]], item[1][0].arrived_s)):
        displaced: PendingConnection | None = None
        is_full = n_seats[address] >= MAX_SEATS_PER_ADDRESS
        if is_full or len(seated) >= MAX_SEATS:
            crowded_address = address if is_full else n_seats.most_common(1)[0][0]
            displaced = min((c for c in seated if c.address == crowded_address), key=_seated_s)
            if now_s - _seated_s(displaced) < MIN_SEAT_TENURE_S:
                continue
        n_jumped = sum(c.jumped_queue for c in seated if c.address == address and c is not displaced)
        jumps_queue = len(queue) > 1 and SEATS_PER_QUEUE_JUMP * (n_jumped + 1) <= n_seats[address]
        return SeatAssignment(queue[-1 if jumps_queue else 0], jumps_queue, displaced)
    return None


def _seated_s(connection: PendingConnection) -> float:
    return 0.0 if connection.seated_s is None else connection.seated_s
