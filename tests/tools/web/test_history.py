from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.view.sentences import Event
from onrig.tools.web.history import FIELDS, Curve, Story


def row(episode: int, kind: str = "train", score: float = 0.5) -> EpisodeRow:
    return EpisodeRow(episode, kind, 200, -1.0, -0.5, score, 0.25, 2, 1, 9, 0)


def test_rows_come_as_the_page_wants_them() -> None:
    curve = Curve()
    fresh = curve.take([row(1), row(1, "eval", 0.75)])
    assert fresh == [[1, 0, 200, 0.5, 0.25, 2, 1, 9], [1, 1, 200, 0.75, 0.25, 2, 1, 9]]
    assert curve.take([row(2)]) == [[2, 0, 200, 0.5, 0.25, 2, 1, 9]]
    assert len(curve.rows) == 3
    assert len(FIELDS) == len(curve.rows[0])


def test_an_episode_without_a_step_has_no_score() -> None:
    assert Curve().take([row(1, score=float("nan"))]) == [[1, 0, 200, None, 0.25, 2, 1, 9]]


@settings(deadline=None)
@given(n=st.integers(1, 200), limit=st.integers(2, 40))
def test_it_stays_within_its_limit_and_loses_no_intervention(n: int, limit: int) -> None:
    curve = Curve(limit)
    for episode in range(1, n + 1):
        curve.take([row(episode), row(episode, "eval", 1.0)])
    assert len(curve.rows) <= max(limit, 2)
    for kind in (0, 1):
        rows = [r for r in curve.rows if r[1] == kind]
        assert sum(r[5] or 0 for r in rows) == 2 * n
        assert rows[-1][0] == n
        assert {r[3] for r in rows} == {0.5 + 0.5 * kind}
    assert [r[0] for r in curve.rows] == sorted(r[0] or 0 for r in curve.rows)


def test_merging_is_told_so_that_all_rows_are_sent_anew() -> None:
    curve = Curve(4)
    assert curve.take([row(i) for i in range(1, 5)]) is not None
    assert curve.take([row(5)]) is None
    assert curve.merged == 2


def test_policies_come_with_their_verdicts_and_reasons() -> None:
    story = Story()
    items, policies = story.take(
        [
            Event(0.0, "policy_admitted", {"policy": 1}),
            Event(0.0, "policy_refused", {"policy": 0, "stage": "outputs", "reason": "not finite"}),
            Event(0.0, "policy_rolled_back", {"policy": 1, "reason": "trips"}),
        ]
    )
    assert policies == [[1, "admitted", ""], [0, "refused", "outputs: not finite"], [1, "rolled back", "trips"]]
    assert [i["text"] for i in items] == ["a policy refused at outputs: not finite", "policy 1 rolled back: trips"]
    assert story.policies == policies


def test_what_happened_several_times_says_so() -> None:
    [item], _ = Story().take([Event(7.0, "warning", {"source": "x", "message": "slow", "count": 3})])
    assert item == {"t": 7.0, "what": "run", "level": "warn", "text": "x: slow (3 times)"}


def test_only_the_newest_are_kept() -> None:
    story = Story()
    story.take(Event(0.0, "error", {"source": "x", "message": str(i)}) for i in range(500))
    assert len(story.items) == 200
    assert story.items[-1]["text"] == "x: 499"
