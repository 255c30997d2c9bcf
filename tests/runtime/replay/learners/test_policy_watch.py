from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.policy.probation import POLICY_STAGE, ProbationLimits
from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.replay.learners.policy_watch import (
    FILE_NAME,
    PolicyWatch,
    RolledBackList,
    RolledBackPolicy,
    policy_digest,
)
from tests.runtime.samples import LAYOUT, Records, records

TERMS = ProbationLimits(ticks=10, slow_ns=1000, slow_ticks=3, excess_fallback=0.5)
P, R = int(Flag.PROBATION), int(Flag.ROLLED_BACK)


class Told:
    def __init__(self, terms: ProbationLimits | None = TERMS) -> None:
        self.events: list[tuple[str, object, object]] = []
        self.details: list[dict[str, object]] = []
        self.verdicts: list[tuple[int, str, str]] = []
        self.watch = PolicyWatch(terms, 50.0, self._event, lambda *what: self.verdicts.append(what))

    def _event(self, kind: str, **what: object) -> None:
        self.events.append((kind, what["policy"], what.get("reason")))
        self.details.append(what)


def ticks(
    n: int, policy_id: int, flags: int = P, add_ruling: Rule = Rule.NONE, policy_ns: int = 0, first: int = 0
) -> Records:
    rows = records(n, tick=first)
    rows["policy_id"], rows["flags"], rows["rule"] = policy_id, flags, add_ruling
    rows["stage_ns"][:, POLICY_STAGE] = policy_ns
    return rows


def story(*parts: Records) -> Records:
    rows = np.concatenate(parts)
    rows["tick"] = np.arange(len(rows))
    return rows


PASSED = story(ticks(10, 1), ticks(5, 1, 0))
NAN = story(PASSED, ticks(3, 2), ticks(1, 2, P, Rule.FINITE), ticks(1, 1, R), ticks(4, 1, 0))
SLOW = story(PASSED, ticks(2, 2), ticks(3, 2, P, policy_ns=1001), ticks(1, 1, R), ticks(4, 1, 0))
TRIPS = story(PASSED, ticks(6, 2, P, Rule.FALLBACK), ticks(1, 1, R), ticks(4, 1, 0))
ALONE = story(ticks(3, 1), ticks(1, 1, P, Rule.FINITE), ticks(4, 1, 0))
CLOSING = story(PASSED, ticks(1, 2, P, Rule.FINITE), ticks(1, 1, R | Flag.NO_ACTION), ticks(1, 0, Flag.NO_ACTION))
TWICE = story(PASSED, ticks(2, 2), ticks(1, 3, P, Rule.FINITE), ticks(1, 2, P | R, Rule.FINITE), ticks(1, 1, R))
EXPECTED = [
    (PASSED, [("policy_probation_passed", 1, None)]),
    (NAN, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "finite")]),
    (SLOW, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "slow")]),
    (TRIPS, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "fallback")]),
    (ALONE, [("policy_probation_failed", 1, "finite")]),
    (CLOSING, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "finite")]),
    (
        TWICE,
        [
            ("policy_probation_passed", 1, None),
            ("policy_rolled_back", 3, "finite"),
            ("policy_rolled_back", 2, "finite"),
        ],
    ),
]
NAMES = ["passed", "nan", "slow", "trips", "alone", "closing", "twice"]


