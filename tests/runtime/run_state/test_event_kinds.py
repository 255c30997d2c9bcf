from __future__ import annotations

import itertools

import pytest

from onrig.runtime.run_state.event_kinds import (
    COUNT,
    FIRST_S,
    LONGEST_S,
    MAX_WINDOWS,
    Repeats,
    Told,
    Value,
    Weight,
    kind_of,
    shortened,
    times,
)


@pytest.mark.parametrize("kind", ["learner_attached", "learner_turned_away", "policy_refused", "connections_ended"])
def test_what_strangers_can_bring_about_is_known_as_such(kind: str) -> None:
    assert kind_of(kind, {}).weight is Weight.OUTSIDE
    assert kind_of(kind, {}).same is not None


def test_whatever_bears_a_fault_is_vital() -> None:
    for kind in ("tick", "transition", "error", "of tomorrow"):
        assert kind_of(kind, {"fault": "lease"}).weight is Weight.VITAL
        assert kind_of(kind, {"fault": None}).weight is Weight.OWN


def test_texts_are_cut_and_nothing_else() -> None:
    fields: dict[str, Value] = {"a": "x" * 20, "b": 10**30, "c": None}
    assert shortened(fields, 10) == {"a": "x" * 7 + "...", "b": 10**30, "c": None}


@pytest.mark.parametrize(("count", "n"), [(None, 1), (5, 5), (True, 1), ("7", 1), (-3, 1), (2.5, 1)])
def test_a_line_stands_for_so_many(count: object, n: int) -> None:
    assert times({"count": count} if count is not None else {}) == n


def refused(repeats: Repeats, now_s: float, policy: int, stage: str = "contract") -> list[Told]:
    return repeats.take("policy_refused", {"policy": policy, "learner": "plain", "stage": stage}, now_s, now_s)


def test_the_first_is_told_at_once_and_those_like_it_when_the_window_closes() -> None:
    repeats = Repeats()
    (first,) = refused(repeats, 0.0, 1)
    assert first.fields["policy"] == 1
    assert refused(repeats, 0.1, 2) == refused(repeats, 0.2, 3) == []
    (other,) = refused(repeats, 0.3, 4, "bounds")
    assert other.fields["policy"] == 4, "another stage is another event"
    (rest,) = repeats.due(FIRST_S)
    assert (rest.fields["policy"], rest.fields[COUNT], rest.t_unix_s) == (3, 2, 0.2)


def test_windows_double_while_it_goes_on_and_begin_anew_after_a_silence() -> None:
    repeats, told_s = Repeats(), []
    refused(repeats, 0.0, 0)
    for n in range(1, 3000):
        if refused(repeats, n / 10, n):
            told_s.append(n / 10)
    gaps = [round(b - a) for a, b in itertools.pairwise(told_s)]
    assert gaps == [2, 4, 8, 16, 32, LONGEST_S, LONGEST_S, LONGEST_S]
    repeats.due(1000.0)
    assert repeats.due(2000.0) == []
    assert len(refused(repeats, 2001.0, 1)) == 1


def test_another_event_s_turn_closes_what_is_due_before_it() -> None:
    repeats = Repeats()
    refused(repeats, 0.0, 1)
    refused(repeats, 0.1, 2)
    assert [told.kind for told in repeats.take("stop", {}, 5.0, 5.0)] == ["policy_refused", "stop"]


def test_a_fault_is_never_counted_but_told() -> None:
    repeats = Repeats()
    fields: dict[str, Value] = {"episode": 1, "rule": "none", "cause": "none", "missed": 0, "fault": 3}
    assert [len(repeats.take("tick", fields, 0.0, 0.0)) for _ in range(3)] == [1, 1, 1]
    fields["fault"] = 0
    assert [len(repeats.take("tick", fields, 0.0, 0.0)) for _ in range(3)] == [1, 0, 0]


def test_there_are_so_many_windows_and_no_more() -> None:
    repeats = Repeats()
    for n in range(10 * MAX_WINDOWS):
        for _ in range(2):
            repeats.take("policy_refused", {"learner": str(n)}, 0.0, 0.0)
    assert len(repeats._windows) == MAX_WINDOWS
    assert len(repeats.rest()) == MAX_WINDOWS
    assert repeats.rest() == []
