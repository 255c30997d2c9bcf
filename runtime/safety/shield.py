"""The shield: every command passes here, and nothing reaches the wire otherwise (ARCHITECTURE §5).

Order: finite, range, rate, envelope.  Finiteness comes first because NaN passes ``min``, ``max`` and comparisons.
A policy that fails the finite check, or a state outside the envelope, hands over to the fallback controller, which
keeps acting until the state is well inside again (hysteresis) and a dwell time has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from hw.rig import Rig
from runtime.config.schema import Limits
from runtime.record import Rule
from runtime.safety.fallback import Controller, compile_fallback


class Verdict(NamedTuple):
    """The action that may go out (SI), and the rule that changed it."""

    action: tuple[float, ...]
    rule: Rule


class _Bound(NamedTuple):
    """Enter the fallback outside [low, high], leave it inside [inner_low, inner_high]."""

    observation: int
    low: float
    high: float
    inner_low: float
    inner_high: float


class Shield:
    """The rules in order, with the little state they need (is the fallback acting, and for how much longer)."""

    def __init__(self, limits: Limits, rig: Rig, period_s: float) -> None:
        self._range = tuple(limits.range.get(a.name, (a.low, a.high)) for a in rig.actuators)
        self._step = tuple(
            limits.rate_per_s[a.name] * period_s if a.name in limits.rate_per_s else a.high - a.low
            for a in rig.actuators
        )
        # A float32 policy ends a rounding error beyond its limits; what moves no count is no intervention.
        self._slack = tuple(0.5 * a.resolution for a in rig.actuators)
        names = {o.name: i for i, o in enumerate(rig.observations)}
        self._bounds = tuple(
            _Bound(
                names[name],
                e.low,
                e.high,
                0.5 * (e.low + e.high) - 0.5 * e.release * (e.high - e.low),
                0.5 * (e.low + e.high) + 0.5 * e.release * (e.high - e.low),
            )
            for name, e in limits.envelope.items()
        )
        self._fallback: Controller = compile_fallback(limits.fallback, rig)
        self._dwell_ticks = max(1, round(limits.fallback_dwell_s / period_s))
        self._remaining = 0
        self._in_fallback = False

    def reset(self) -> None:
        """Forget an intervention at the start of an episode."""
        self._in_fallback = False
        self._remaining = 0

    def decide(self, observation: Sequence[float], action: Sequence[float], previous: Sequence[float]) -> Verdict:
        """Judge one action.

        observation: (n,) SI; action: (m,) SI as the policy and the exploration want it, possibly not finite;
        previous: (m,) SI, the command that went out last.
        """
        for value in action:
            if not isfinite(value):
                return self._enter(observation, Rule.FINITE)
        for at, low, high, _, _ in self._bounds:
            if not low <= observation[at] <= high:
                return self._enter(observation, Rule.ENVELOPE)
        if self._in_fallback:
            if self._remaining > 0 or not self._well_inside(observation):
                self._remaining -= 1
                return self._fall_back(observation, Rule.FALLBACK)
            self._in_fallback = False
        rule = Rule.NONE
        out = []
        for value, (low, high), step, half_count, last in zip(
            action, self._range, self._step, self._slack, previous, strict=True
        ):
            if value < low:
                value, rule = low, Rule.RANGE if value < low - half_count else rule
            elif value > high:
                value, rule = high, Rule.RANGE if value > high + half_count else rule
            # Rounding of the previous command to counts must not count as an intervention.
            slack = step * (1 + 1e-6) + 1e-9
            if value > last + slack:
                value, rule = min(last + step, high), Rule.RATE
            elif value < last - slack:
                value, rule = max(last - step, low), Rule.RATE
            out.append(value)
        return Verdict(tuple(out), rule)

    def _enter(self, observation: Sequence[float], rule: Rule) -> Verdict:
        self._in_fallback = True
        self._remaining = self._dwell_ticks
        return self._fall_back(observation, rule)

    def _fall_back(self, observation: Sequence[float], rule: Rule) -> Verdict:
        """The fallback's action: exempt from the rate limit, not from the range."""
        action = self._fallback(observation)
        return Verdict(
            tuple([min(max(value, low), high) for value, (low, high) in zip(action, self._range, strict=True)]), rule
        )

    def _well_inside(self, observation: Sequence[float]) -> bool:
        return all(b.inner_low <= observation[b.observation] <= b.inner_high for b in self._bounds)
