from __future__ import annotations

import itertools

from onrig.runtime.supervise.event_kinds import COUNT, Value
from onrig.runtime.supervise.repeats import FIRST_S, LONGEST_S, MAX_WINDOWS, Repeats, Told


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
