"""Channels of a log, and their messages other than steps: episodes, policy changes, events, log-panel lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.log import wire
from onrig.runtime.log.steps import ENUMS, PACKAGE, StepMessages
from onrig.runtime.log.wire import Enum, Field, File, Message
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_state.episodes import EpisodeRow

EPISODE: Final = Message(
    "Episode",
    (
        Field("episode", 1, "fixed32"),
        Field("kind", 2, "enum", ".onrig.Kind"),
        Field("steps", 3, "fixed32"),
        Field("return", 4, "double"),
        Field("mean_reward", 5, "double"),
        Field("normalized", 6, "double"),
        Field("exploration", 7, "double"),
        Field("interventions", 8, "fixed32"),
        Field("missed_ticks", 9, "fixed32"),
        Field("policy_id", 10, "fixed32"),
        Field("t_mono_ns", 11, "sfixed64"),
    ),
)
"""A row of ``episodes.csv``."""
POLICY: Final = Message(
    "Policy",
    (
        Field("policy_id", 1, "fixed32"),
        Field("previous", 2, "fixed32"),
        Field("episode", 3, "fixed32"),
        Field("kind", 4, "enum", ".onrig.Kind"),
        Field("tick", 5, "fixed64"),
        Field("probation", 6, "bool"),
        Field("rolled_back", 7, "bool"),
    ),
)
"""Change of policy at this tick; ``previous`` is 0 at the start."""
EVENT: Final = Message(
    "Event",
    (
        Field("t_unix_s", 1, "double"),
        Field("kind", 2, "string"),
        Field("source", 3, "string"),
        Field("message", 4, "string"),
        Field("json", 5, "string"),
    ),
)
"""A line of ``events.jsonl``; ``json`` contains it in full."""
LOOP_STATE: Final = Message("Loop", (Field("tick", 1, "fixed64"), Field("json", 2, "string")))
"""State of the loop between two episodes, before the record ``tick``, as far as the records do not contain it: mainly
the state of the exploration. Runs resume from it, and a replay continues from it after lost records."""
LOG: Final = Message(
    "Log",
    (
        Field("timestamp", 1, "message", ".google.protobuf.Timestamp"),
        Field("level", 2, "enum", ".foxglove.LogLevel"),
        Field("message", 3, "string"),
        Field("name", 4, "string"),
        Field("file", 5, "string"),
        Field("line", 6, "fixed32"),
    ),
)
"""The event as text, in a ``foxglove.Log`` for Foxglove's log panel."""
_LOG_LEVEL: Final = Enum(
    "LogLevel", (("UNKNOWN", 0), ("DEBUG", 1), ("INFO", 2), ("WARNING", 3), ("ERROR", 4), ("FATAL", 5))
)
INFO, WARNING, ERROR = 2, 3, 4


# The well-known type uses varints, whose width varies.
_TIMESTAMP_FILE: Final = File(
    "google/protobuf/timestamp.proto",
    "google.protobuf",
    (Message("Timestamp", (Field("seconds", 1, "int64"), Field("nanos", 2, "int32"))),),
)


def descriptors(message: Message) -> bytes:
    """Return the FileDescriptorSet that a reader needs for one of the messages above."""
    if message is LOG:
        imports = (_TIMESTAMP_FILE.name,)
        return wire.descriptor_set(
            (_TIMESTAMP_FILE, File("foxglove/Log.proto", "foxglove", (LOG,), (_LOG_LEVEL,), imports))
        )
    return wire.descriptor_set((File(f"onrig/{message.name.lower()}.proto", PACKAGE, (message,), ENUMS),))


class Channel(NamedTuple):
    """One channel: Protocol Buffers messages of one type."""

    topic: str
    message: str
    """Full name of the message type."""
    descriptors: bytes
    """FileDescriptorSet of the type and everything that it uses."""


