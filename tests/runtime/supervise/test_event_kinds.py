from __future__ import annotations

import pytest

from onrig.runtime.supervise.event_kinds import Value, Weight, kind_of, shortened, times


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
