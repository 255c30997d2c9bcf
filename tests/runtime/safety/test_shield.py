from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import Rule
from onrig.runtime.safety.fallback import Damp, SafeOutput
from onrig.runtime.safety.limits import Limits
from onrig.runtime.safety.rules import Envelope
from onrig.runtime.safety.shield import MAX_AMOUNT, RELEASE_DWELLS, Shield
from tests.runtime.samples import MAGMAN, PENDULUM

RIG, PERIOD_S = PENDULUM.rig, 0.02
STEP_V = 0.5
LIMITS = Limits(
    range={"voltage": (-2.0, 2.5)},
    rate_per_s={"voltage": STEP_V / PERIOD_S},
    envelope={"velocity": Envelope(low=-15.0, high=15.0, release=0.8)},
    fallback=Damp(actuator="voltage", observation="velocity", full_at=2.0),
    fallback_dwell_s=0.1,
)
DWELL_TICKS = 5
INSIDE, RELEASED, NEARLY_OUTSIDE, OUTSIDE = (0.0, 3.0), (0.0, 12.0), (0.0, 12.5), (0.0, 15.1)
ODD_FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 5e-324, -0.0, 1.7e308, -1.7e308])
ACTIONS = ODD_FLOATS | st.floats()
NAN = (math.nan,)


def shield(limits: Limits = LIMITS) -> Shield:
    return Shield(limits, RIG, PERIOD_S)


def limits_with(**changes: object) -> Limits:
    return msgspec.structs.replace(LIMITS, **changes)


def rules(shield: Shield, *observations: tuple[float, float], action: float = 0.0) -> list[Rule]:
    return [shield.decide(o, (action,), (0.0,)).rule for o in observations]


@settings(max_examples=300)
@given(st.lists(st.tuples(ACTIONS, ODD_FLOATS | st.floats(-40, 40)), min_size=1, max_size=25))
def test_every_output_is_finite_in_range_and_within_the_rate_for_any_input(
    ticks: list[tuple[float, float]],
) -> None:
    guard, previous = shield(), 0.0
    for action, velocity in ticks:
        verdict = guard.decide((0.0, velocity), (action,), (previous,))
        (out,) = verdict.action
        assert math.isfinite(out)
        assert -2.0 <= out <= 2.5
        if verdict.rule in (Rule.NONE, Rule.RANGE, Rule.RATE):
            assert abs(out - previous) <= STEP_V * (1 + 1e-5)
            assert math.isfinite(action)
            assert -15.0 <= velocity <= 15.0, "outside the envelope nothing but the fallback acts"
        previous = out


@given(st.floats(-2.0, 2.5), st.floats(-15, 15), st.floats(-STEP_V, STEP_V))
def test_an_action_within_all_limits_passes_unchanged(previous: float, velocity: float, change: float) -> None:
    action = min(max(previous + change, -2.0), 2.5)
    verdict = shield().decide((0.0, velocity), (action,), (previous,))
    assert verdict[:2] == ((action,), Rule.NONE)


# -- finite ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [math.nan, math.inf, -math.inf])
def test_a_non_finite_action_triggers_the_fallback_in_the_same_tick(action: float) -> None:
    assert shield().decide((0.0, 1.0), (action,), (2.5,))[:2] == ((-1.5,), Rule.FINITE)


def test_one_bad_component_is_enough() -> None:
    guard = Shield(MAGMAN.limits, MAGMAN.rig, PERIOD_S)
    verdict = guard.decide((0.0, 0.0), (0.1, 0.2, math.nan, 0.3), (0.0,) * 4)
    assert verdict[:2] == ((0.6, 0.0, 0.0, 0.0), Rule.FINITE), "held at the nearest magnet"


def test_finiteness_is_checked_before_everything_else() -> None:
    assert shield().decide(OUTSIDE, NAN, (0.0,)).rule == Rule.FINITE


