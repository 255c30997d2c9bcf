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

LIMITS = ProbationLimits(ticks=10, slow_ns=1000, slow_ticks=3, excess_fallback=0.5)
PROBATION, ROLLED_BACK = int(Flag.PROBATION), int(Flag.ROLLED_BACK)


class RecordingWatch:
    def __init__(self, limits: ProbationLimits | None = LIMITS) -> None:
        self.events: list[tuple[str, object, object]] = []
        self.details: list[dict[str, object]] = []
        self.verdicts: list[tuple[int, str, str]] = []
        self.watch = PolicyWatch(limits, 50.0, self._event, lambda *args: self.verdicts.append(args))

    def _event(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields["policy"], fields.get("reason")))
        self.details.append(fields)


def ticks(
    n: int, policy_id: int, flags: int = PROBATION, rule: Rule = Rule.NONE, policy_ns: int = 0, first_tick: int = 0
) -> Records:
    rows = records(n, tick=first_tick)
    rows["policy_id"], rows["flags"], rows["rule"] = policy_id, flags, rule
    rows["stage_ns"][:, POLICY_STAGE] = policy_ns
    return rows


def sequence_of(*parts: Records) -> Records:
    rows = np.concatenate(parts)
    rows["tick"] = np.arange(len(rows))
    return rows


