"""Staleness of the learner: how long it has been silent, and how the run reacts.

The replay process stores the time of the last message from the pushing learner; if the replay process itself dies, that
time is no longer updated.  The silence is checked between episodes, except in lockstep, where the loop waits at the
barrier, and in runs that expect no learner.
"""

from __future__ import annotations

import enum
import time
from typing import Final, NamedTuple

from onrig.runtime.control.arming import Arming
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.process_settings import Staleness
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import report
from onrig.runtime.shm.board import Board, Word

_SOURCE: Final = "control"
_HINT: Final = "check that the learner, the network and the replay process are up"


class SilenceChange(enum.Enum):
    """Change in the learner's silence since the last check."""

    SAME = "same"
    FELL_SILENT = "fell silent"
    CAME_BACK = "came back"


class Silence(NamedTuple):
    """Silence of the learner, in seconds, and its consequences."""

    silent_s: float
    change: SilenceChange
    restraint: float
    """Factor on the exploration amplitude."""
    pauses: bool
    """Whether the run pauses until the learner responds again."""

    @property
    def line(self) -> str:
        """One-line description."""
        return f"the learner has been silent for {self.silent_s:.0f} s"


def expects_learner(config: RunConfig) -> bool:
    """Whether a run in real time expects a learner; lockstep waits for it at the barrier anyway."""
    return not config.lockstep and (config.local_learner or config.link.listen is not None)


class SilenceCheck:
    """Check of the learner's silence, measured from ``started_ns`` until its first message."""

    def __init__(self, rules: Staleness, started_ns: int) -> None:
        self._rules, self._started_ns = rules, started_ns
        self._was_silent = False

    def silent_s(self, now_ns: int, last_heartbeat_ns: int) -> float:
        """Return the seconds since the learner's last message, or since ``started_ns`` before the first one.

        Both arguments are monotonic times; ``last_heartbeat_ns`` is 0 before the first message.
        """
        return max(0, now_ns - max(last_heartbeat_ns, self._started_ns)) / 1e9

    def is_silent(self, now_ns: int, last_heartbeat_ns: int) -> bool:
        """Return whether the learner has been silent for too long."""
        return self.silent_s(now_ns, last_heartbeat_ns) > self._rules.after_s

    def poll(self, now_ns: int, last_heartbeat_ns: int) -> Silence:
        """Evaluate the silence before an episode."""
        is_silent, was_silent = self.is_silent(now_ns, last_heartbeat_ns), self._was_silent
        self._was_silent = is_silent
        change = (
            SilenceChange.SAME
            if is_silent is was_silent
            else SilenceChange.FELL_SILENT
            if is_silent
            else SilenceChange.CAME_BACK
        )
        return Silence(
            self.silent_s(now_ns, last_heartbeat_ns),
            change,
            self._rules.factor if is_silent and self._rules.then == "lower" else 1.0,
            is_silent and self._rules.then == "fall_back",
        )


class LearnerWatch:
    """Reaction to a silent learner between episodes, including its reports."""

    def __init__(
        self, config: RunConfig, board: Board, arming: Arming, explorer: Explorer, switch: PolicySwitch
    ) -> None:
        self._rules = config.staleness
        self._board, self._arming, self._explorer, self._switch = board, arming, explorer, switch
        self._silence_check = SilenceCheck(config.staleness, time.monotonic_ns())

    def apply(self) -> None:
        """Before an episode, continue, explore less, or pause until the learner responds; raises Stopped or Halted."""
        silence = self._poll()
        if silence.pauses:
            self._arming.pause_until(self._has_learner_responded, silence.line, _HINT)
            silence = self._poll()
        self._explorer.restrain(silence.restraint)

    def _has_learner_responded(self) -> bool:
        return not self._silence_check.is_silent(time.monotonic_ns(), self._board[Word.LEARNER_NS])

    def _poll(self) -> Silence:
        silence = self._silence_check.poll(time.monotonic_ns(), self._board[Word.LEARNER_NS])
        if silence.change is SilenceChange.FELL_SILENT:
            self._report("warning", "learner_silent", silence.line, silence)
        elif silence.change is SilenceChange.CAME_BACK:
            self._report("event", "learner_heard", "the learner responds again", silence)
        return silence

    def _report(self, kind: str, subject: str, line: str, silence: Silence) -> None:
        switch, reaction = self._switch, self._rules.then
        consequence = {
            "keep": "",
            "lower": f", exploration amplitude multiplied by {silence.restraint:g}",
            "fall_back": "",
        }[reaction]
        age = f"policy {switch.policy_id} has acted for {switch.age_ticks} ticks"
        report(
            _SOURCE,
            kind,
            f"{line}; {age}{consequence}",
            what=subject,
            then=reaction,
            silent_s=round(silence.silent_s, 1),
            policy=switch.policy_id,
            policy_age_ticks=switch.age_ticks,
        )
