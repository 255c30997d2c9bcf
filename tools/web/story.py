"""The lines of ``events.jsonl`` in words: policies that came and went, what the shield did, what befell the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from onrig.runtime.printable import printable
from onrig.runtime.run_state.event_kinds import times

Event = dict[str, object]
Item = dict[str, object]

_KEPT: Final = 200
_KEPT_POLICIES: Final = 4000
_VERDICTS: Final = {
    "policy_admitted": "admitted",
    "policy_refused": "refused",
    "policy_rolled_back": "rolled back",
    "policy_probation_passed": "passed probation",
    "policy_probation_failed": "failed probation",
    "policy_reinstated": "admitted",
}
_RULES: Final = {
    "finite": "the policy's answer was no number: the fallback acted",
    "range": "the command was cut to the range",
    "rate": "the command was slowed to the rate limit",
    "jerk": "the command was slowed to the jerk limit",
    "envelope": "the envelope was left: the fallback took over",
    "predicted": "the command would have led out of the safe states: the fallback took over",
    "fallback": "the fallback went on acting",
}
_CAUSES: Final = {"link": "the link", "program": "this program", "host": "the machine"}
_TOLD_STATES: Final = ("fault", "paused", "fading", "disconnected")


class Story:
    """Sorts events; keeps the newest."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        """Of safety and of the run; ``what``, ``level`` (note, good, warn, bad), ``text``, ``t`` (Unix time in s)."""
        self.policies: list[list[object]] = []
        """[id, verdict, reason] as they came; many admissions, few of the others."""

    def take(self, lines: Iterable[bytes]) -> tuple[list[Item], list[list[object]]]:
        """Take the next lines; return the new items and policies."""
        items: list[Item] = []
        policies: list[list[object]] = []
        for line in lines:
            try:
                event = msgspec.json.decode(line, type=dict[str, object])
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
                continue
            kind = str(event.get("kind", ""))
            if kind in _VERDICTS:
                policies.append([event.get("policy"), _VERDICTS[kind], _reason(event)])
            item = _item(kind, event)
            if item is not None:
                items.append(item)
        self.items = [*self.items, *items][-_KEPT:]
        self.policies = [*self.policies, *policies][-_KEPT_POLICIES:]
        return items[-_KEPT:], policies[-_KEPT_POLICIES:]


def _reason(event: Event) -> str:
    if event.get("detail"):
        return str(event["detail"])
    return ": ".join(str(part) for part in (event.get("stage"), event.get("reason")) if part)


def _item(kind: str, event: Event) -> Item | None:
    """One line for people, or None for what is none of their business."""
    described = _describe(kind, event)
    if described is None:
        return None
    what, level, text = described
    count = times(event)
    text += f" ({count} times)" if count > 1 else ""
    return {"t": event.get("t_unix_s"), "what": what, "level": level, "text": printable(text)}


def _describe(kind: str, event: Event) -> tuple[str, str, str] | None:
    message = str(event.get("message") or event.get("reason") or "")
    source = str(event.get("source") or "")
    match kind:
        case "tick":
            return _tick(event)
        case "policy_refused":
            which = f"policy {event['policy']}" if event.get("policy") else "a policy"  # none: it has no number
            return "policy", "warn", f"{which} refused at {_reason(event)}"
        case "policy_rolled_back":
            return "policy", "bad", f"policy {event.get('policy')} rolled back: {_reason(event)}"
        case "policy_probation_failed":
            return "policy", "warn", f"policy {event.get('policy')} failed its probation: {_reason(event)}"
        case "policy_not_filed" | "policy_not_reinstated":
            return "policy", "warn", f"policy {event.get('policy')}: {_reason(event)}"
        case "mirror_differs":
            return "run", "bad", f"the learner's mirror differs from the memory after episode {event.get('episode')}"
        case "transition":
            return _transition(event)
        case "fault":
            return "safety", "bad", message
        case "error":
            return "run", "bad", f"{source}: {message}"
        case "warning":
            return "run", "warn", f"{source}: {message}"
        case "event":
            return "run", "note", f"{source}: {message}"
        case "stop":
            return "safety", "warn", f"stop, {event.get('how')} (asked by {event.get('by')})"
        case "learner_attached" | "learner_resumed":
            came = "attached" if kind == "learner_attached" else "came back"
            return "run", "note", f"learner {event.get('learner', '')} {came}"
        case "learner_turned_away":
            return "run", "warn", f"a learner with an unknown key was turned away ({event.get('key')})"
        case "connections_ended":
            ended = f"{event.get('connections')} connections of {event.get('address')} were ended"
            return "run", "warn", f"{ended}: {event.get('why')}"
        case "events_dropped":
            return "run", "warn", f"events.jsonl is full: left out so far are {event.get('which')}"
        case "memory_restored":
            return "run", "note", f"memory restored: {event.get('inserted')} experiences written so far"
        case "ended":
            return "run", "note" if event.get("code") == 0 else "warn", f"ended: {message}"
    return None


def _tick(event: Event) -> tuple[str, str, str]:
    where = f"episode {event.get('episode')}, tick {event.get('tick')}"
    if event.get("fault"):
        return "safety", "bad", f"{where}: the device latched fault {event.get('fault')}"
    missed = event.get("missed")
    if missed:
        cause = _CAUSES.get(str(event.get("cause")), "an unknown cause")
        return "timing", "warn", f"{where}: {missed} missed by {cause}"
    return "safety", "warn", f"{where}: {_RULES.get(str(event.get('rule')), 'a rule acted')}"


def _transition(event: Event) -> tuple[str, str, str] | None:
    state, fault = str(event.get("state")), event.get("fault")
    if fault:
        return "safety", "bad", f"{state}: {event.get('cause')}; {event.get('hint')}"
    if str(event.get("before")) == "fault":
        return "safety", "good", "re-armed"
    if state in _TOLD_STATES:
        return "safety", "note", f"{state}{': ' + str(event.get('detail')) if event.get('detail') else ''}"
    return None
