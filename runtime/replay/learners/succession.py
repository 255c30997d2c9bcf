"""Succession of pushing learners: any learner in real time; in lockstep only if the run remains reproducible."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.run_config import RunConfig


class Succession(Protocol):
    """Decides whether a new learner may push after another one."""

    lockstep: bool
    is_replacement_requested: bool
    """Whether a learner that cannot continue from the current state requests to push."""

    def is_current(self, session: bytes) -> bool:
        """Whether this session pushed last."""

    def admits(self, session: bytes, updates: int | None, *, is_ending: bool) -> bool:
        """Admit another session, and return True, unless the run must first return to its checkpoint.

        ``updates``: updates counted by the run, from which the session must continue (None: from its own start).
        """

    def note_change(self) -> None:
        """Record that the pushing learner has changed something."""

    def note_checkpoint(self) -> None:
        """Record that everything up to now is in a checkpoint."""

    def admit_replacement(self) -> None:
        """Admit the session that requested to push, although the run cannot return to its checkpoint."""

    def deviation(self, updates: int) -> str | None:
        """Return why the run is not reproducible after a learner has reported ``updates``; None if it is."""

    @property
    def n_deviations(self) -> int | None:
        """Number of deviations from a reproducible run; None in real time, which is not reproducible."""


class AnyLearner:
    """Real time: each learner continues from the current state."""

    lockstep: bool = False
    is_replacement_requested: bool = False
    n_deviations: int | None = None

    def __init__(self) -> None:
        self._pusher = b""

    def is_current(self, session: bytes) -> bool:
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, is_ending: bool) -> bool:
        """Return True."""
        self._pusher = session
        return True

    def note_change(self) -> None:
        """Do nothing."""

    def note_checkpoint(self) -> None:
        """Do nothing."""

    def admit_replacement(self) -> None:
        """Do nothing, because no replacement is ever requested."""

    def deviation(self, updates: int) -> str | None:
        """Return None."""
        return None


class FromCheckpoint:
    """Lockstep: a learner continues from a checkpoint, with the updates counted by the run, so that a run with a
    successor is identical bit for bit to one without.
    """

    lockstep: bool = True

    def __init__(self) -> None:
        self._pusher = self._candidate = b""
        self._has_changed = False
        """Whether the pushing learner has changed anything since the last checkpoint."""
        self._expected_updates: int | None = None
        """Updates that a learner must report first when it continues the run; None after its report."""
        self.is_replacement_requested = False
        self.n_deviations = 0

    def is_current(self, session: bytes) -> bool:
        return session == self._pusher

    def admits(self, session: bytes, updates: int | None, *, is_ending: bool) -> bool:
        """Admit the session only if nothing has changed since the checkpoint; otherwise request a replacement."""
        if self._pusher and self._has_changed and not is_ending:
            self.is_replacement_requested, self._candidate = True, session
            return False
        self._expected_updates = updates
        self._pusher = session
        return True

    def note_change(self) -> None:
        self._has_changed = True

    def note_checkpoint(self) -> None:
        self._has_changed = False

    def admit_replacement(self) -> None:
        self._pusher, self.is_replacement_requested = self._candidate, False
        self._has_changed = False
        self.n_deviations += 1

    def deviation(self, updates: int) -> str | None:
        expected_updates, self._expected_updates = self._expected_updates, None
        if expected_updates in (None, updates):
            return None
        self.n_deviations += 1
        return f"the learner continues after {updates} updates, but the run was at {expected_updates}"


def succession(config: RunConfig) -> Succession:
    """Return the succession rule of a run."""
    return FromCheckpoint() if config.lockstep else AnyLearner()