@pytest.mark.parametrize(("rows", "expected"), EXPECTED, ids=NAMES)
@given(st.data())
def test_the_records_tell_what_became_of_each_policy_however_they_are_batched(
    rows: Records, expected: list[tuple[str, int, str | None]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    told = Told()
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        told.watch.add(rows[start:end])
    assert told.events == expected
    assert [v[0] for v in told.verdicts] == [policy for _, policy, _ in expected]


def test_the_event_says_where_and_who_acts_now_and_the_verdict_why() -> None:
    told = Told()
    told.watch.add(NAN)
    last = told.details[-1]
    assert (last["tick"], last["episode"], last["back_to"], last["acted_ticks"]) == (18, 1, 1, 4)
    assert last["fallback_share"] == 0.25
    assert told.verdicts[-1] == (2, "rolled_back", "its output is non-finite")
    assert (told.watch.policy_id, told.watch.age_ticks) == (1, 5)


def test_what_a_process_before_this_one_told_is_not_told_again_and_its_end_is_known() -> None:
    told = Told()
    cut = int(np.flatnonzero(NAN["flags"] & R)[0])
    told.watch.add_earlier_records(NAN[cut - 3 : cut - 2], were_reported=True, were_applied=True)
    told.watch.add_earlier_records(NAN[cut - 2 :], were_reported=True, were_applied=False)
    assert told.events == []
    assert told.verdicts == [(2, "rolled_back", "its output is non-finite")]
    assert told.watch.policy_id == 1


def test_a_policy_that_is_replaced_in_the_very_tick_its_probation_ends_has_passed() -> None:
    told = Told()
    told.watch.add(story(ticks(10, 1), ticks(1, 2)))
    assert told.events == [("policy_probation_passed", 1, None)]


def test_one_that_is_replaced_before_has_no_verdict() -> None:
    told = Told()
    told.watch.add(story(ticks(9, 1), ticks(1, 2)))
    told.watch.close(None)
    assert told.events == []


def test_at_the_end_a_probation_that_was_served_is_passed() -> None:
    told = Told()
    told.watch.add(ticks(10, 1))
    assert told.events == []
    told.watch.close(None)
    assert told.events == [("policy_probation_passed", 1, None)]


def test_a_roll_back_that_no_record_tells_of_is_told_at_the_end() -> None:
    told = Told()
    told.watch.add(story(PASSED, ticks(1, 2, P, Rule.FINITE)))
    told.watch.close(2)
    assert told.events[-1] == ("policy_rolled_back", 2, "finite")
    lost = Told()
    lost.watch.add(PASSED)
    lost.watch.close(7)
    assert lost.events[-1] == ("policy_rolled_back", 7, "unknown")


def test_records_without_a_policys_answer_count_for_nothing() -> None:
    told = Told()
    resets = ticks(20, 0, 0)
    resets["kind"] = Kind.RESET
    told.watch.add(story(ticks(5, 1), ticks(1, 0, Flag.NO_ACTION), resets, ticks(5, 1), ticks(1, 1, 0)))
    assert told.events == [("policy_probation_passed", 1, None)]
    assert (told.watch.age_ticks, told.watch.age_s) == (11, 0.22)


def test_a_watch_that_begins_in_mid_probation_hears_its_end() -> None:
    told = Told()
    told.watch.add(story(ticks(2, 1), ticks(1, 1, 0)))
    assert told.events == [("policy_probation_passed", 1, None)]


def test_nothing_is_no_trouble() -> None:
    told = Told(None)
    told.watch.add(np.zeros(0, LAYOUT.dtype))
    told.watch.close(None)
    told.watch.add(ticks(30, 1, 0))
    told.watch.close(None)
    assert told.events == []


BAD, WORSE = policy_digest(b"bad"), policy_digest(b"worse")


def test_what_is_on_the_list_stays_on_it(tmp_path: Path) -> None:
    assert RolledBackList(tmp_path).find(BAD) is None
    RolledBackList(tmp_path).add(3, BAD, "no number")
    RolledBackList(tmp_path).add(9, WORSE, "slow")
    again = RolledBackList(tmp_path)
    entries = [RolledBackPolicy(3, BAD.hex(), "no number"), RolledBackPolicy(9, WORSE.hex(), "slow")]
    assert (len(again), [again.find(BAD), again.find(WORSE)]) == (2, entries)
    assert (again.contains_id(3), again.contains_id(9), again.contains_id(4)) == (True, True, False)
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


def test_one_is_on_it_once(tmp_path: Path) -> None:
    list_ = RolledBackList(tmp_path)
    list_.add(3, BAD, "no number")
    list_.add(3, BAD, "slow")
    assert len(RolledBackList(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"", b"[{", b"{}", b'[{"policy": "x"}]', b"\xff\xfe"])
def test_a_list_that_cannot_be_read_is_told_of_and_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    list_ = RolledBackList(tmp_path)
    assert (len(list_), bool(list_.damaged)) == (0, True)
    list_.add(3, BAD, "no number")
    assert (len(RolledBackList(tmp_path)), RolledBackList(tmp_path).damaged) == (1, "")


def test_where_it_cannot_be_written_it_holds_for_this_process(tmp_path: Path) -> None:
    list_ = RolledBackList(tmp_path / "gone")
    with pytest.raises(OSError, match="No such file"):
        list_.add(3, BAD, "no number")
    assert list_.find(BAD) == RolledBackPolicy(3, BAD.hex(), "no number")
