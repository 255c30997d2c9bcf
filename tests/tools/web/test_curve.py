from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.web.curve import FIELDS, Curve

HEADER = b"episode,kind,steps,return,mean_reward,normalized,exploration,interventions,missed_ticks,policy_id,t_mono_ns"


def line(episode: int, kind: str = "train", score: float = 0.5) -> bytes:
    return f"{episode},{kind},200,-1.0,-0.5,{score},0.25,2,1,9,0".encode()


def test_rows_come_as_the_page_wants_them() -> None:
    curve = Curve()
    fresh = curve.take([HEADER, line(1), line(1, "eval", 0.75)])
    assert fresh == [[1, 0, 200, 0.5, 0.25, 2, 1, 9], [1, 1, 200, 0.75, 0.25, 2, 1, 9]]
    assert curve.take([line(2)]) == [[2, 0, 200, 0.5, 0.25, 2, 1, 9]]
    assert len(curve.rows) == 3
    assert len(FIELDS) == len(curve.rows[0])


def test_an_episode_without_a_step_has_no_score() -> None:
    assert Curve().take([HEADER, line(1, score=float("nan"))]) == [[1, 0, 200, None, 0.25, 2, 1, 9]]


def test_lines_that_are_cut_short_or_no_rows_are_left_out() -> None:
    assert Curve().take([line(1)]) == [], "no header yet"
    assert Curve().take([HEADER, b"2,train,20", b"\xff\xfe", b"", line(3)]) == [[3, 0, 200, 0.5, 0.25, 2, 1, 9]]


@settings(deadline=None)
@given(n=st.integers(1, 200), limit=st.integers(2, 40))
def test_it_stays_within_its_limit_and_loses_no_intervention(n: int, limit: int) -> None:
    curve = Curve(limit)
    curve.take([HEADER])
    for episode in range(1, n + 1):
        curve.take([line(episode), line(episode, "eval", 1.0)])
    assert len(curve.rows) <= max(limit, 2)
    for kind in (0, 1):
        rows = [r for r in curve.rows if r[1] == kind]
        assert sum(r[5] or 0 for r in rows) == 2 * n
        assert rows[-1][0] == n
        assert {r[3] for r in rows} == {0.5 + 0.5 * kind}
    assert [r[0] for r in curve.rows] == sorted(r[0] or 0 for r in curve.rows)


def test_merging_is_told_so_that_all_rows_are_sent_anew() -> None:
    curve = Curve(4)
    assert curve.take([HEADER, *[line(i) for i in range(1, 5)]]) is not None
    assert curve.take([line(5)]) is None
    assert curve.merged == 2
