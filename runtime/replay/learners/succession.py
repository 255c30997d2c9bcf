"""Who may push after another learner: anyone in real time; in lockstep only where the run can be reproduced."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.run_config import RunConfig


class Succession(Protocol):
    """Sessions of the learners that push, one after another."""

    lockstep: bool
    replaced: bool
    """Whether a learner asks to push that cannot continue from here."""

    def is_current(self, session: bytes) -> bool:
        """Whether this session pushed last."""

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """Let another session push, unless the run has to return to its checkpoint first.

        ``updates``: updates that the run has seen, from which the session must continue (None: from its own start).
        """

    def touched(self) -> None:
        """Note that the pushing learner has changed something."""

    def settle(self) -> None:
        """Note that everything up to now is in a checkpoint."""

    def admit_replacement(self) -> None:
        """Let the session that asked continue from here, although the run cannot return to its checkpoint."""

    def departure(self, updates: int) -> str | None:
        """Reason why the run is not reproducible, when the pushing learner reports ``updates``; None if it is."""

    @property
    def departures(self) -> int | None:
        """Number of deviations from the undisturbed course of the run; None in real time, where no course is fixed."""


class AnyLearner:
    """Real time: each learner continues from the state that it finds."""

    lockstep: bool = False
    replaced: bool = False
    departures: int | None = None

    def __init__(self) -> None:
        self._pusher = b""

    def is_current(self, session: bytes) -> bool:
        """As Succession."""
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """As Succession; always true."""
        self._pusher = session
        return True

    def touched(self) -> None:
        """As Succession; unused."""

    def settle(self) -> None:
        """As Succession; unused."""

    def admit_replacement(self) -> None:
        """As Succession; never asked for."""

    def departure(self, updates: int) -> str | None:
        """As Succession; always None."""
        return None


class FromCheckpoint:
    """Lockstep: a learner continues from a checkpoint, with the updates that the run has seen, so that a run with a
    successor is bit for bit the run without one.
    """

    lockstep: bool = True

    def __init__(self) -> None:
        self._pusher = self._newcomer = b""
        self._changed = False
        """Whether the pushing learner has changed anything since the last checkpoint."""
        self._expected_updates: int | None = None
        """Updates that a learner must report when it continues the run; None once it has."""
        self.replaced = False
        self.departures = 0

    def is_current(self, session: bytes) -> bool:
        """As Succession."""
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, ending: bool) -> bool:
        """As Succession; false, and ``replaced``, where something has changed since the checkpoint."""
        if self._pusher and self._changed and not ending:
            self.replaced, self._newcomer = True, session
            return False
        self._expected_updates = updates
        self._pusher = session
        return True

    def touched(self) -> None:
        """As Succession."""
        self._changed = True

    def settle(self) -> None:
        """As Succession."""
        self._changed = False

    def admit_replacement(self) -> None:
        """As Succession."""
        self._pusher, self.replaced = self._newcomer, False
        self._changed = False
        self.departures += 1

    def departure(self, updates: int) -> str | None:
        """As Succession."""
        expected, self._expected_updates = self._expected_updates, None
        if expected in (None, updates):
            return None
        self.departures += 1
        return f"the learner continues after {updates} updates, the run was at {expected}"


def succession(config: RunConfig) -> Succession:
    """Return a run's rule of succession, before the first learner."""
    return FromCheckpoint() if config.lockstep else AnyLearner()
