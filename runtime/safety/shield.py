"""The shield: checks that every command must pass before it is sent.

Order: finite, range, rate, jerk, envelope, predicted envelope.  Finiteness is checked first because NaN passes ``min``,
``max`` and comparisons.  Range, rate and jerk bound the command.  The fallback controller replaces an invalid command,
a command in a state outside the envelope, and one predicted to leave the envelope, in the same tick.  It acts until a
dwell time has passed and both the state and the desired command are well inside again (reverse switching).  The longer
the state has been well inside, the smaller the margin that the command needs.  Otherwise, where even a body at rest has
little margin, a policy that keeps requesting the same command would never act again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final, NamedTuple

from onrig.hw.rig import Rig
from onrig.runtime.record import Rule
from onrig.runtime.safety.fallback import Controller, FallbackWatch, compile_fallback, compile_full_effort
from onrig.runtime.safety.limits import Limits, compile_prediction
from onrig.runtime.safety.plant_box import PlantBox, Prediction, guaranteed_observations
from onrig.runtime.safety.rules import FULL_RANGE, Envelopes, Jerk, Range, Rate, is_valid_command

_RANGE, _NONE = Rule.RANGE, Rule.NONE
MAX_AMOUNT: Final = 1e6
"""Upper limit on recorded amounts, which are float32."""
RELEASE_DWELLS: Final = 10
"""Number of dwell times well inside the envelope after which the fallback hands over to any command that stays in the
envelope."""


class Verdict(NamedTuple):
    """Action to send (SI units), and the last rule that changed it."""

    action: tuple[float, ...]
    rule: Rule
    amount: float = 0.0
    """Size of the intervention in normalised units: change of the command (range, rate, jerk, fallback; ``finite``: the
    full range), or excess of the present or predicted state (envelope, predicted).
    """
    margin: float = 1.0
    """Margin to the envelope: 1 far inside, 0 at the edge or when a rule activated the fallback."""


def _required_release(limits: Limits, box: PlantBox) -> float:
    """Return the largest ``release`` of the envelopes that a prediction guarantees."""
    return max(limits.envelope[name].release for name in guaranteed_observations(box, limits.envelope))


class Shield:
    """Application of the rules in order; the only state is whether the fallback is active, and its timers.

    Raises ValueError for limits under which no guarantee is possible.  The first shield built for a configuration takes
    a few tenths of a second.
    """

    def __init__(self, limits: Limits, rig: Rig, period_s: float) -> None:
        self._n_actuators = len(rig.actuators)
        self._half_ranges = tuple([a.half_range for a in rig.actuators])
        self._range = Range(limits.range, rig)
        self._rate = Rate(limits.rate_per_s, rig, period_s) if limits.rate_per_s else None
        rate = Rate(limits.rate_per_s, rig, period_s)
        self._jerk = Jerk(limits.jerk_per_s2, rig, period_s, self._range, rate) if limits.jerk_per_s2 else None
        self.limits_changes: Final = self._rate is not None or self._jerk is not None
        """Whether a rule depends on the output in force."""
        self._envelopes = Envelopes(limits.envelope, rig)
        self._prediction: Prediction | None = compile_prediction(limits, rig, period_s)
        self._release_margin = 0.0 if limits.predicted is None else 1.0 - _required_release(limits, limits.predicted)
        self._fallback: Controller = compile_fallback(limits.fallback, rig)
        self._dwell_ticks = max(1, round(limits.fallback_dwell_s / period_s))
        self._watch = FallbackWatch(
            self._envelopes.distance,
            compile_full_effort(limits.fallback, rig),
            period_s,
            limits.fallback_dwell_s,
            has_prediction=self._prediction is not None,
        )
        self.reset()

    def reset(self) -> None:
        """Clear any intervention at the start of an episode."""
        self._is_in_fallback = False
        self._remaining_ticks = 0
        self._ticks_inside = 0
        self._watch.reset()
        self.failure = ""
        """Description of a state that diverges from its envelope despite the fallback's full effort; empty if none."""

    def decide(
        self,
        observation: Sequence[float],
        action: Sequence[float] | None,
        output: Sequence[float],
        previous_output: Sequence[float] | None = None,
    ) -> Verdict:
        """Apply all rules to one action.

        observation: (n,), in SI units; action: output of policy and exploration, normally (m,) in SI units, but
        possibly non-finite, of the wrong length or None; output: the device's output (m,) at the sample, in SI units,
        which the command replaces; previous_output: the device's output at the start of the period that ends with the
        sample, for the jerk rule (None: the same as output).
        """
        if action is None or not is_valid_command(action, self._n_actuators):
            return self._start_fallback(observation, Rule.FINITE, FULL_RANGE)
        envelope_excess, margin = self._envelopes.evaluate(observation)
        if envelope_excess:
            return self._start_fallback(observation, Rule.ENVELOPE, envelope_excess)
        bounded_command, rule, amount = self._bound_command(
            action, output, output if previous_output is None else previous_output
        )
        if self._prediction is not None:
            excess, predicted_margin = self._prediction.evaluate(observation, bounded_command)
            margin = min(margin, predicted_margin)
        else:
            excess, predicted_margin = 0.0, 1.0
        if self._is_in_fallback:
            self._ticks_inside = self._ticks_inside + 1 if self._envelopes.is_well_inside(observation) else 0
            if self._remaining_ticks > 0 or excess or not self._may_release(predicted_margin):
                self._remaining_ticks -= 1
                return self._fall_back(observation, Rule.FALLBACK, None, action, margin)
            self._is_in_fallback = False
            self._watch.reset()
        if excess:
            return self._start_fallback(observation, Rule.PREDICTED, excess)
        # Bypasses the named tuple's constructor, which is a Python function.
        return tuple.__new__(Verdict, (bounded_command, rule, amount, margin))

    def _bound_command(
        self, action: Sequence[float], output: Sequence[float], previous_output: Sequence[float]
    ) -> tuple[tuple[float, ...], Rule, float]:
        """Apply the rules that bound the command; return the bounded command, the last rule that changed it, and by how
        much that rule did."""
        bounded_command, amount = self._range.bound(action)
        rule = _RANGE if amount else _NONE
        if self._rate is not None:
            bounded_command, change = self._rate.bound(bounded_command, output)
            rule, amount = (Rule.RATE, change) if change else (rule, amount)
        if self._jerk is not None:
            bounded_command, change = self._jerk.bound(bounded_command, output, previous_output)
            rule, amount = (Rule.JERK, change) if change else (rule, amount)
        return bounded_command, rule, min(amount, MAX_AMOUNT)

    def _may_release(self, predicted_margin: float) -> bool:
        share = 1.0 - self._ticks_inside / (RELEASE_DWELLS * self._dwell_ticks)
        return self._ticks_inside > 0 and predicted_margin >= self._release_margin * share

    def _start_fallback(self, observation: Sequence[float], rule: Rule, amount: float) -> Verdict:
        self._is_in_fallback = True
        self._remaining_ticks, self._ticks_inside = self._dwell_ticks, 0
        return self._fall_back(observation, rule, min(amount, MAX_AMOUNT), (), 0.0)

    def _fall_back(
        self,
        observation: Sequence[float],
        rule: Rule,
        amount: float | None,
        desired: Sequence[float],
        margin: float,
    ) -> Verdict:
        """Return the fallback's action, which is exempt from the rate and jerk limits but not from the range."""
        self.failure = self.failure or self._watch.update(observation)
        bounded_command, _ = self._range.bound(self._fallback(observation))
        if amount is None:
            changes = [
                abs(a - b) / half_range
                for a, b, half_range in zip(bounded_command, desired, self._half_ranges, strict=True)
            ]
            amount = min(max(changes), MAX_AMOUNT)
        return Verdict(bounded_command, rule, amount if isfinite(amount) else MAX_AMOUNT, margin)
