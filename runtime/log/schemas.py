"""The other messages of a log, each with its schema: episodes, policy changes, events, and the log panel's own."""

from __future__ import annotations

from typing import Final

from onrig.runtime.log import wire
from onrig.runtime.log.steps import ENUMS, PACKAGE
from onrig.runtime.log.wire import Enum, Field, File, Message

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
"""From this tick on another policy acts; ``previous`` is 0 at the start."""
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
"""A line of ``events.jsonl``: the whole of it in ``json``."""
LOOP: Final = Message("Loop", (Field("tick", 1, "fixed64"), Field("json", 2, "string")))
"""Between two episodes, before the record ``tick``: what the loop knows that no record tells, the state of the
exploration above all.  A run is resumed from it, and a replay goes on from it where records were lost."""
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
"""The same as a line for people: ``foxglove.Log``, which Foxglove's log panel shows."""
_LEVEL: Final = Enum(
    "LogLevel", (("UNKNOWN", 0), ("DEBUG", 1), ("INFO", 2), ("WARNING", 3), ("ERROR", 4), ("FATAL", 5))
)
INFO, WARNING, ERROR = 2, 3, 4


# The well-known type counts in varints, which have no fixed width.
_TIMESTAMP: Final = File(
    "google/protobuf/timestamp.proto",
    "google.protobuf",
    (Message("Timestamp", (Field("seconds", 1, "int64"), Field("nanos", 2, "int32"))),),
)


def descriptors(message: Message) -> bytes:
    """Return the FileDescriptorSet that a reader needs for one of the messages above."""
    if message is LOG:
        imports = (_TIMESTAMP.name,)
        return wire.descriptor_set((_TIMESTAMP, File("foxglove/Log.proto", "foxglove", (LOG,), (_LEVEL,), imports)))
    return wire.descriptor_set((File(f"onrig/{message.name.lower()}.proto", PACKAGE, (message,), ENUMS),))


def timestamp(t_ns: int) -> bytes:
    """Encode a google.protobuf.Timestamp."""
    seconds, nanos = divmod(t_ns, 1_000_000_000)
    return wire.encode(_TIMESTAMP.messages[0], (seconds, nanos))
