"""Probation of a new policy: limits on its behaviour during its first ticks.

A tenure is a pure function of the rule that intervened and the time the policy took in each tick, both of which are in
the step record.  In lockstep this time is ignored, so that the run remains reproducible bit for bit.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

import msgspec

from onrig.runtime.policy.settings import Probation
from onrig.runtime.record import STAGES, Rule

_FINITE = Rule.FINITE
POLICY_STAGE = STAGES.index("policy")
"""Index of the time that the policy took in ``stage_ns``."""


class Reason(enum.StrEnum):
    """Reason a policy failed its probation."""

    FINITE = "finite"
    """The policy's output was non-finite, or had the wrong length."""
    SLOW = "slow"
    FALLBACK = "fallback"
    """The fallback controller acted much more often than under the predecessor."""
    UNKNOWN = "unknown"
    """The record that contained the reason was lost."""


class ProbationLimits(NamedTuple):
    """Limits of a probation, in ticks and nanoseconds."""

    ticks: int
    slow_ns: int | None
    """Time taken by the policy above which a tick is slow; None to ignore time."""
    slow_ticks: int
    excess_fallback: float

    def is_slow(self, policy_ns: int) -> bool:
        """Return whether a tick in which the policy took ``policy_ns`` is slow."""
        return self.slow_ns is not None and policy_ns > self.slow_ns

    def describe(self, reason: Reason) -> str:
        """Return a one-line description of a reason for failing."""
        match reason:
            case Reason.FINITE:
                return "its output is non-finite"
            case Reason.SLOW:
                return f"it took more than {(self.slow_ns or 0) / 1e3:.0f} us in {self.slow_ticks} consecutive ticks"
            case Reason.FALLBACK:
                fallback_excess = (
                    f"over {100 * self.excess_fallback:g} % more of the {self.ticks} ticks of its probation"
                )
                return f"the fallback acted in {fallback_excess} than under its predecessor"
            case Reason.UNKNOWN:
                return "reported by the loop; the record was lost"


class ProbationConfig(Protocol):
    """Parts of a run's configuration that the probation uses."""

    @property
    def probation(self) -> Probation | None:
        """Section ``probation``; None disables rollback."""

    @property
    def rate_hz(self) -> float:
        """Sampling rate."""

    @property
    def lockstep(self) -> bool:
        """Whether the run is in lockstep, where time is ignored."""

    @property
    def wall_period_ns(self) -> float:
        """Sampling period by the wall clock."""


def probation_limits(config: ProbationConfig) -> ProbationLimits | None:
    """Return the limits from the section ``probation``; None if it is disabled."""
    settings = config.probation
    if settings is None:
        return None
    return ProbationLimits(
        ticks=max(1, round(settings.duration_s * config.rate_hz)),
        slow_ns=None if config.lockstep else round(settings.slow_share * config.wall_period_ns),
        slow_ticks=settings.slow_ticks,
        excess_fallback=settings.excess_fallback,
    )


class TenureState(msgspec.Struct, frozen=True):
    """State of a tenure, from which a resumed run restores the tenure."""

    ticks: int = 0
    fallback: int = 0
    slow: int = 0
    failed: str = ""
    predecessor_share: float | None = None


class Tenure:
    """Counts for one policy since it became active; it is on probation for its first ``limits.ticks`` ticks.

    ``predecessor_fraction``: fraction of the predecessor's ticks in which the fallback acted; None without a
    predecessor, in which case the fallback may act in any fraction of the ticks.
    """

    __slots__ = ("_limits", "_n_slow_ticks", "failed", "fallback_ticks", "predecessor_fraction", "ticks")

    def __init__(self, limits: ProbationLimits | None, predecessor_fraction: float | None) -> None:
        self._limits = limits
        self.predecessor_fraction = predecessor_fraction
        self.ticks = self.fallback_ticks = self._n_slow_ticks = 0
        self.failed: Reason | None = None

    @property
    def fallback_fraction(self) -> float:
        """Fraction of the policy's ticks in which the fallback acted; 0 before its first tick."""
        return self.fallback_ticks / self.ticks if self.ticks else 0.0

    @property
    def is_on_probation(self) -> bool:
        """Whether the policy may still fail its probation."""
        return self._limits is not None and self.failed is None and self.ticks < self._limits.ticks

    @property
    def has_passed(self) -> bool:
        """Whether the policy has passed its probation."""
        return self._limits is not None and self.failed is None and self.ticks >= self._limits.ticks

    def state(self) -> TenureState:
        """Return the state for a checkpoint."""
        return TenureState(
            self.ticks, self.fallback_ticks, self._n_slow_ticks, self.failed or "", self.predecessor_fraction
        )

    @classmethod
    def restore(cls, limits: ProbationLimits | None, record: TenureState) -> Tenure:
        """Restore a tenure from its state."""
        tenure = cls(limits, record.predecessor_share)
        tenure.ticks, tenure.fallback_ticks, tenure._n_slow_ticks = record.ticks, record.fallback, record.slow
        tenure.failed = Reason(record.failed) if record.failed else None
        return tenure

    def add_tick(self, rule: Rule, policy_ns: int) -> Reason | None:
        """Count one tick of the policy; if it fails its probation in this tick, return the reason, otherwise None."""
        limits = self._limits
        self.ticks += 1
        self.fallback_ticks += rule.falls_back
        if limits is None or self.failed is not None or self.ticks > limits.ticks:
            return None
        self.failed = self._find_failure(rule, policy_ns)
        return self.failed

    def _find_failure(self, rule: Rule, policy_ns: int) -> Reason | None:
        limits = self._limits
        assert limits is not None
        if rule is _FINITE:
            return Reason.FINITE
        self._n_slow_ticks = self._n_slow_ticks + 1 if limits.is_slow(policy_ns) else 0
        if self._n_slow_ticks >= limits.slow_ticks:
            return Reason.SLOW
        if self.predecessor_fraction is not None and rule.falls_back:
            max_fraction = self.predecessor_fraction + limits.excess_fallback
            if self.fallback_ticks > max_fraction * limits.ticks:
                return Reason.FALLBACK
        return None