PASSED = sequence_of(ticks(10, 1), ticks(5, 1, 0))
NAN = sequence_of(PASSED, ticks(3, 2), ticks(1, 2, PROBATION, Rule.FINITE), ticks(1, 1, ROLLED_BACK), ticks(4, 1, 0))
SLOW = sequence_of(
    PASSED, ticks(2, 2), ticks(3, 2, PROBATION, policy_ns=1001), ticks(1, 1, ROLLED_BACK), ticks(4, 1, 0)
)
FALLBACK_TICKS = sequence_of(PASSED, ticks(6, 2, PROBATION, Rule.FALLBACK), ticks(1, 1, ROLLED_BACK), ticks(4, 1, 0))
FIRST_POLICY = sequence_of(ticks(3, 1), ticks(1, 1, PROBATION, Rule.FINITE), ticks(4, 1, 0))
LAST_TICK = sequence_of(
    PASSED, ticks(1, 2, PROBATION, Rule.FINITE), ticks(1, 1, ROLLED_BACK | Flag.NO_ACTION), ticks(1, 0, Flag.NO_ACTION)
)
TWO_ROLLBACKS = sequence_of(
    PASSED,
    ticks(2, 2),
    ticks(1, 3, PROBATION, Rule.FINITE),
    ticks(1, 2, PROBATION | ROLLED_BACK, Rule.FINITE),
    ticks(1, 1, ROLLED_BACK),
)
EXPECTED = [
    (PASSED, [("policy_probation_passed", 1, None)]),
    (NAN, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "finite")]),
    (SLOW, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "slow")]),
    (FALLBACK_TICKS, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "fallback")]),
    (FIRST_POLICY, [("policy_probation_failed", 1, "finite")]),
    (LAST_TICK, [("policy_probation_passed", 1, None), ("policy_rolled_back", 2, "finite")]),
    (
        TWO_ROLLBACKS,
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
def test_the_records_determine_the_outcome_of_each_policy_whatever_the_batching(
    rows: Records, expected: list[tuple[str, int, str | None]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    recorder = RecordingWatch()
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        recorder.watch.add(rows[start:end])
    assert recorder.events == expected
    assert [v[0] for v in recorder.verdicts] == [policy for _, policy, _ in expected]


def test_the_event_reports_the_place_and_the_acting_policy_and_the_verdict_the_reason() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(NAN)
    last_details = recorder.details[-1]
    assert (last_details["tick"], last_details["episode"], last_details["back_to"], last_details["acted_ticks"]) == (
        18,
        1,
        1,
        4,
    )
    assert last_details["fallback_share"] == 0.25
    assert recorder.verdicts[-1] == (2, "rolled_back", "its output is non-finite")
    assert (recorder.watch.policy_id, recorder.watch.age_ticks) == (1, 5)


def test_reports_of_a_previous_process_are_not_repeated_and_its_end_is_known() -> None:
    recorder = RecordingWatch()
    cut_index = int(np.flatnonzero(NAN["flags"] & ROLLED_BACK)[0])
    recorder.watch.add_earlier_records(NAN[cut_index - 3 : cut_index - 2], were_reported=True, were_applied=True)
    recorder.watch.add_earlier_records(NAN[cut_index - 2 :], were_reported=True, were_applied=False)
    assert recorder.events == []
    assert recorder.verdicts == [(2, "rolled_back", "its output is non-finite")]
    assert recorder.watch.policy_id == 1


def test_a_policy_replaced_in_the_tick_in_which_its_probation_ends_has_passed() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(sequence_of(ticks(10, 1), ticks(1, 2)))
    assert recorder.events == [("policy_probation_passed", 1, None)]


def test_a_policy_replaced_before_the_end_of_its_probation_has_no_verdict() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(sequence_of(ticks(9, 1), ticks(1, 2)))
    recorder.watch.close(None)
    assert recorder.events == []


def test_at_the_end_a_completed_probation_is_passed() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(ticks(10, 1))
    assert recorder.events == []
    recorder.watch.close(None)
    assert recorder.events == [("policy_probation_passed", 1, None)]


def test_a_rollback_without_a_record_is_reported_at_the_end() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(sequence_of(PASSED, ticks(1, 2, PROBATION, Rule.FINITE)))
    recorder.watch.close(2)
    assert recorder.events[-1] == ("policy_rolled_back", 2, "finite")
    lost_recorder = RecordingWatch()
    lost_recorder.watch.add(PASSED)
    lost_recorder.watch.close(7)
    assert lost_recorder.events[-1] == ("policy_rolled_back", 7, "unknown")


def test_records_without_a_policy_answer_are_ignored() -> None:
    recorder = RecordingWatch()
    resets = ticks(20, 0, 0)
    resets["kind"] = Kind.RESET
    recorder.watch.add(sequence_of(ticks(5, 1), ticks(1, 0, Flag.NO_ACTION), resets, ticks(5, 1), ticks(1, 1, 0)))
    assert recorder.events == [("policy_probation_passed", 1, None)]
    assert (recorder.watch.age_ticks, recorder.watch.age_s) == (11, 0.22)


def test_a_watch_that_begins_during_a_probation_reports_its_end() -> None:
    recorder = RecordingWatch()
    recorder.watch.add(sequence_of(ticks(2, 1), ticks(1, 1, 0)))
    assert recorder.events == [("policy_probation_passed", 1, None)]


def test_no_records_cause_no_error() -> None:
    recorder = RecordingWatch(None)
    recorder.watch.add(np.zeros(0, LAYOUT.dtype))
    recorder.watch.close(None)
    recorder.watch.add(ticks(30, 1, 0))
    recorder.watch.close(None)
    assert recorder.events == []


BAD, OTHER = policy_digest(b"bad"), policy_digest(b"worse")


def test_entries_remain_on_the_list(tmp_path: Path) -> None:
    assert RolledBackList(tmp_path).find(BAD) is None
    RolledBackList(tmp_path).add(3, BAD, "no number")
    RolledBackList(tmp_path).add(9, OTHER, "slow")
    reloaded = RolledBackList(tmp_path)
    entries = [RolledBackPolicy(3, BAD.hex(), "no number"), RolledBackPolicy(9, OTHER.hex(), "slow")]
    assert (len(reloaded), [reloaded.find(BAD), reloaded.find(OTHER)]) == (2, entries)
    assert (reloaded.contains_id(3), reloaded.contains_id(9), reloaded.contains_id(4)) == (True, True, False)
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


def test_a_policy_is_listed_once(tmp_path: Path) -> None:
    rolled_back_list = RolledBackList(tmp_path)
    rolled_back_list.add(3, BAD, "no number")
    rolled_back_list.add(3, BAD, "slow")
    assert len(RolledBackList(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"", b"[{", b"{}", b'[{"policy": "x"}]', b"\xff\xfe"])
def test_an_unreadable_list_is_reported_and_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    rolled_back_list = RolledBackList(tmp_path)
    assert (len(rolled_back_list), bool(rolled_back_list.damaged)) == (0, True)
    rolled_back_list.add(3, BAD, "no number")
    assert (len(RolledBackList(tmp_path)), RolledBackList(tmp_path).damaged) == (1, "")


def test_an_unwritable_list_applies_to_this_process(tmp_path: Path) -> None:
    rolled_back_list = RolledBackList(tmp_path / "gone")
    with pytest.raises(OSError, match="No such file"):
        rolled_back_list.add(3, BAD, "no number")
    assert rolled_back_list.find(BAD) == RolledBackPolicy(3, BAD.hex(), "no number")
