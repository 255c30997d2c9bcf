"""Seats for newcomers: which TCP connections ZeroMQ serves, and which ones leave when there are too many.  Pure.

New connections are always accepted.  One that has greeted waits in the line of its address for a *seat*, on which
ZeroMQ serves its handshake until the rig has received its first request.  A seat is kept for SEAT_S whoever else comes;
after that it goes to the next in line.  So connections that greet, fall silent and return when they are ended cannot
displace a newcomer: the k-th in the line of an address is seated within ``ceil(k / 18)`` times SEAT_S, where 18 is the
three quarters of the SEATS_PER_ADDRESS that go to the longest waiting.  The last quarter goes to the newest, so that a
long line of connections that never get anywhere does not delay it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from onrig.runtime.link.guests import Guest, Stage

SEATS: Final = 64
SEATS_PER_ADDRESS: Final = 24
SEAT_S: Final = 2.0
"""Time for which nobody takes a seat away: enough for a handshake over a line with a round trip of 0.25 s."""
AHEAD: Final = 4
"""One seat in so many may go to the newest in line instead of the longest waiting."""
WAITING: Final = 128
SILENT: Final = 64
SILENT_PER_ADDRESS: Final = 24
INSIDE: Final = 64
INSIDE_PER_ADDRESS: Final = 32


class _Limit(NamedTuple):
    stage: Stage
    total: int
    per_address: int
    since: Callable[[Guest], float]
    """The lowest leaves first."""


_LIMITS: Final = (
    _Limit(Stage.SILENT, SILENT, SILENT_PER_ADDRESS, lambda g: g.arrived_s),
    _Limit(Stage.WAITING, WAITING, WAITING, lambda g: g.arrived_s),
    _Limit(Stage.INSIDE, INSIDE, INSIDE_PER_ADDRESS, lambda g: g.heard_s),
)


def surplus(guests: Iterable[Guest]) -> list[Guest]:
    """Connections beyond the limits: those of the address with most of a stage; silent longest, or the oldest."""
    by_stage: dict[Stage, dict[str, list[Guest]]] = defaultdict(lambda: defaultdict(list))
    for guest in guests:
        by_stage[guest.stage][guest.address].append(guest)
    leaving: list[Guest] = []
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
    """A seat given."""

    to: Guest
    ahead: bool
    """Whether ahead of others that waited longer."""
    gives_way: Guest | None = None
    """Holder of the seat so far."""


def next_change(guests: Collection[Guest], now_s: float) -> Change | None:
    """The next seat to give, if any; to be repeated until there is none.

    The address with fewest seats comes first.  Without a free seat the one held longest changes hands, once SEAT_S are
    over: of the same address where that has its share, else of the address with most seats.
    """
    seated = [g for g in guests if g.stage is Stage.SEATED]
    lines: dict[str, list[Guest]] = defaultdict(list)
    for guest in sorted((g for g in guests if g.stage is Stage.WAITING), key=lambda g: g.arrived_s):
        lines[guest.address].append(guest)
    taken = Counter(g.address for g in seated)
    for address, line in sorted(lines.items(), key=lambda item: (taken[item[0]], item[1][0].arrived_s)):
        gives_way: Guest | None = None
        full = taken[address] >= SEATS_PER_ADDRESS
        if full or len(seated) >= SEATS:
            crowd = address if full else taken.most_common(1)[0][0]
            gives_way = min((g for g in seated if g.address == crowd), key=_seated_s)
            if now_s - _seated_s(gives_way) < SEAT_S:
                continue
        ahead = sum(g.ahead for g in seated if g.address == address and g is not gives_way)
        jumps = len(line) > 1 and AHEAD * (ahead + 1) <= taken[address]
        return Change(line[-1 if jumps else 0], jumps, gives_way)
    return None


def _seated_s(guest: Guest) -> float:
    return 0.0 if guest.seated_s is None else guest.seated_s
