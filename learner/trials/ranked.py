"""Sorted keys of S trials with lookup by rank and batched exchange, all trials in the same numpy calls.

``onrig.runtime.replay.memory.order.ranked`` serves a rig, where changes come one at a time and latency matters; this
serves experiments, where hundreds of keys change together and only throughput matters.  A sorted array stays while
changes gather in a small overlay on top of it: ranks gone from the array, and keys that came.  Each change rewrites the
overlay; now and then the overlay is merged into what lies below it: an array, or a larger overlay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Ranks = NDArray[np.int64]
Rows = NDArray[np.uint32]
SIZES: Final = ((10.0, 2 / 3), (8.0, 1 / 2))
"""How large the overlays grow, lower one first, as (factor, power) of the length of what is below.  Those balance the
costs of the three layers for half a million to fifteen million keys (measured; twice or half costs some 10 % more)."""


class Found(NamedTuple):
    """Entries by rank."""

    keys: Keys
    rows: Rows


class Order(Protocol):
    """Distinct ascending keys, each with an associated row number."""

    def __len__(self) -> int: ...

    def below(self, keys: Keys) -> Ranks:
        """Number of entries below each key, which is its rank if present."""
        ...

    def at(self, ranks: Ranks) -> Found:
        """Look up entries by rank."""
        ...

    def exchange(self, removed: Ranks, ranks: Ranks, keys: Keys, rows: Rows) -> None:
        """Remove the entries at ``removed``, then insert others, which get ``ranks``; all ascending."""
        ...


class _Array:
    """Two plain arrays, rewritten at every change."""

    def __init__(self) -> None:
        self._keys: Keys = np.zeros(0, np.uint64)
        self._rows: Rows = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        return len(self._keys)

    def below(self, keys: Keys) -> Ranks:
        return self._keys.searchsorted(keys)

    def at(self, ranks: Ranks) -> Found:
        return Found(self._keys.take(ranks), self._rows.take(ranks))

    def exchange(self, removed: Ranks, ranks: Ranks, keys: Keys, rows: Rows) -> None:
        stays = np.ones(len(self._keys), np.bool_)
        stays[removed] = False
        old = np.ones(len(stays) - len(removed) + len(keys), np.bool_)
        old[ranks] = False
        merged = np.empty(len(old), np.uint64)
        merged[old] = self._keys[stays]
        merged[ranks] = keys
        self._keys = merged
        merged_rows = np.empty(len(old), np.uint32)
        merged_rows[old] = self._rows[stays]
        merged_rows[ranks] = rows
        self._rows = merged_rows


class _Overlay:
    """Changes to an order below, merged into it above ``factor`` * its length ** ``power`` entries."""

    def __init__(self, lower: Order, factor: float, power: float) -> None:
        self._lower: Final = lower
        self._factor: Final = factor
        self._power: Final = power
        self._clear()

    def _clear(self) -> None:
        self._gone: Ranks = np.zeros(0, np.int64)
        self._gone_before: Ranks = self._gone
        self._keys: Keys = np.zeros(0, np.uint64)
        self._rows: Rows = np.zeros(0, np.uint32)
        self._ranks: Ranks = self._gone

    def __len__(self) -> int:
        return len(self._lower) - len(self._gone) + len(self._keys)

    def below(self, keys: Keys) -> Ranks:
        below = self._lower.below(keys)
        below -= self._gone.searchsorted(below)
        below += self._keys.searchsorted(keys)
        return below

    def _locate(self, ranks: Ranks) -> tuple[NDArray[np.bool_], Ranks, Ranks]:
        """Which ranks are in the overlay, their positions there, and the ranks of the others below."""
        place = self._ranks.searchsorted(ranks)
        here = np.zeros(len(ranks), np.bool_)
        if len(self._ranks):
            here = self._ranks.take(place, mode="clip") == ranks
        there = ~here
        left = ranks[there] - place[there]
        # Of those gone, the k-th has (its rank - k) before it that stay.
        left += self._gone_before.searchsorted(left, "right")
        return here, place[here], left

    def at(self, ranks: Ranks) -> Found:
        here, own, left = self._locate(ranks)
        found = self._lower.at(left)
        if not len(own):
            return found
        keys, rows = np.empty(len(ranks), np.uint64), np.empty(len(ranks), np.uint32)
        there = ~here
        keys[here], rows[here] = self._keys[own], self._rows[own]
        keys[there], rows[there] = found
        return Found(keys, rows)

    def exchange(self, removed: Ranks, ranks: Ranks, keys: Keys, rows: Rows) -> None:
        _, own, left = self._locate(removed)
        self._gone = _merged(self._gone, left, self._gone.searchsorted(left))
        self._gone_before = self._gone - np.arange(len(self._gone))
        n = len(self._keys)
        # What lies above an entry that is taken out moves down by one.
        steps = np.bincount(self._ranks.searchsorted(removed, "right"), minlength=n + 1)[:n]
        old_ranks = self._ranks - steps.cumsum()
        stays = np.ones(n, np.bool_)
        stays[own] = False
        kept = stays.nonzero()[0]
        old_keys = self._keys.take(kept)
        at = old_keys.searchsorted(keys)
        at += np.arange(len(keys))
        old = np.ones(len(kept) + len(keys), np.bool_)
        old[at] = False
        places = old.nonzero()[0]
        merged = np.empty(len(old), np.uint64)
        merged[places], merged[at] = old_keys, keys
        self._keys = merged
        merged_rows = np.empty(len(old), np.uint32)
        merged_rows[places], merged_rows[at] = self._rows.take(kept), rows
        self._rows = merged_rows
        merged_ranks = np.empty(len(old), np.int64)
        # And up by as many as came in below it.
        merged_ranks[places] = old_ranks.take(kept) + (places - np.arange(len(kept)))
        merged_ranks[at] = ranks
        self._ranks = merged_ranks
        if len(self._gone) + len(self._keys) > self._factor * len(self._lower) ** self._power:
            self._lower.exchange(self._gone, self._ranks, self._keys, self._rows)
            self._clear()


def _merged(old: Ranks, new: Ranks, at: Ranks) -> Ranks:
    """Merge ascending numbers, those of ``new`` before the entries ``at`` of ``old``."""
    at = at + np.arange(len(new))
    merged = np.empty(len(old) + len(new), np.int64)
    stays = np.ones(len(merged), np.bool_)
    stays[at] = False
    merged[stays] = old
    merged[at] = new
    return merged


class RankedKeys:
    """All keys, in an array below two overlays, the upper one small."""

    def __init__(self, sizes: Sequence[tuple[float, float]] = SIZES) -> None:
        order: Order = _Array()
        for factor, power in sizes:
            order = _Overlay(order, factor, power)
        self._order: Final = order

    def __len__(self) -> int:
        return len(self._order)

    def ranks(self, keys: Keys) -> Ranks:
        """Ranks of present keys."""
        return self._order.below(keys)

    def at(self, ranks: Ranks) -> Found:
        """Return the entries at ``ranks`` (k,), each in 0 ... len - 1."""
        return self._order.at(ranks)

    def exchange(self, removed: Ranks, keys: Keys, rows: Rows) -> None:
        """Remove the entries at ``removed`` (ascending) and insert ``keys`` (k,), then absent, in any order."""
        order = keys.argsort()
        keys, rows = keys[order], rows[order]
        ranks = self._order.below(keys)
        ranks -= removed.searchsorted(ranks)
        ranks += np.arange(len(ranks))
        self._order.exchange(removed, ranks, keys, rows)
