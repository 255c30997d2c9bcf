"""Sentences that describe events, shared by ``onrig watch``, the live page and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.printable import printable
from onrig.runtime.run_state.events import COUNT_FIELD, n_occurrences

Fields = Mapping[str, object]

VERDICTS: Final = {
    "policy_admitted": "admitted",
    "policy_refused": "refused",
    "policy_rolled_back": "rolled back",
    "policy_probation_passed": "passed probation",
    "policy_probation_failed": "failed probation",
    "policy_reinstated": "admitted",
}
"""Outcome for a policy, keyed by the kind of the event."""
_ROUTINE_KINDS: Final = (
    "policy_admitted",
    "policy_probation_passed",
    "policy_reinstated",
    "policy_warning",
    "push_passed",
)
_RULE_TEXTS: Final = {
    "finite": "the policy's output was not a number; the fallback acted",
    "range": "the command was limited to its range",
    "rate": "the rate of the command was limited",
    "jerk": "the jerk of the command was limited",
    "envelope": "the state left the envelope; the fallback took over",
    "predicted": "the command would have left the safe set; the fallback took over",
    "fallback": "the fallback remained active",
}
_MISS_CAUSES: Final = {"link": "the link", "program": "the control program", "host": "the machine"}
_REPORTED_STATES: Final = ("fault", "paused", "fading", "disconnected")
_ERROR_KINDS: Final = ("error", "fault", "post_mortem_failed", "display_failed", "log_stopped")


class Event(NamedTuple):
    """One line of ``events.jsonl``."""

    t_unix_s: float
    kind: str
    fields: Fields

    @property
    def n_occurrences(self) -> int:
        """Number of events in the line."""
        return n_occurrences(self.fields)


class EventText(NamedTuple):
    """Sentence that describes an event."""

    what: str
    """``safety``, ``timing``, ``policy`` or ``run``."""
    level: str
    """``note``, ``good``, ``warn`` or ``bad``."""
    text: str


def parse_event(line: bytes) -> Event | None:
    """Parse one line; return None if it is damaged or not an event."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    t, kind = fields.pop("t_unix_s", 0.0), str(fields.pop("kind", "?"))
    return Event(float(t), kind, fields) if isinstance(t, int | float) else None


def event_text(event: Event) -> EventText | None:
    """Return the sentence for an event; None for routine events."""
    text = _event_text(event.kind, event.fields)
    return text and text._replace(text=printable(text.text))


def with_count(event: Event, text: str) -> str:
    """Append the number of occurrences to a sentence if there was more than one."""
    return f"{text} ({event.n_occurrences} times)" if event.n_occurrences > 1 else text


def reason_of(event: Event) -> str:
    """Return why a policy was refused or rolled back: the event's detail or, without one, its stage and reason."""
    return _reason(event.fields)


