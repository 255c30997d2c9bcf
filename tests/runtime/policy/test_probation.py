from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.policy.probation import ProbationLimits, Reason, Tenure, probation_limits
from onrig.runtime.policy.settings import Probation
from onrig.runtime.record import Rule
from onrig.runtime.run_loading import load_run
from tests.runtime.samples import PENDULUM

LIMITS = ProbationLimits(ticks=20, slow_ns=1000, slow_ticks=3, excess_fallback=0.25)
QUICK_NS, SLOW_NS = 1000, 1001


def feed(tenure: Tenure, ticks: int, rule: Rule = Rule.NONE, policy_ns: int = QUICK_NS) -> list[int]:
    """Feed equal ticks; returns the numbers of those that failed."""
    return [k for k in range(ticks) if tenure.add_tick(rule, policy_ns) is not None]


def test_a_faultless_policy_passes_after_its_time_and_is_no_longer_judged() -> None:
    tenure = Tenure(LIMITS, 0.0)
    assert feed(tenure, 19) == []
    assert (tenure.is_on_probation, tenure.has_passed) == (True, False)
    assert feed(tenure, 1) == []
    assert (tenure.is_on_probation, tenure.has_passed) == (False, True)
    assert feed(tenure, 5, Rule.FINITE) == []
    assert tenure.has_passed


@pytest.mark.parametrize("n_before", [0, 19])
def test_a_non_finite_answer_fails_at_once(n_before: int) -> None:
    tenure = Tenure(LIMITS, 1.0)
    feed(tenure, n_before)
    assert tenure.add_tick(Rule.FINITE, QUICK_NS) is Reason.FINITE
    assert (tenure.failed, tenure.is_on_probation, tenure.has_passed) == (Reason.FINITE, False, False)
    assert feed(tenure, 30, Rule.FINITE) == [], "it fails once"
    assert not tenure.has_passed


def test_consecutive_slow_ticks_fail_and_single_ones_do_not() -> None:
    tenure = Tenure(LIMITS, None)
    for _ in range(4):
        assert feed(tenure, 2, policy_ns=SLOW_NS) == []
        feed(tenure, 1)
    assert feed(tenure, 3, policy_ns=SLOW_NS) == [2]
    assert tenure.failed is Reason.SLOW


def test_without_a_time_limit_nothing_is_slow() -> None:
    assert feed(Tenure(LIMITS._replace(slow_ns=None), None), 20, policy_ns=10**12) == []


def test_the_fallback_may_act_only_the_allowed_share_more_than_under_the_predecessor() -> None:
    tenure = Tenure(LIMITS, 0.25)
    assert feed(tenure, 10, Rule.FALLBACK) == [], "half of twenty"
    assert feed(tenure, 1, Rule.ENVELOPE) == [0]
    assert tenure.failed is Reason.FALLBACK


def test_without_a_predecessor_the_fallback_share_is_unlimited() -> None:
    tenure = Tenure(LIMITS, None)
    assert feed(tenure, 20, Rule.FALLBACK) == []
    assert tenure.has_passed


@pytest.mark.parametrize("rule", [Rule.RANGE, Rule.RATE, Rule.JERK])
def test_a_rule_that_only_limits_the_command_does_not_count(rule: Rule) -> None:
    tenure = Tenure(LIMITS, 0.0)
    assert feed(tenure, 20, rule) == []
    assert tenure.fallback_fraction == 0.0


def test_the_share_is_counted_after_probation_as_the_reference_for_the_next_policy() -> None:
    tenure = Tenure(LIMITS, 0.0)
    feed(tenure, 30)
    feed(tenure, 10, Rule.FALLBACK)
    assert (tenure.ticks, tenure.fallback_fraction) == (40, 0.25)


def test_without_terms_there_is_no_probation() -> None:
    tenure = Tenure(None, None)
    assert feed(tenure, 50, Rule.FINITE, SLOW_NS) == []
    assert (tenure.is_on_probation, tenure.has_passed, tenure.ticks) == (False, False, 50)


@given(st.lists(st.tuples(st.sampled_from(list(Rule)), st.sampled_from([QUICK_NS, SLOW_NS])), max_size=60))
def test_equal_ticks_give_equal_verdicts_and_at_most_one(ticks: list[tuple[Rule, int]]) -> None:
    first, repeated = Tenure(LIMITS, 0.1), Tenure(LIMITS, 0.1)
    verdicts = [first.add_tick(*tick) for tick in ticks]
    assert verdicts == [repeated.add_tick(*tick) for tick in ticks]
    assert sum(v is not None for v in verdicts) <= 1
    assert not (first.has_passed and first.failed)


def test_the_limits_are_those_of_the_configuration_in_ticks() -> None:
    terms = probation_limits(PENDULUM)
    assert terms == ProbationLimits(ticks=100, slow_ns=None, slow_ticks=10, excess_fallback=0.5), (
        "time counts for nothing here"
    )
    scaled = load_run("pendulum", ["device.pace={scaled: 10}", "probation={duration_s: 0.5, slow_share: 0.25}"])
    assert probation_limits(scaled) == ProbationLimits(ticks=25, slow_ns=500_000, slow_ticks=10, excess_fallback=0.5)
    assert probation_limits(msgspec.structs.replace(PENDULUM, probation=None)) is None
    assert probation_limits(msgspec.structs.replace(PENDULUM, probation=Probation(duration_s=1e-9))) == terms._replace(
        ticks=1
    )


def test_every_reason_has_a_description() -> None:
    descriptions = [LIMITS.describe(reason) for reason in Reason]
    assert len(set(descriptions)) == len(Reason)
    assert "more than 1 us in 3 consecutive ticks" in descriptions[1]
