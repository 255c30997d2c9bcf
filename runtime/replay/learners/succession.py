"""Succession of pushing learners: unrestricted in real time; in lockstep, only if the run remains reproducible."""

from __future__ import annotations

from typing import Protocol

from onrig.runtime.run_config import RunConfig


class Succession(Protocol):
    """Rule that decides whether a new learner may push in place of the previous one."""

    lockstep: bool
    is_replacement_requested: bool
    """Whether a learner that cannot continue from the current state requests to push."""

    def is_current(self, session: bytes) -> bool:
        """Whether this session pushed last."""

    def admits(self, session: bytes, updates: int | None, *, is_ending: bool) -> bool:
        """Admit a new session and return True, or return False if the run must first return to its checkpoint.

        ``updates``: number of updates in the run so far, from which the session must continue (None: it need not).
        """

    def note_change(self) -> None:
        """Record that the pushing learner has changed something."""

    def note_checkpoint(self) -> None:
        """Record that everything up to now is in a checkpoint."""

    def admit_replacement(self) -> None:
        """Admit the session that requested to push, although the run cannot return to its checkpoint."""

    def deviation(self, updates: int) -> str | None:
        """Return why a learner that reports ``updates`` makes the run irreproducible; None if it does not."""

    @property
    def n_deviations(self) -> int | None:
        """Number of deviations from a reproducible run; None in real time, which is not reproducible."""


class AnyLearner:
    """Rule for real time: each learner continues from the current state."""

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
    """Rule for lockstep: a learner continues from a checkpoint and from the run's number of updates, so that a run with
    a successor is bit-for-bit identical to one without.
    """

    lockstep: bool = True

    def __init__(self) -> None:
        self._pusher = self._candidate = b""
        self._has_changed = False
        """Whether the pushing learner has changed anything since the last checkpoint."""
        self._expected_updates: int | None = None
        """Number of updates that a learner must report first when it continues the run; None once it has reported."""
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
