"""Who decides next: takes policies out of the slot, builds and warms them up in the slack, swaps them at a tick edge.

Building a session costs 0.25 ms and more, with the interpreter locked, so it may only happen in the time that a tick
leaves over: one stage for each slack, and only in a slack that is known to be long enough.
"""

from __future__ import annotations

import time
from typing import Final

from runtime.policy.session import PolicySession
from runtime.shm.slot import PolicySlot, SlotPolicy

_MARGIN: Final = 2.0
_FIRST_GUESS_NS: Final = 600_000
_COPY_NS: Final = 100_000
_NS_PER_BYTE: Final = 2
"""Copying and checksumming a model, generously: 4 MiB take about 1 ms on a small board."""


class PolicySeat:
    """The acting policy, its predecessor, and the one being prepared."""

    def __init__(self, slot: PolicySlot) -> None:
        self._slot = slot
        self._seen = 0
        self._fetched: SlotPolicy | None = None
        self._built: PolicySession | None = None
        self._ready: tuple[int, PolicySession] | None = None
        self._build_ns = _FIRST_GUESS_NS
        self.active: PolicySession | None = None
        self.policy_id = 0
        self.predecessor: tuple[int, PolicySession] | None = None
        self.swaps = 0
        self.refused = 0

    def prepare(self, slack_ns: int) -> None:
        """Do the next piece of preparation if ``slack_ns`` surely suffices for it."""
        if self._fetched is None:
            if self._slot.version == self._seen or self._ready is not None:
                return
            if slack_ns < _COPY_NS + _NS_PER_BYTE * self._slot.newest_bytes:
                return
            taken = self._slot.take()
            if taken is not None:
                self._seen = taken.version
                self._fetched = taken
            return
        if self._built is None:
            if slack_ns < _MARGIN * self._build_ns:
                return
            self._build()
            return
        if slack_ns >= self._build_ns:
            self._warm_up()

    def _build(self) -> None:
        fetched = self._fetched
        if fetched is None:
            return
        start = time.monotonic_ns()
        try:
            self._built = PolicySession(fetched.model)
        except Exception:  # admitted elsewhere, so this is a broken machine: the present policy goes on
            self._fetched = None
            self.refused += 1
        # The slowest build so far, slowly forgotten, so that one stall does not forbid swaps for good.
        self._build_ns = max(time.monotonic_ns() - start, int(0.9 * self._build_ns))

    def _warm_up(self) -> None:
        if self._built is not None and self._fetched is not None:
            try:
                self._built.warm_up(3)
                self._ready = (self._fetched.policy_id, self._built)
            except Exception:  # as in _build
                self.refused += 1
        self._fetched = self._built = None

    def swap(self) -> bool:
        """At a tick edge: let the prepared policy act from now on.  True when it changed."""
        if self._ready is None:
            return False
        if self.active is not None:
            self.predecessor = (self.policy_id, self.active)
        self.policy_id, self.active = self._ready
        self._ready = None
        self.swaps += 1
        return True

    def take_newest(self) -> None:
        """Between episodes, where time does not press: install whatever the slot holds."""
        self.swap()  # what is ready may be older than what the slot holds, and would keep it waiting
        while self._fetched is not None or self._slot.version != self._seen:
            before = (self._seen, self._fetched is not None, self._built is not None)
            self.prepare(1 << 62)
            self.swap()
            if before == (self._seen, self._fetched is not None, self._built is not None):
                return  # the slot is being rewritten this moment; the next edge sees it
