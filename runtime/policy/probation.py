"""Probation of a new policy: limits on its behaviour in its first ticks.

Pure: a tenure is a function of the intervening rule and the policy's duration in each tick, both of which are in the
step record.  In lockstep the duration is ignored, so that the run remains reproducible bit for bit.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

import msgspec

from onrig.runtime.policy.settings import Probation
from onrig.runtime.record import STAGES, Rule

_FINITE = Rule.FINITE
POLICY_STAGE = STAGES.index("policy")
"""Index of the policy's duration in ``stage_ns``."""


class Reason(enum.StrEnum):
    """Reason why a policy failed its probation."""

    FINITE = "finite"
    """Its output was non-finite, or had the wrong length."""
    SLOW = "slow"
    FALLBACK = "fallback"
    """The fallback controller acted much more than under the predecessor."""
    UNKNOWN = "unknown"
    """The record with the reason was lost."""


class Terms(NamedTuple):
    """Limits of a probation, in ticks and nanoseconds."""

    ticks: int
    slow_ns: int | None
    """Duration above which a tick is slow; None to ignore time."""
    slow_ticks: int
    excess_fallback: float

    def is_slow(self, policy_ns: int) -> bool:
        """Return whether the policy took too long in a tick."""
        return self.slow_ns is not None and policy_ns > self.slow_ns

    def describe(self, reason: Reason) -> str:
        """Describe a reason in one line."""
        match reason:
            case Reason.FINITE:
                return "its output is non-finite"
            case Reason.SLOW:
                return f"it took more than {(self.slow_ns or 0) / 1e3:.0f} us in {self.slow_ticks} consecutive ticks"
            case Reason.FALLBACK:
                more = f"over {100 * self.excess_fallback:g} % more of the {self.ticks} ticks of its probation"
                return f"the fallback acted in {more} than under its predecessor"
            case Reason.UNKNOWN:
                return "reported by the loop; the record was lost"


class ProbationConfig(Protocol):
    """Part of a run's configuration used by a probation."""

    @property
    def probation(self) -> Probation | None:
        """Section ``probation``; None disables rollback."""

    @property
    def rate_hz(self) -> float:
        """Sampling rate."""

    @property
    def lockstep(self) -> bool:
        """Whether durations are ignored."""

    @property
    def wall_period_ns(self) -> float:
        """Period on the wall clock."""


def terms_of(config: ProbationConfig) -> Terms | None:
    """Return the limits from the section ``probation``; None if it is disabled."""
    rules = config.probation
    if rules is None:
        return None
    return Terms(
        ticks=max(1, round(rules.duration_s * config.rate_hz)),
        slow_ns=None if config.lockstep else round(rules.slow_share * config.wall_period_ns),
        slow_ticks=rules.slow_ticks,
        excess_fallback=rules.excess_fallback,
    )


class Record(msgspec.Struct, frozen=True):
    """State of a tenure for a resumed run; same fields as the tenure."""

    ticks: int = 0
    fallback: int = 0
    slow: int = 0
    failed: str = ""
    predecessor_share: float | None = None


class Tenure:
    """Record of one policy since it became active; on probation for its first ``terms.ticks`` ticks.

    ``predecessor_share``: share of ticks in which the fallback acted under the predecessor; None without a predecessor,
    in which case the fallback's share is not limited.
    """

    __slots__ = ("_slow", "_terms", "failed", "fallback", "predecessor_share", "ticks")

    def __init__(self, terms: Terms | None, predecessor_share: float | None) -> None:
        self._terms = terms
        self.predecessor_share = predecessor_share
        self.ticks = self.fallback = self._slow = 0
        self.failed: Reason | None = None

    @property
    def share(self) -> float:
        """Share of its ticks in which the fallback acted; 0 before the first."""
        return self.fallback / self.ticks if self.ticks else 0.0

    @property
    def on_probation(self) -> bool:
        """Whether it may still fail."""
        return self._terms is not None and self.failed is None and self.ticks < self._terms.ticks

    @property
    def passed(self) -> bool:
        """Whether it has passed its probation."""
        return self._terms is not None and self.failed is None and self.ticks >= self._terms.ticks

    def record(self) -> Record:
        """State for a checkpoint."""
        return Record(self.ticks, self.fallback, self._slow, self.failed or "", self.predecessor_share)

    @classmethod
    def of(cls, terms: Terms | None, record: Record) -> Tenure:
        """Restore a tenure."""
        tenure = cls(terms, record.predecessor_share)
        tenure.ticks, tenure.fallback, tenure._slow = record.ticks, record.fallback, record.slow
        tenure.failed = Reason(record.failed) if record.failed else None
        return tenure

    def add_tick(self, rule: Rule, policy_ns: int) -> Reason | None:
        """Add one tick of the policy; return the reason if it fails the probation."""
        terms = self._terms
        self.ticks += 1
        self.fallback += rule.falls_back
        if terms is None or self.failed is not None or self.ticks > terms.ticks:
            return None
        self.failed = self._verdict(rule, policy_ns)
        return self.failed

    def _verdict(self, rule: Rule, policy_ns: int) -> Reason | None:
        terms = self._terms
        assert terms is not None
        if rule is _FINITE:
            return Reason.FINITE
        self._slow = self._slow + 1 if terms.is_slow(policy_ns) else 0
        if self._slow >= terms.slow_ticks:
            return Reason.SLOW
        if self.predecessor_share is not None and rule.falls_back:
            allowed = self.predecessor_share + terms.excess_fallback
            if self.fallback > allowed * terms.ticks:
                return Reason.FALLBACK
        return None