# -- range -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "out"), [(2.6, 2.5), (-2.1, -2.0), (1e300, 2.5), (-1e300, -2.0)])
def test_values_beyond_the_range_are_clipped(action: float, out: float) -> None:
    guard = shield(limits_with(rate_per_s={}))
    assert guard.decide(INSIDE, (action,), (0.0,))[:2] == ((out,), Rule.RANGE)


def test_a_rounding_error_beyond_the_range_is_clipped_but_is_not_an_intervention() -> None:
    """A float32 policy saturates at 0.6000000238 of 0.6 A^2, which does not change the count of a command."""
    guard = Shield(Limits(), MAGMAN.rig, PERIOD_S)
    verdict = guard.decide((0.0, 0.0), (0.6000000238418579, -1e-8, 0.3, 0.600006), (0.0,) * 4)
    assert verdict[:2] == ((0.6, 0.0, 0.3, 0.6), Rule.RANGE)
    verdict = guard.decide((0.0, 0.0), (0.6000000238418579, -1e-8, 0.3, 0.6), (0.0,) * 4)
    assert verdict[:2] == ((0.6, 0.0, 0.3, 0.6), Rule.NONE)


def test_the_default_range_is_the_rigs() -> None:
    guard = shield(limits_with(range={}, rate_per_s={}))
    assert guard.decide(INSIDE, (9.0,), (0.0,)).action == (3.0,)


# -- rate --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "out"), [(2.0, 1.5), (-2.0, 0.5), (1.4, 1.4), (99.0, 1.5)])
def test_a_faster_change_is_limited_to_the_rate(action: float, out: float) -> None:
    verdict = shield().decide(INSIDE, (action,), (1.0,))
    assert verdict.action == pytest.approx((out,))
    assert verdict.rule == (Rule.NONE if out == action else Rule.RATE)


def test_without_a_rate_the_complete_range_may_be_crossed_in_one_period() -> None:
    assert shield(limits_with(rate_per_s={})).decide(INSIDE, (2.5,), (-2.0,))[:2] == ((2.5,), Rule.NONE)


def test_the_fallback_is_exempt_from_the_rate_but_not_from_the_range() -> None:
    assert shield().decide((0.0, -50.0), (0.0,), (-2.0,))[:2] == ((2.5,), Rule.ENVELOPE)
    guard = shield()
    guard.decide(INSIDE, NAN, (0.0,))
    assert guard.decide((0.0, 14.0), (0.0,), (2.5,))[:2] == ((-2.0,), Rule.FALLBACK)


def test_after_the_fallback_the_policy_starts_from_the_last_output_of_the_fallback() -> None:
    guard = shield(limits_with(fallback_dwell_s=0.0))
    assert guard.decide((0.0, 16.0), (2.0,), (0.0,)).action == (-2.0,)
    assert guard.decide((0.0, 13.0), (2.0,), (-2.0,))[:2] == ((-2.0,), Rule.FALLBACK)
    verdict = guard.decide(INSIDE, (2.0,), (-2.0,))
    assert verdict.action == pytest.approx((-1.5,))
    assert verdict.rule == Rule.RATE


# -- envelope and fallback ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("velocity", [15.0001, -15.0001, 1e300, math.inf, math.nan])
def test_leaving_the_envelope_triggers_the_fallback_in_the_same_tick(velocity: float) -> None:
    verdict = shield().decide((0.0, velocity), (0.1,), (0.0,))
    assert verdict.rule == Rule.ENVELOPE
    assert verdict.action[0] != 0.1


@pytest.mark.parametrize("velocity", [15.0, -15.0])
def test_the_edge_of_the_envelope_belongs_to_it(velocity: float) -> None:
    assert rules(shield(), (0.0, velocity)) == [Rule.NONE]


def test_the_fallback_acts_for_its_dwell_even_if_the_state_recovers_at_once() -> None:
    rules_applied = rules(shield(), OUTSIDE, *[INSIDE] * 20)
    first_free = rules_applied.index(Rule.NONE)
    assert rules_applied[:first_free] == [Rule.ENVELOPE, *[Rule.FALLBACK] * (first_free - 1)]
    assert DWELL_TICKS <= first_free <= DWELL_TICKS + 1
    assert set(rules_applied[first_free:]) == {Rule.NONE}


