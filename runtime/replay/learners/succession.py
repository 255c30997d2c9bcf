"""Succession of pushing learners: anyone in real time; in lockstep only if the run can be reproduced."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.run_config import RunConfig


class Succession(Protocol):
    """Sessions of the learners that push, one after another."""

    lockstep: bool
    replaced: bool
    """Whether a learner that cannot continue from here asks to push."""

    def is_current(self, session: bytes) -> bool:
        """Whether this session pushed last."""

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """Let another session push, unless the run must first return to its checkpoint.

        ``updates``: updates counted by the run, from which the session must continue (None: from its own start).
        """

    def note_change(self) -> None:
        """Record that the pushing learner has changed something."""

    def settle(self) -> None:
        """Record that everything up to now is in a checkpoint."""

    def admit_replacement(self) -> None:
        """Let the session that asked continue from here, although the run cannot return to its checkpoint."""

    def departure(self, updates: int) -> str | None:
        """Return why the run is not reproducible, if the pushing learner reports ``updates``; None if it is."""

    @property
    def departures(self) -> int | None:
        """Number of deviations from the undisturbed course of the run; None in real time, which has no fixed course."""


class AnyLearner:
    """Real time: each learner continues from the current state."""

    lockstep: bool = False
    replaced: bool = False
    departures: int | None = None

    def __init__(self) -> None:
        self._pusher = b""

    def is_current(self, session: bytes) -> bool:
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """Return True."""
        self._pusher = session
        return True

    def note_change(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""

    def admit_replacement(self) -> None:
        """Do nothing: never requested."""

    def departure(self, updates: int) -> str | None:
        """Return None."""
        return None


class FromCheckpoint:
    """Lockstep: a learner continues from a checkpoint, with the updates counted by the run, so that a run with a
    successor is identical bit for bit to one without.
    """

    lockstep: bool = True

    def __init__(self) -> None:
        self._pusher = self._candidate = b""
        self._changed = False
        """Whether the pushing learner has changed anything since the last checkpoint."""
        self._expected_updates: int | None = None
        """Updates that a learner must report when it continues the run; None once it has reported them."""
        self.replaced = False
        self.departures = 0

    def is_current(self, session: bytes) -> bool:
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """Admit the session only if nothing has changed since the checkpoint; otherwise set ``replaced``."""
        if self._pusher and self._changed and not ending:
            self.replaced, self._candidate = True, session
            return False
        self._expected_updates = updates
        self._pusher = session
        return True

    def note_change(self) -> None:
        self._changed = True

    def settle(self) -> None:
        self._changed = False

    def admit_replacement(self) -> None:
        self._pusher, self.replaced = self._candidate, False
        self._changed = False
        self.departures += 1

    def departure(self, updates: int) -> str | None:
        expected, self._expected_updates = self._expected_updates, None
        if expected in (None, updates):
            return None
        self.departures += 1
        return f"the learner continues after {updates} updates, but the run was at {expected}"


def succession(config: RunConfig) -> Succession:
    """Return a run's rule of succession, before the first learner."""
    return FromCheckpoint() if config.lockstep else AnyLearner()
