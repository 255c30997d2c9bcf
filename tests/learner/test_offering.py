"""A learner's handling of the rig's verdicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onrig.learner import attachment as offering
from onrig.learner.attachment import LearnerMismatchError, PolicyOffers
from onrig.runtime.link.messages import RATE, Accepted, Offer, ReplyMessage, Ruling, Verdict


class LinkStub:
    """Answers offers as specified."""

    def __init__(self, *answers: ReplyMessage) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[object, bytes]] = []

    def ask(self, request: object, model: bytes) -> ReplyMessage:
        self.requests.append((request, model))
        return self.answers.pop(0)


@pytest.fixture
def report_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(offering, "report", lambda source, kind, line, **kwargs: lines.append(line))
    return lines


def make_offering(*answers: ReplyMessage) -> tuple[Any, Any, Any]:
    link: Any = LinkStub(*answers)
    clock = SimpleNamespace(now_s=0.0)
    agent: Any = SimpleNamespace(
        newest_policy_id=4, updates=600, n_withheld=0, export=lambda run_id: f"{run_id}'s".encode()
    )
    return PolicyOffers(link, "learner", lambda: clock.now_s), agent, clock


def test_an_accepted_policy_gets_the_id_assigned_by_the_rig(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(9, accepted=True))
    offers.offer(agent, "run", retries=False)
    assert offers._link.requests == [(Offer(600), b"run's")]
    assert (agent.newest_policy_id, offers.is_due, report_lines) == (9, False, [])


def test_a_refused_policy_uses_no_number_and_is_reported(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(0, accepted=False, stage="bounds", reason="too much"))
    offers.offer(agent, "run", retries=True)
    assert (agent.newest_policy_id, offers.is_due) == (4, False)
    assert report_lines == ["policy offered after 600 updates was refused by the bounds check: too much"]


def test_a_policy_offered_too_soon_is_not_an_error_and_a_newer_one_is_offered_later(report_lines: list[str]) -> None:
    offers, agent, clock = make_offering(Verdict(0, accepted=False, stage=RATE), Verdict(5, accepted=True))
    offers.offer(agent, "run", retries=True)
    assert (agent.newest_policy_id, offers.is_due, report_lines) == (4, False, [])
    clock.now_s = 1.0
    assert offers.is_due
    offers.offer(agent, "run", retries=True)
    assert (agent.newest_policy_id, offers.is_due) == (5, False)
    offers.report_totals()
    assert report_lines == ["policies rejected by the rig's rate limit: 1"]


def test_in_lockstep_no_clock_triggers_another_offer() -> None:
    offers, agent, clock = make_offering(Verdict(0, accepted=False, stage=RATE))
    offers.offer(agent, "run", retries=False)
    clock.now_s = 1000.0
    assert not offers.is_due


def test_a_reply_other_than_a_verdict_is_a_mismatch() -> None:
    offers, agent, _ = make_offering(Accepted())
    with pytest.raises(LearnerMismatchError):
        offers.offer(agent, "run", retries=False)


def test_rulings_are_counted_and_bad_ones_are_reported(report_lines: list[str]) -> None:
    offers, _, _ = make_offering()
    for n, verdict in enumerate(("passed", "passed", "rolled_back", "failed"), 1):
        offers.record(Ruling(n, n, verdict, "slow"))  # type: ignore[arg-type]
    offers.report_totals()
    assert report_lines == [
        "policy 3 was rolled back by the rig: slow",
        "policy 4 failed its probation: slow",
        "results of the policies' probation: 1 failed, 2 passed, 1 rolled back",
    ]


class ScreeningStub:
    """Gives every policy the same result, and counts them."""

    n_tested, result = 0, "score too low"

    def failure(self, model: bytes) -> str:
        self.n_tested += 1
        return self.result


def test_policies_that_fail_the_screening_are_not_offered_until_five_in_a_row_end_it(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(5, accepted=True), Verdict(6, accepted=True))
    offers.screening = screening = ScreeningStub()
    for n_withheld in range(1, 6):
        offers.offer(agent, "run", retries=True)
        assert (agent.n_withheld, agent.updates_when_offered, offers.is_due) == (n_withheld, 600, False)
    assert offers._link.requests == []
    assert report_lines[:5] == ["policy withheld after 600 updates: score too low"] * 5
    assert report_lines[5].startswith("policies are no longer tested before they are offered")
    for policy_id in (5, 6):
        offers.offer(agent, "run", retries=True)
        assert (screening.n_tested, agent.n_withheld, agent.newest_policy_id) == (5, 5, policy_id)
    offers.report_totals()
    assert report_lines[6:] == ["policies that failed the screening: 5"]


def test_the_first_policy_is_offered_untested_because_the_rig_could_not_begin_without(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(1, accepted=True))
    agent.newest_policy_id = 0
    offers.screening = screening = ScreeningStub()
    offers.offer(agent, "run", retries=True)
    assert (screening.n_tested, agent.newest_policy_id) == (0, 1)


def test_a_policy_that_is_offered_again_is_not_tested_again(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(0, accepted=False, stage=RATE), Verdict(5, accepted=True))
    offers.screening = screening = ScreeningStub()
    screening.result = ""
    for _ in range(2):
        offers.offer(agent, "run", retries=True)
        assert screening.n_tested == 1


def test_a_policy_that_passes_ends_a_row_of_failures(report_lines: list[str]) -> None:
    offers, agent, _ = make_offering(Verdict(5, accepted=True))
    offers.screening = screening = ScreeningStub()
    offers.offer(agent, "run", retries=True)
    screening.result = ""
    offers.offer(agent, "run", retries=True)
    assert (agent.n_withheld, agent.newest_policy_id) == (0, 5)
