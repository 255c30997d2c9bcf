from __future__ import annotations

import re

from onrig.tools.explain import policy_table, tables
from onrig.tools.load import load


def text(*overrides: str) -> str:
    return re.sub(" +", " ", str(policy_table(load("pendulum", list(overrides))))) + "\n"


def test_the_defaults_are_given_in_ticks_and_in_lockstep_time_does_not_count() -> None:
    explanation = text()
    assert " probation 100 ticks for a new policy; " in explanation
    assert " too slow - not checked in lockstep\n" in explanation
    assert " fallback 50 more ticks in the fallback than under the predecessor (50 % of the probation)\n" in explanation
    assert " silent learner - in lockstep the loop waits for the learner\n" in explanation


def test_in_real_time_slow_is_given_in_microseconds_of_the_wall_clock() -> None:
    explanation = text("device.pace={scaled: 10}", "probation={duration_s: 0.5, slow_share: 0.25, slow_ticks: 4}")
    assert " probation 25 ticks " in explanation
    assert " too slow 4 ticks in a row of more than 500 us, 25 % of the period\n" in explanation
    assert " silent learner 60 s the run continues with its last policy and warns\n" in explanation


def test_the_consequence_of_silence_is_explained() -> None:
    lower_explanation = text("device.pace=realtime", "staleness={then: lower, factor: 0.2, after_s: 5}")
    assert " silent learner 5 s exploration is scaled by 0.2 from the next episode on\n" in lower_explanation
    fall_back_explanation = text(
        "device.pace=realtime", "staleness={then: fall_back}", "supervision.resume_timeout_s=30"
    )
    assert (
        "between episodes, the run waits disarmed until the learner answers, for at most 30 s\n"
        in fall_back_explanation
    )
    assert " silent learner - no learner is expected\n" in text("device.pace=realtime", "local_learner=false")


def test_a_disabled_probation_is_reported() -> None:
    assert " probation none an admitted policy acts until the next one replaces it\n" in text("probation=null")
    assert " fallback - in the fallback" in text("probation.excess_fallback=1")


def test_check_explain_shows_it() -> None:
    assert any("silent learner" in str(table) for table in tables(load("pendulum")))