def _event_text(kind: str, fields: Fields) -> EventText | None:
    if kind in _ROUTINE_KINDS:
        return None
    policy, source = fields.get("policy"), str(fields.get("source") or "")
    message = str(fields.get("message") or fields.get("reason") or "")
    text = f"{source}: {message}" if source else message
    match kind:
        case "tick":
            return _tick(fields)
        case "transition":
            return _transition(fields)
        case "fault":
            return EventText("safety", "bad", message)
        case "error":
            return EventText("run", "bad", text)
        case "warning":
            return EventText("run", "warn", text)
        case "event":
            return EventText("run", "note", text)
        case "actuators":
            return EventText("safety", "note", f"actuators {message}")
        case "promise_withdrawn":
            return _withdrawal(fields)
        case "policy_refused":
            # A policy refused early has no number.
            return EventText(
                "policy", "warn", f"{f'policy {policy}' if policy else 'a policy'} refused: {_reason(fields)}"
            )
        case "policy_rolled_back":
            return EventText("policy", "bad", f"policy {policy} rolled back: {_reason(fields)}")
        case "policy_probation_failed":
            return EventText("policy", "warn", f"policy {policy} failed its probation: {_reason(fields)}")
        case "policy_withheld":
            return EventText("policy", "note", message)
        case "policy_not_filed" | "policy_not_reinstated":
            return EventText("policy", "warn", f"policy {policy}: {_reason(fields)}")
        case "mirror_differs":
            episode = fields.get("episode")
            return EventText("run", "bad", f"the learner's mirror differs from the memory after episode {episode}")
        case "stop":
            return EventText("safety", "warn", f"stop, {fields.get('how')} (requested by {fields.get('by')})")
        case "learner_attached" | "learner_resumed":
            change = "attached" if kind == "learner_attached" else "reconnected"
            return EventText("run", "note", f"learner {fields.get('learner', '')} {change}")
        case "learner_turned_away":
            return EventText("run", "warn", f"a learner with an unknown key was rejected ({fields.get('key')})")
        case "connections_ended":
            description = f"{fields.get('connections')} connections from {fields.get('address')} were closed"
            return EventText("run", "warn", f"{description}: {fields.get('why')}")
        case "events_dropped":
            return EventText("run", "warn", f"events.jsonl is full; omitted so far: {fields.get('which')}")
        case "memory_restored":
            inserted = fields.get("inserted")
            return EventText("run", "note", f"memory restored: {inserted} experiences written so far")
        case "ended":
            return EventText("run", "note" if fields.get("code") == 0 else "warn", f"ended: {message}")
    level = "bad" if kind in _ERROR_KINDS or fields.get("fault") else "note"
    return EventText("run", level, f"{kind.replace('_', ' ')}: {format_fields(fields)}".removesuffix(": "))


def _withdrawal(fields: Fields) -> EventText:
    fraction, claimed = (100 * float(str(fields.get(key) or 0)) for key in ("share", "claimed"))
    in_episodes = f"in {fields.get('episodes')} of the last {fields.get('of')} episodes"
    steps = f"{in_episodes} more than {claimed:.2g} % of the steps"
    evidence = f"{steps} fit none of its plants ({fraction:.2g} % in the last one)"
    return EventText("safety", "bad", f"the promise '{fields.get('promise')}' is withdrawn: {evidence}")


def _reason(fields: Fields) -> str:
    if fields.get("detail"):
        return str(fields["detail"])
    return ": ".join(str(part) for part in (fields.get("stage"), fields.get("reason")) if part)


def format_fields(fields: Fields) -> str:
    """Format the fields of an event that has no sentence, as names and values."""
    return ", ".join(f"{k} {v}" for k, v in fields.items() if k != COUNT_FIELD and v is not None and v != "")


def _tick(fields: Fields) -> EventText:
    position = f"episode {fields.get('episode')}, tick {fields.get('tick')}"
    if fields.get("fault"):
        return EventText("safety", "bad", f"{position}: the device latched fault {fields.get('fault')}")
    missed = fields.get("missed")
    if missed:
        cause = _MISS_CAUSES.get(str(fields.get("cause")), "an unknown cause")
        return EventText("timing", "warn", f"{position}: {missed} missed because of {cause}")
    return EventText("safety", "warn", f"{position}: {_RULE_TEXTS.get(str(fields.get('rule')), 'a rule acted')}")


def _transition(fields: Fields) -> EventText | None:
    state, fault = str(fields.get("state")), fields.get("fault")
    if fields.get("event") == "plugged_in":  # a warning has more detail
        return None
    if fault:
        message = "; ".join(str(part) for part in (fields.get("cause"), fields.get("hint")) if part)
        return EventText("safety", "bad", f"{state}: {message or fields.get('message') or fault}")
    if str(fields.get("before")) == "fault":
        return EventText("safety", "good", "re-armed")
    if state in _REPORTED_STATES:
        return EventText("safety", "note", f"{state}{': ' + str(fields.get('detail')) if fields.get('detail') else ''}")
    return None