def test_after_its_dwell_the_fallback_continues_until_the_state_is_well_inside() -> None:
    rules_applied = rules(shield(), OUTSIDE, *[NEARLY_OUTSIDE] * 50, RELEASED, NEARLY_OUTSIDE)
    assert rules_applied == [Rule.ENVELOPE, *[Rule.FALLBACK] * 50, Rule.NONE, Rule.NONE]


def test_a_second_excursion_restarts_the_dwell() -> None:
    ticks_after_one = rules(shield(), OUTSIDE, *[INSIDE] * 20).index(Rule.NONE)
    ticks_after_two = rules(shield(), OUTSIDE, *[INSIDE] * 3, OUTSIDE, *[INSIDE] * 20).index(Rule.NONE)
    assert ticks_after_two == ticks_after_one + 4


def test_a_policy_that_is_still_non_finite_after_the_dwell_does_not_act() -> None:
    guard = shield()
    for _ in range(50):
        assert guard.decide(INSIDE, NAN, (0.0,)).rule == Rule.FINITE


def test_a_new_episode_clears_the_fallback() -> None:
    guard = shield()
    guard.decide(OUTSIDE, (0.0,), (0.0,))
    guard.reset()
    assert rules(guard, NEARLY_OUTSIDE) == [Rule.NONE]


def test_without_an_envelope_only_a_non_finite_action_triggers_the_fallback() -> None:
    guard = shield(limits_with(envelope={}))
    assert rules(guard, (0.0, 1e9)) == [Rule.NONE]
    assert guard.decide((0.0, 1e9), NAN, (0.0,)).rule == Rule.FINITE


def test_every_envelope_counts_and_bounds_may_be_asymmetric() -> None:
    asymmetric = {"angle": Envelope(low=-1.0, high=3.0, release=0.5), "velocity": LIMITS.envelope["velocity"]}
    guard = shield(limits_with(envelope=asymmetric, fallback_dwell_s=0.0))
    # Back within half of [-1, 3] around its middle, 1: from 0 to 2.
    angles = (-1.1, -0.1, 2.1, 2.0, 3.0)
    assert rules(guard, (-1.1, 0.0), (-0.1, 0.0)) == [Rule.ENVELOPE, Rule.FALLBACK]
    assert rules(guard, *((a, 0.0) for a in angles[2:])) == [Rule.FALLBACK, Rule.NONE, Rule.NONE]
    assert rules(guard, (2.0, 16.0)) == [Rule.ENVELOPE]


# -- any limits --------------------------------------------------------------------------------------------------------


@st.composite
def any_limits(draw: st.DrawFn) -> Limits:
    low, high = draw(st.floats(-3.0, -0.1)), draw(st.floats(0.1, 3.0))
    return Limits(
        range=draw(st.sampled_from([{}, {"voltage": (low, high)}])),
        rate_per_s=draw(st.just({}) | st.fixed_dictionaries({"voltage": st.floats(0.01, 500.0)})),
        jerk_per_s2=draw(st.just({}) | st.fixed_dictionaries({"voltage": st.floats(0.5, 1e5)})),
        envelope=draw(st.sampled_from([{}, LIMITS.envelope])),
        fallback=draw(st.sampled_from([LIMITS.fallback, SafeOutput()])),
        fallback_dwell_s=draw(st.sampled_from([0.0, 0.1])),
    )


RULES_OF_FALLBACK = (Rule.FINITE, Rule.ENVELOPE, Rule.PREDICTED, Rule.FALLBACK)
"""In these cases the fallback acts, which is exempt from rate and jerk."""
POLICY_ANSWERS = st.none() | st.lists(ACTIONS, max_size=2) | st.tuples(st.floats(-4, 4)) | st.tuples(ACTIONS)


