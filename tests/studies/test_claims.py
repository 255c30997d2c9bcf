"""Verdicts on the claims of de Bruin et al. 2018."""

from __future__ import annotations

import pytest

from onrig.learner.trials.intervals import PairedComparison
from tests.studies.claims import CLAIMS, Comparison, Judged, judge, page, verdict


def judged(value: float, low: float, high: float, p: float, claimed: str = ">", measure: str = "final") -> Judged:
    comparison = Comparison("pendulum", "50 Hz", "FULL[PER]", "FIFO[Uniform]", claimed, measure)  # type: ignore[arg-type]
    return Judged(comparison, PairedComparison(value, low, high, p, 0.8), 16)


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([judged(0.1, 0.05, 0.2, 0.01)], "**reproduced**"),
        ([judged(-0.1, -0.2, -0.05, 0.01)], "**not reproduced**"),
        ([judged(0.1, -0.05, 0.2, 0.3)], "not settled"),
        ([judged(0.1, 0.05, 0.2, 0.01), judged(0.1, -0.1, 0.2, 0.2)], "not settled (1 of 2 as claimed)"),
        ([judged(0.1, 0.05, 0.2, 0.01), judged(-0.1, -0.2, 0.0, 0.01)], "**not reproduced** (1 of 2 the other way)"),
        ([judged(0.8, 0.7, 0.9, 0.01, "<", "rise")], "**reproduced**"),
        ([judged(1.2, 1.1, 1.3, 0.01, "<", "rise")], "**not reproduced**"),
        ([judged(0.01, -0.02, 0.04, 0.5, "=")], "**reproduced**"),
        ([judged(0.01, -0.02, 0.06, 0.5, "=")], "not settled"),
        ([judged(-0.2, -0.3, -0.1, 0.01, "=")], "**not reproduced**"),
        ([judged(0.1, 0.05, 0.2, 0.01)._replace(estimate=None)], "not run yet"),
    ],
)
def test_a_verdict_is_no_stronger_than_its_comparisons(comparisons: list[Judged], expected: str) -> None:
    assert verdict(comparisons) == expected


def test_without_trials_no_claim_has_a_verdict() -> None:
    assert {verdict(judge(claim, [])) for claim in CLAIMS} == {"not run yet"}
    assert "no trials yet" in page([], 16, 3000)
