"""The kinds of events: who can bring one about, and which fields make two of a kind the same.  One table, pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

Value = int | float | str | bool | None
Fields = Mapping[str, Value]

MAX_FILE_BYTES: Final = 64 << 20
"""Of ``events.jsonl``; what is vital is written even beyond."""
COUNT: Final = "count"
"""Field of a line that stands for several events: how many."""


class Weight(enum.Enum):
    """Who brings an event about, and so how much of the file such events may fill."""

    OUTSIDE = enum.auto()
    """A peer or a stranger, as often as he likes."""
    OWN = enum.auto()
    """The run itself, at its own pace."""
    VITAL = enum.auto()
    """What must never be missing: it always fits."""

    @property
    def room(self) -> int | None:
        """Bytes that the file may have with such an event in it; None: any number."""
        return {Weight.OUTSIDE: MAX_FILE_BYTES // 4, Weight.OWN: MAX_FILE_BYTES * 3 // 4, Weight.VITAL: None}[self]

    @property
    def longest_text(self) -> int:
        """Characters of one of its fields."""
        return 300 if self is Weight.OUTSIDE else 1000


class Kind(NamedTuple):
    """What is known of one kind of event."""

    weight: Weight = Weight.OWN
    same: tuple[str, ...] | None = None
    """Fields that two events share which are counted in one line, few values each; None: each has a line of its own."""
    adds: tuple[str, ...] = ()
    """Fields that are added up in such a line; of all others it shows the last event's."""


_KINDS: Final = {
    "learner_attached": Kind(Weight.OUTSIDE, ("learner", "pushes")),
    "learner_resumed": Kind(Weight.OUTSIDE, ("learner", "pushes")),
    "push_passed": Kind(Weight.OUTSIDE, ("learner",)),
    "learner_turned_away": Kind(Weight.OUTSIDE, ()),
    "connections_ended": Kind(Weight.OUTSIDE, ("why",), ("connections",)),
    "policy_refused": Kind(Weight.OUTSIDE, ("learner", "stage")),
    "policy_warning": Kind(Weight.OUTSIDE, ("reason",)),
    "policy_admitted": Kind(Weight.OUTSIDE),
    "policy_rolled_back": Kind(Weight.OUTSIDE),
    "policy_probation_failed": Kind(Weight.OUTSIDE),
    "policy_probation_passed": Kind(Weight.OUTSIDE),
    "policy_not_filed": Kind(Weight.OUTSIDE, ("reason",)),
    "rolled_back_not_filed": Kind(Weight.OUTSIDE, ("reason",)),
    "mirror_differs": Kind(Weight.OUTSIDE, ()),
    "tick": Kind(Weight.OWN, ("episode", "rule", "cause"), ("missed",)),
    "error": Kind(Weight.OWN, ("source", "message")),
    "warning": Kind(Weight.OWN, ("source", "message")),
    "fault": Kind(Weight.VITAL),
    "stop": Kind(Weight.VITAL),
    "ended": Kind(Weight.VITAL),
    "not_reproducible": Kind(Weight.VITAL),
    "log_stopped": Kind(Weight.VITAL),
    "log_goes_on": Kind(Weight.VITAL),
    "resumed": Kind(Weight.VITAL),
    "events_dropped": Kind(Weight.VITAL),
}
_PLAIN: Final = Kind()
_VITAL: Final = Kind(Weight.VITAL)


def kind_of(kind: str, fields: Fields) -> Kind:
    """What is known of an event: whatever bears a fault is vital."""
    return _VITAL if fields.get("fault") else _KINDS.get(kind, _PLAIN)


def shortened(fields: Fields, longest: int) -> dict[str, Value]:
    """The fields, with texts cut to ``longest`` characters."""
    return {
        name: f"{value[: longest - 3]}..." if isinstance(value, str) and len(value) > longest else value
        for name, value in fields.items()
    }


def times(fields: Mapping[str, object]) -> int:
    """How many events a line of ``events.jsonl`` stands for."""
    count = fields.get(COUNT, 1)
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1