@settings(max_examples=150)
@given(
    any_limits(),
    st.lists(st.tuples(POLICY_ANSWERS, st.floats(-3.2, 3.2), ODD_FLOATS | st.floats(-20, 20)), min_size=1, max_size=20),
)
def test_any_limits_hold_for_any_sequence_of_outputs(
    limits: Limits, ticks: list[tuple[Sequence[float] | None, float, float]]
) -> None:
    guard, previous = shield(limits), 0.0
    low, high = limits.range.get("voltage", (-3.0, 3.0))
    step = limits.rate_per_s.get("voltage", math.inf) * PERIOD_S
    for action, angle, velocity in ticks:
        verdict = guard.decide((angle, velocity), action, (previous,))
        (out,) = verdict.action
        assert math.isfinite(out)
        assert low <= out <= high
        assert 0.0 <= verdict.margin <= 1.0
        assert 0.0 <= verdict.amount <= MAX_AMOUNT
        assert (verdict.amount == 0.0) <= (verdict.rule in (Rule.NONE, Rule.FALLBACK))
        if verdict.rule not in RULES_OF_FALLBACK:
            assert abs(out - previous) <= step * (1 + 1e-5) + 1e-8
            assert action is not None
            assert len(action) == 1
        previous = out


@pytest.mark.parametrize("action", [None, (), (1.0, 1.0), (None,), ("1",)])
def test_an_invalid_action_triggers_the_fallback_in_the_same_tick(action: object) -> None:
    verdict = shield().decide((0.0, 1.0), action, (2.5,))  # type: ignore[arg-type]
    assert verdict == ((-1.5,), Rule.FINITE, 2.0, 0.0)


# -- jerk --------------------------------------------------------------------------------------------------------------

CHANGE_V = 0.1
JERK_LIMITED = limits_with(jerk_per_s2={"voltage": CHANGE_V / PERIOD_S**2})


def decide_sequence(limits: Limits, actions: Sequence[float]) -> tuple[list[float], list[Rule]]:
    guard, out, rules_applied = shield(limits), [0.0], []
    for action in actions:
        verdict = guard.decide(INSIDE, (action,), (out[-1],), (out[-2] if len(out) > 1 else out[-1],))
        out.append(verdict.action[0])
        rules_applied.append(verdict.rule)
    return out[1:], rules_applied


def test_the_rate_itself_changes_by_at_most_the_jerk() -> None:
    out, rules_applied = decide_sequence(JERK_LIMITED, [2.0] * 4 + [-2.0] * 4)
    assert out == pytest.approx([0.1, 0.3, 0.6, 1.0, 1.3, 1.5, 1.6, 1.6])
    assert rules_applied == [Rule.JERK] * 8


def test_range_and_rate_take_precedence_over_the_jerk() -> None:
    out, rules_applied = decide_sequence(JERK_LIMITED, [2.5] * 10)
    assert max(out) == 2.5
    assert max(b - a for a, b in itertools.pairwise(out)) == pytest.approx(STEP_V)
    assert rules_applied[-1] == Rule.NONE


def test_a_command_within_the_jerk_passes_unchanged() -> None:
    actions = [0.1, 0.2, 0.35, 0.4]
    out, rules_applied = decide_sequence(JERK_LIMITED, actions)
    assert out == actions
    assert set(rules_applied) == {Rule.NONE}


# -- amounts -----------------------------------------------------------------------------------------------------------


def test_a_rule_reports_by_how_much_it_acted() -> None:
    unlimited_rate = limits_with(rate_per_s={})
    assert shield(unlimited_rate).decide(INSIDE, (2.8,), (0.0,)).amount == pytest.approx(0.3 / 3.0)
    assert shield().decide(INSIDE, (1.1,), (0.0,)).amount == pytest.approx(0.6 / 3.0)
    assert shield().decide((0.0, 18.0), (0.0,), (0.0,)).amount == pytest.approx(3.0 / 30.0)
    guard = shield()
    guard.decide(OUTSIDE, (0.0,), (0.0,))
    assert guard.decide(INSIDE, (1.0,), (-2.0,)).amount == pytest.approx(3.0 / 3.0)


