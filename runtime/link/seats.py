"""Seats for newcomers: which TCP connections ZeroMQ serves, and which are closed under overload. Pure functions.

New connections are always accepted.  After its greeting a connection waits in the queue of its address for a *seat*, on
which ZeroMQ serves its handshake until the rig has received its first request.  A seat is guaranteed for
MIN_SEAT_TENURE_S; after that it passes to the next connection in the queue. Connections that greet, fall silent and
reconnect therefore cannot displace a newcomer: the k-th connection in an address's queue gets a seat within
``ceil(k/18)`` times MIN_SEAT_TENURE_S, where 18 is three quarters of MAX_SEATS_PER_ADDRESS, reserved for the
connections that have waited longest.  The last quarter is reserved for the newest connection, so that a long queue of
stalled connections does not delay it.
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
"""One in this many seats may be given to the newest connection in the queue instead of the longest waiting one."""
MAX_WAITING: Final = 128
MAX_SILENT: Final = 64
MAX_SILENT_CONNECTIONS_PER_ADDRESS: Final = 24
MAX_INSIDE: Final = 64
MAX_INSIDE_PER_ADDRESS: Final = 32


class _Limit(NamedTuple):
    stage: Stage
    total: int
    per_address: int
    eviction_key: Callable[[PendingConnection], float]
    """Order of eviction, lowest first."""


_LIMITS: Final = (
    _Limit(Stage.SILENT, MAX_SILENT, MAX_SILENT_CONNECTIONS_PER_ADDRESS, lambda c: c.arrived_s),
    _Limit(Stage.WAITING, MAX_WAITING, MAX_WAITING, lambda c: c.arrived_s),
    _Limit(Stage.INSIDE, MAX_INSIDE, MAX_INSIDE_PER_ADDRESS, lambda c: c.last_request_s),
)


def surplus_connections(connections: Iterable[PendingConnection]) -> list[PendingConnection]:
    """List the connections to end because a stage exceeds its limits: of the address with the most connections in that
    stage, those that have been silent longest or are oldest."""
    groups_by_stage: dict[Stage, dict[str, list[PendingConnection]]] = defaultdict(lambda: defaultdict(list))
    for connection in connections:
        groups_by_stage[connection.stage][connection.address].append(connection)
    surplus: list[PendingConnection] = []
    for limit in _LIMITS:
        address_groups = groups_by_stage[limit.stage].values()
        total = sum(map(len, address_groups))
        while total:
            largest_group = max(address_groups, key=len)
            if len(largest_group) <= limit.per_address and total <= limit.total:
                break
            first = min(largest_group, key=limit.eviction_key)
            largest_group.remove(first)
            surplus.append(first)
            total -= 1
    return surplus


class SeatAssignment(NamedTuple):
    """Assignment of a seat."""

    connection: PendingConnection
    jumped_queue: bool
    """Whether other connections have waited longer."""
    previous: PendingConnection | None = None
    """Previous holder of the seat."""


def next_assignment(connections: Collection[PendingConnection], now_s: float) -> SeatAssignment | None:
    """Return the next assignment, or None if none is due; call it until it returns None.

    The address with the fewest seats comes first. If no seat is free, the seat held longest is reassigned after
    MIN_SEAT_TENURE_S: a seat of the same address if that address has its full share, otherwise a seat of the address
    with the most seats.
    """
    seated_connections = [c for c in connections if c.stage is Stage.SEATED]
    queues: dict[str, list[PendingConnection]] = defaultdict(list)
    for connection in sorted((c for c in connections if c.stage is Stage.WAITING), key=lambda c: c.arrived_s):
        queues[connection.address].append(connection)
    n_seats = Counter(c.address for c in seated_connections)
    for address, queue in sorted(queues.items(), key=lambda item: (n_seats[item[0]], item[1][0].arrived_s)):
        displaced_connection: PendingConnection | None = None
        is_full = n_seats[address] >= MAX_SEATS_PER_ADDRESS
        if is_full or len(seated_connections) >= MAX_SEATS:
            crowded_address = address if is_full else n_seats.most_common(1)[0][0]
            displaced_connection = min((c for c in seated_connections if c.address == crowded_address), key=_seated_s)
            if now_s - _seated_s(displaced_connection) < MIN_SEAT_TENURE_S:
                continue
        n_jumped = sum(
            c.jumped_queue for c in seated_connections if c.address == address and c is not displaced_connection
        )
        jumps_queue = len(queue) > 1 and SEATS_PER_QUEUE_JUMP * (n_jumped + 1) <= n_seats[address]
        return SeatAssignment(queue[-1 if jumps_queue else 0], jumps_queue, displaced_connection)
    return None


def _seated_s(connection: PendingConnection) -> float:
    return 0.0 if connection.seated_s is None else connection.seated_s
