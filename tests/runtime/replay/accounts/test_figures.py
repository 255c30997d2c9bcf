from __future__ import annotations

import numpy as np

from onrig.runtime.record import Miss, RecordLayout, Rule
from onrig.runtime.replay.accounts.figures import TickEvents


def told(batches: list[list[tuple[Rule, int, Miss, int]]]) -> list[tuple[int, str, int, str, int]]:
    """Ticks told of, for batches of (rule, missed, cause, fault)."""
    lines: list[tuple[int, str, int, str, int]] = []

    def event(kind: str, **f: object) -> None:
        assert kind == "tick"
        lines.append((f["tick"], f["rule"], f["missed"], f["cause"], f["fault"]))  # type: ignore[arg-type]

    events, tick = TickEvents(event), 0
    for batch in batches:
        records = np.zeros(len(batch), RecordLayout(2, 2, 1).dtype)
        for record, (rule, missed, cause, fault) in zip(records, batch, strict=True):
            record["tick"], record["rule"], record["missed"] = tick, rule, missed
            record["miss"], record["fault"] = cause, fault
            tick += 1
        events.add(records)
    return lines


QUIET = (Rule.NONE, 0, Miss.NONE, 0)
ENVELOPE = (Rule.ENVELOPE, 0, Miss.NONE, 0)
FALLBACK = (Rule.FALLBACK, 0, Miss.NONE, 0)


def test_a_rule_is_told_of_when_it_begins_and_not_while_it_goes_on() -> None:
    assert told([[QUIET, ENVELOPE, ENVELOPE, FALLBACK], [FALLBACK, QUIET, ENVELOPE]]) == [
        (1, "envelope", 0, "none", 0),
        (6, "envelope", 0, "none", 0),
    ]


def test_a_rule_that_goes_on_across_batches_is_told_of_once() -> None:
    assert told([[ENVELOPE], [ENVELOPE]]) == [(0, "envelope", 0, "none", 0)]


def test_missed_ticks_and_faults_are_all_told_of() -> None:
    missed, faulted = (Rule.NONE, 2, Miss.HOST, 0), (Rule.FALLBACK, 0, Miss.NONE, 1)
    assert told([[missed, QUIET, missed, faulted]]) == [
        (0, "none", 2, "host", 0),
        (2, "none", 2, "host", 0),
        (3, "fallback", 0, "none", 1),
    ]
