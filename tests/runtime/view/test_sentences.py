from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.view.sentences import Event, event_text, parse_event


def summarise_event(**event: object) -> tuple[str, str, str] | None:
    parsed = parse_event(msgspec.json.encode({"t_unix_s": 1.0, **event}))
    assert parsed is not None
    summary = event_text(parsed)
    return None if summary is None else (summary.what, summary.level, summary.text)


def test_shield_interventions_are_described_in_words() -> None:
    summary = summarise_event(kind="tick", episode=4, tick=99, rule="predicted", missed=0, fault=0)
    text = "episode 4, tick 99: the command would have left the safe set; the fallback took over"
    assert summary == ("safety", "warn", text)


def test_missed_ticks_name_their_cause() -> None:
    summary = summarise_event(kind="tick", episode=1, tick=2, rule="none", missed=3, cause="host", fault=0)
    assert summary == ("timing", "warn", "episode 1, tick 2: 3 missed because of the machine")


def test_a_fault_is_reported_with_its_cause_and_hint_and_so_is_its_end() -> None:
    fault = {"kind": "transition", "before": "running", "state": "fault", "fault": "lease", "detail": ""}
    assert summarise_event(**fault, cause="late", hint="look") == ("safety", "bad", "fault: late; look")
    assert summarise_event(**fault, message="running -> fault") == ("safety", "bad", "fault: running -> fault")
    assert summarise_event(kind="transition", before="fault", state="ready", fault=None) == (
        "safety",
        "good",
        "re-armed",
    )


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "policy_refused", "policy": 4, "reason": "too slow"}, "policy 4 refused: too slow"),
        ({"kind": "warning", "message": "careful"}, "careful"),
        ({"kind": "warning", "source": "replay", "message": "careful"}, "replay: careful"),
        ({"kind": "log_goes_on", "gap": 3}, "log goes on: gap 3"),
        ({"kind": "something_new"}, "something new"),
    ],
)
def test_events_are_described_in_a_few_words(event: dict[str, object], text: str) -> None:
    summary = summarise_event(**event)
    assert summary is not None
    assert summary[2] == text


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "transition", "before": "ready", "state": "running", "fault": None},
        {"kind": "transition", "event": "plugged_in", "state": "fault", "fault": "link_unplugged", "cause": "closed"},
        {"kind": "policy_admitted"},
    ],
)
def test_an_ordinary_episode_is_not_news(event: dict[str, object]) -> None:
    assert summarise_event(**event) is None


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"\xff", b"null", b"[" * 5000])
def test_lines_that_are_not_events_are_left_out(line: bytes) -> None:
    assert parse_event(line) is None


@given(
    st.dictionaries(st.sampled_from(["policy", "reason", "missed", "rule", "state", "message"]), st.text(max_size=8))
)
def test_no_event_is_too_odd_to_describe(fields: dict[str, str]) -> None:
    for kind in ("tick", "transition", "policy_refused", "fault", "stop", "ended", "event"):
        event_text(Event(0.0, kind, fields))


def test_control_characters_are_removed() -> None:
    summary = summarise_event(kind="warning", message="\x1b[31mred")
    assert summary is not None
    assert "\x1b" not in summary[2]