def test_the_margin_is_1_in_the_middle_and_0_at_the_edge() -> None:
    guard = shield()
    margins = [guard.decide((0.0, v), (0.0,), (0.0,)).margin for v in (0.0, 7.5, -12.0, 15.0, 16.0)]
    assert margins == pytest.approx([1.0, 0.5, 0.2, 0.0, 0.0])


# -- predicted envelope ------------------------------------------------------------------------------------------------

PREDICTED = msgspec.structs.replace(PENDULUM.limits, fallback_dwell_s=0.0)
FALLING_ANGLE = -2.0
"""An angle (rad) at which gravity exceeds the torque of the motor, for a positive velocity."""


def test_a_command_that_leads_out_of_the_safe_set_triggers_the_fallback_in_the_same_tick() -> None:
    verdict = shield(PREDICTED).decide((FALLING_ANGLE, 8.8), (3.0,), (0.0,))
    assert verdict[:2] == ((-3.0,), Rule.PREDICTED)
    assert verdict.amount > 0
    assert verdict.margin == 0.0


def test_the_destination_of_the_command_counts_and_not_the_velocity() -> None:
    assert shield(PREDICTED).decide((0.2, 12.0), (-3.0,), (0.0,)).rule == Rule.NONE
    assert shield(PREDICTED).decide((FALLING_ANGLE, 12.0), (-3.0,), (0.0,)).rule == Rule.PREDICTED


def test_the_bounded_command_is_judged() -> None:
    slow_limits = msgspec.structs.replace(PREDICTED, rate_per_s={"voltage": 1.0})
    assert shield(slow_limits).decide((FALLING_ANGLE, 8.4), (3.0,), (-3.0,)).rule == Rule.RATE
    assert shield(PREDICTED).decide((FALLING_ANGLE, 8.4), (3.0,), (-3.0,)).rule == Rule.PREDICTED


def test_the_fallback_ends_only_if_the_requested_command_is_well_inside() -> None:
    guard = shield(PREDICTED)
    assert guard.decide((FALLING_ANGLE, 12.0), (3.0,), (0.0,)).rule == Rule.PREDICTED
    assert guard.decide((FALLING_ANGLE, 7.5), (3.0,), (-3.0,)).rule == Rule.FALLBACK
    assert guard.decide((FALLING_ANGLE, 7.0), (3.0,), (-3.0,)).rule == Rule.FALLBACK, "the dwell of one tick has passed"
    assert guard.decide((FALLING_ANGLE, 6.0), (3.0,), (-3.0,)).rule == Rule.NONE


def test_the_fallback_ends_after_a_while_for_a_command_that_stays_inside_with_a_small_margin() -> None:
    limits = msgspec.structs.replace(PENDULUM.limits, fallback_dwell_s=0.1)
    guard = shield(limits)
    assert guard.decide((FALLING_ANGLE, 12.0), (3.0,), (0.0,)).rule == Rule.PREDICTED
    verdicts = [guard.decide((FALLING_ANGLE, 7.5), (3.0,), (-3.0,)) for _ in range(2 * RELEASE_DWELLS * DWELL_TICKS)]
    margin = verdicts[0].margin
    assert 0.0 < margin < 0.2
    n_held = [v.rule for v in verdicts].index(Rule.NONE)
    assert n_held == math.ceil((1.0 - margin / 0.2) * RELEASE_DWELLS * DWELL_TICKS) - 1, "a linear decrease"
    assert {v.rule for v in verdicts[n_held:]} == {Rule.NONE}


def test_the_fallback_never_ends_for_a_command_that_leads_out() -> None:
    guard = shield(PREDICTED)
    verdicts = [guard.decide((FALLING_ANGLE, 9.5), (3.0,), (-3.0,)) for _ in range(3 * RELEASE_DWELLS)]
    assert verdicts[0].rule == Rule.PREDICTED
    assert {v.rule for v in verdicts[1:]} == {Rule.FALLBACK}
