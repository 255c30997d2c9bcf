"""The attack in short: a piece of each part, small; each must come to its end, and find nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.faultlab.attack import NAMES, QUICK, WHOLE, campaigns
from onrig.tools.faultlab.attack_lockstep import Alone, HitRun, LockstepHits, policies_of, ticks_of
from onrig.tools.faultlab.audit import unlike, unlike_policies
from onrig.tools.faultlab.campaign import Campaign, do_piece, verdict
from onrig.tools.faultlab.pages import attack_line, attack_markdown, attack_text
from onrig.tools.faultlab.run_folder import config_of, left_by
from onrig.tools.faultlab.schedule import Hit

pytestmark = pytest.mark.usefixtures("no_pictures")

QUICK_CAMPAIGNS = {campaign.name: campaign for campaign in campaigns(0, QUICK)}
_LOCKSTEP = QUICK_CAMPAIGNS["kills-lockstep"]
assert isinstance(_LOCKSTEP, LockstepHits)
ALONE = _LOCKSTEP.alone
"""One run that is left alone is enough for all that compare with it."""


def test_in_full_it_is_as_large_as_promised() -> None:
    cases = {c.name: c.does.split()[0] for c in campaigns(0, WHOLE)}
    assert cases["configurations"] == cases["models"] == "10000"
    assert cases["link-models"] == "1000"
    assert cases["garbage"] == "100000"
    assert {cases[f"{what}-{where}"] for what in ("kills", "stops") for where in ("lockstep", "realtime")} == {"50"}


@pytest.mark.parametrize("name", NAMES)
def test_a_handful_of_each_does_no_harm(name: str, tmp_path: Path) -> None:
    campaign: Campaign = QUICK_CAMPAIGNS[name]
    piece = do_piece(campaign, 0, tmp_path / "piece")
    found = verdict(campaign, [piece])
    assert found.cases > 0, [*piece.findings, *(out.read_text() for out in (tmp_path / "piece").glob("*.out"))]
    assert found.findings == []
    assert name in attack_line(found)
    assert "everything holds" in attack_text([found])
    assert attack_markdown([found]).count("\n") == 3


def test_killed_processes_leave_no_trace_in_a_lockstep_run(tmp_path: Path) -> None:
    whole = ALONE.whole(tmp_path)
    hit = HitRun(tmp_path / "run", ALONE.settings, ticks_of(ALONE.episodes))
    assert hit.through([Hit(0.3, 0.0, "replay", None), Hit(0.6, 0.0, "learner", None)]) == []
    assert (hit.landed, hit.starts) == (2, 1)
    assert unlike(left_by(hit.folder, config_of(hit.folder)), whole.left) == []
    assert unlike_policies(policies_of(hit.folder), whole.policies) == []


def test_the_lockstep_part_compares_with_a_run_that_was_left_alone(tmp_path: Path) -> None:
    """It finds a difference where there is one: here the run that is hit has another seed than the other."""
    other = Alone(1, ALONE.episodes)
    other._whole = ALONE.whole(tmp_path)
    found = do_piece(LockstepHits(other, 1, 1, 0, stop=False, longest_s=None), 0, tmp_path / "piece").findings
    assert len(found) == 3
    assert all("differ" in line for line in found)
