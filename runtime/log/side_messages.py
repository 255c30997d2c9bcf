"""What stands in the log beside the records: lines of ``events.jsonl``, and changes of the policy that acts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.log import schemas
from onrig.runtime.record import Flag, Kind

_WARNINGS: Final = ("warning", "policy_refused", "policy_warning", "learner_turned_away", "not_reproducible")
_ERRORS: Final = ("error", "fault", "log_stopped")
Values = tuple[float | str | bytes, ...]
"""Fields of a message, in order."""


class LoggedEvent(NamedTuple):
    """One event."""

    t_unix_s: float
    kind: str
    source: str
    message: str
    said: str
    """Its message, or else its fields, for a person."""
    text: str
    """The whole line."""

    @property
    def fields(self) -> Values:
        """Those of ``onrig.Event``, in order."""
        return (self.t_unix_s, self.kind, self.source, self.message, self.text)

    def line(self, t_ns: int) -> Values:
        """The fields of ``foxglove.Log``, in order."""
        level = schemas.INFO
        if self.kind in _ERRORS:
            level = schemas.ERROR
        elif self.kind in _WARNINGS:
            level = schemas.WARNING
        return (schemas.timestamp(t_ns), level, f"{self.kind}: {self.said}", self.source or "replay", "", 0)


def read_event(line: bytes) -> LoggedEvent | None:
    """Read a line; None where it is none of ours."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    t_unix_s, kind = fields.pop("t_unix_s", 0.0), str(fields.pop("kind", ""))
    source, message = str(fields.pop("source", "")), str(fields.pop("message", ""))
    rest = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
    at_s = t_unix_s if isinstance(t_unix_s, float | int) else 0.0
    return LoggedEvent(at_s, kind, source, message, message or rest, line.decode("utf-8", "replace"))


class ActingPolicy:
    """Follows who acts through the records, in order."""

    def __init__(self) -> None:
        self._policy = 0

    def changes(self, records: NDArray[np.void]) -> Iterator[tuple[int, Values]]:
        """Yield, for each record from which on another policy acts, its time in ns and an ``onrig.Policy``."""
        acting = records[(records["flags"] & Flag.NO_ACTION == 0) & (records["kind"] != Kind.RESET)]
        ids = acting["policy_id"]
        before = np.concatenate([[self._policy], ids[:-1]]) if len(ids) else ids
        for at in np.flatnonzero(ids != before).tolist():
            r = acting[at]
            flags = int(r["flags"])
            yield (
                int(r["t_mono_ns"]),
                (
                    *(int(r["policy_id"]), int(before[at]), int(r["episode"]), int(r["kind"]), int(r["tick"])),
                    *(flags & Flag.PROBATION != 0, flags & Flag.ROLLED_BACK != 0),
                ),
            )
        if len(ids):
            self._policy = int(ids[-1])
