from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.tools.web.story import Story


def told(**event: object) -> list[tuple[object, object, object]]:
    items, _ = Story().take([msgspec.json.encode({"t_unix_s": 1.0, **event})])
    return [(i["what"], i["level"], i["text"]) for i in items]


def test_policies_come_with_their_verdicts_and_reasons() -> None:
    story = Story()
    events: list[dict[str, object]] = [
        {"kind": "policy_admitted", "policy": 1},
        {"kind": "policy_refused", "policy": 0, "stage": "outputs", "reason": "not finite"},
        {"kind": "policy_rolled_back", "policy": 1, "reason": "trips"},
    ]
    items, policies = story.take([msgspec.json.encode(e) for e in events])
    assert policies == [[1, "admitted", ""], [0, "refused", "outputs: not finite"], [1, "rolled back", "trips"]]
    assert [i["text"] for i in items] == ["a policy refused at outputs: not finite", "policy 1 rolled back: trips"]
    assert story.policies == policies


def test_what_the_shield_did_is_said_in_words() -> None:
    ((what, level, text),) = told(kind="tick", episode=4, tick=99, rule="predicted", missed=0, fault=0)
    assert (what, level) == ("safety", "warn")
    assert text == "episode 4, tick 99: the command would have led out of the safe states: the fallback took over"


def test_missed_ticks_name_their_cause() -> None:
    assert told(kind="tick", episode=1, tick=2, rule="none", missed=3, cause="host", fault=0) == [
        ("timing", "warn", "episode 1, tick 2: 3 missed by the machine")
    ]


def test_a_fault_is_told_with_its_cause_and_hint_and_so_is_its_end() -> None:
    fault = told(
        kind="transition", before="running", state="fault", fault="lease", cause="late", hint="look", detail=""
    )
    assert fault == [("safety", "bad", "fault: late; look")]
    assert told(kind="transition", before="fault", state="ready", fault=None) == [("safety", "good", "re-armed")]


def test_an_ordinary_episode_is_no_event() -> None:
    assert told(kind="transition", before="ready", state="running", fault=None) == []
    assert told(kind="something_new") == []


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"\xff", b"null", b"[" * 5000])
def test_lines_that_are_no_events_are_left_out(line: bytes) -> None:
    assert Story().take([line, msgspec.json.encode({"kind": "policy_admitted", "policy": 1})]) == (
        [],
        [[1, "admitted", ""]],
    )


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["policy", "reason", "missed", "rule", "state", "message"]), st.text(max_size=8))
)
def test_no_event_is_too_odd_for_it(fields: dict[str, str]) -> None:
    for kind in ("tick", "transition", "policy_refused", "fault", "stop", "ended", "event"):
        Story().take([msgspec.json.encode({"kind": kind, **fields})])


def test_only_the_newest_are_kept() -> None:
    story = Story()
    story.take([msgspec.json.encode({"kind": "error", "source": "x", "message": str(i)}) for i in range(500)])
    assert len(story.items) == 200
    assert story.items[-1]["text"] == "x: 499"