STEPS: Final = "/onrig/step"
EPISODES: Final = "/onrig/episode"
POLICIES: Final = "/onrig/policy"
LOOP: Final = "/onrig/loop"
EVENTS: Final = "/onrig/event"
LINES: Final = "/onrig/log"
_MESSAGES_BY_TOPIC: Final = {EPISODES: EPISODE, POLICIES: POLICY, LOOP: LOOP_STATE, EVENTS: EVENT}


def channels(steps: StepMessages) -> tuple[Channel, ...]:
    """Return all channels of a rig's log; ``steps`` encodes its step records."""
    return (
        Channel(STEPS, f"{PACKAGE}.Step", wire.descriptor_set((steps.file,))),
        *(Channel(topic, f"{PACKAGE}.{m.name}", descriptors(m)) for topic, m in _MESSAGES_BY_TOPIC.items()),
        Channel(LINES, "foxglove.Log", descriptors(LOG)),
    )


def timestamp(t_ns: int) -> bytes:
    """Encode a google.protobuf.Timestamp."""
    seconds, nanos = divmod(t_ns, 1_000_000_000)
    return wire.encode(_TIMESTAMP_FILE.messages[0], (seconds, nanos))


def encode_episode(row: EpisodeRow) -> bytes:
    """Encode a row of ``episodes.csv`` as an ``onrig.Episode``; a missing value is NaN."""
    kind = Kind.TRAIN if row.kind == "train" else Kind.EVAL
    values = (math.nan if value is None else value for value in row[2:])
    return wire.encode(EPISODE, (row.episode, kind, *values))


_WARNING_KINDS: Final = ("warning", "policy_refused", "policy_warning", "learner_turned_away", "not_reproducible")
_ERROR_KINDS: Final = ("error", "fault", "log_stopped")
Values = tuple[float | str | bytes, ...]
"""Fields of a message, in order."""


class LoggedEvent(NamedTuple):
    """One event."""

    t_unix_s: float
    kind: str
    source: str
    message: str
    summary: str
    """Message of the event, or its fields as text if it has no message."""
    text: str
    """The complete line."""

    @property
    def fields(self) -> Values:
        """Fields of ``onrig.Event``, in order."""
        return (self.t_unix_s, self.kind, self.source, self.message, self.text)

    def line(self, t_ns: int) -> Values:
        """Return the fields of ``foxglove.Log``, in order."""
        level = INFO
        if self.kind in _ERROR_KINDS:
            level = ERROR
        elif self.kind in _WARNING_KINDS:
            level = WARNING
        return (timestamp(t_ns), level, f"{self.kind}: {self.summary}", self.source or "replay", "", 0)


def read_event(line: bytes) -> LoggedEvent | None:
    """Parse a line; return None if it is not an event."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    t_unix_s, kind = fields.pop("t_unix_s", 0.0), str(fields.pop("kind", ""))
    source, message = str(fields.pop("source", "")), str(fields.pop("message", ""))
    remainder = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
    time_s = t_unix_s if isinstance(t_unix_s, float | int) else 0.0
    return LoggedEvent(time_s, kind, source, message, message or remainder, line.decode("utf-8", "replace"))


class PolicyTracker:
    """Tracker of the acting policy through the records, in order."""

    def __init__(self) -> None:
        self._policy = 0

    def changes(self, records: NDArray[np.void]) -> Iterator[tuple[int, Values]]:
        """Yield, for each record at which the acting policy changes, its time in ns and an ``onrig.Policy``."""
        policy_records = records[(records["flags"] & Flag.NO_ACTION == 0) & (records["kind"] != Kind.RESET)]
        ids = policy_records["policy_id"]
        previous = np.concatenate([[self._policy], ids[:-1]]) if len(ids) else ids
        for index in np.flatnonzero(ids != previous).tolist():
            r = policy_records[index]
            flags = int(r["flags"])
            yield (
                int(r["t_mono_ns"]),
                (
                    *(int(r["policy_id"]), int(previous[index]), int(r["episode"]), int(r["kind"]), int(r["tick"])),
                    *(flags & Flag.PROBATION != 0, flags & Flag.ROLLED_BACK != 0),
                ),
            )
        if len(ids):
            self._policy = int(ids[-1])
