"""Reader of a run's log files: the records exactly as written by the loop, and the events.

A file whose writer was killed is truncated; it is read up to its last complete chunk.  For plots, use the public
readers, which open the same files (docs/logs.md).
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

import msgspec
import numpy as np
from mcap.exceptions import EndOfFile
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Attachment, Channel, Message, Metadata, Schema
from mcap.stream_reader import StreamReader
from mcap.summary import Summary
from mcap.writer import MCAP0_MAGIC

from onrig.hw.rig import Rig
from onrig.runtime.files import open_file
from onrig.runtime.log import wire
from onrig.runtime.log.mcap_file import FORMAT_VERSION, METADATA_NAME
from onrig.runtime.log.messages import EVENTS, LOOP, STEPS
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.log.steps import Records, StepMessages
from onrig.runtime.run_config import RunConfig

_BATCH_SIZE: Final = 4096
_MAX_RECORD_BYTES: Final = 1 << 28
"""Maximum size, in bytes, of one record of the file; far above that of any record that the writer produces."""
_BYTES_PER_STEP: Final = 125
"""Approximate compressed size of a step."""
_RECORD_HEADER: Final = struct.Struct("<BQ")
"""Bytes of opcode and length before each record of the file."""

_NO_TICK: Final = (1 << 63) - 1

Fields = dict[str, object]


class Event(NamedTuple):
    """A line of ``events.jsonl``."""

    fields: Fields


class StoredLoopState(NamedTuple):
    """The loop's state stored between two episodes, before the record number ``fields["tick"]``."""

    fields: Fields


class LogDamagedError(Exception):
    """Raised for a log file that is unreadable or was written by a different version; the message names the file."""


class LogStart(NamedTuple):
    """Start of a log file: its metadata (strings), and its configuration."""

    path: Path
    metadata: dict[str, str]
    attachments: dict[str, bytes]


class LogEnd(NamedTuple):
    """End of a log file; ``is_complete``: whether its writer finished it."""

    path: Path
    is_complete: bool


Part = LogStart | LogEnd | Records | Event | StoredLoopState
"""Parts of a log, in order; records come in batches."""


def read_log(folder: Path, rig: Rig, *, behaviour: bool = False, inputs: Sequence[str] = ()) -> Iterator[Part]:
    """Read all log files of a run; ``behaviour`` and ``inputs`` as for `StepMessages`.  Raises LogDamagedError."""
    for path in log_files(folder):
        yield from _read_file(path, StepMessages(rig, behaviour=behaviour, inputs=inputs))


def read_records(folder: Path, config: RunConfig) -> Iterator[Records]:
    """Read the records of all log files of a run in batches, each record once; raises LogDamagedError.

    Duplicates are skipped: a restarted replay process may write records again, and a resumed lockstep run repeats the
    records after its checkpoint bit for bit.
    """
    rig, behaviour, inputs = config.rig, config.stochastic, config.input_names
    files = log_files(folder)
    starts = [_read_start(path, StepMessages(rig, behaviour=behaviour, inputs=inputs)) for path in files]
    sessions: dict[str, int] = {}
    for index, (path, (session, _)) in enumerate(zip(files, starts, strict=True)):
        repeated_ticks = [
            tick for later_session, tick in starts[index + 1 :] if later_session != session and config.lockstep
        ]
        for part in _read_file(path, StepMessages(rig, behaviour=behaviour, inputs=inputs)):
            if isinstance(part, np.ndarray):
                is_new = part["seq"].astype(np.int64) > sessions.get(session, -1)
                records = part[is_new & (part["tick"] < min(repeated_ticks))] if repeated_ticks else part[is_new]
                sessions[session] = int(part["seq"][-1]) if len(part) else sessions.get(session, -1)
                if len(records):
                    yield records


def _read_start(path: Path, messages: StepMessages) -> tuple[str, int]:
    """Return the session of a log file and the tick of its first record, or the largest number if it has no records."""
    session = ""
    with contextlib.closing(_read_file(path, messages)) as parts:
        for part in parts:
            if isinstance(part, LogStart):
                session = part.metadata.get("session", "")
            elif isinstance(part, np.ndarray) and len(part):
                return session, int(part["tick"][0])
    return session, _NO_TICK


def unfinished_files(folder: Path) -> list[Path]:
    """List the log files without an index at their end, which are being written or whose writer was killed."""
    unfinished_paths = []
    for path in log_files(folder):
        try:
            with open_file(path, None) as file:
                if _read_summary(file) is None:
                    unfinished_paths.append(path)
        except OSError:
            unfinished_paths.append(path)
    return unfinished_paths


def read_last(
    folder: Path, rig: Rig, max_records: int, *, behaviour: bool = False, inputs: Sequence[str] = ()
) -> Records:
    """Read the newest records, at most ``max_records``; raises LogDamagedError."""
    messages = StepMessages(rig, behaviour=behaviour, inputs=inputs)
    records = messages.decode(b"")
    for path in reversed(log_files(folder)):
        if len(records) < max_records:
            records = np.concatenate([_read_newest(path, messages, max_records - len(records)), records])
    return records


def _read_newest(path: Path, messages: StepMessages, max_records: int) -> Records:
    expected_schema = wire.descriptor_set((messages.file,))
    newest_messages: list[bytes] = []
    try:
        with open_file(path, None) as file:
            if _read_summary(file) is not None:
                for schema, _, message in make_reader(file).iter_messages(STEPS, reverse=True):
                    if schema is None or schema.data != expected_schema:
                        raise LogDamagedError(f"{path}: its steps have the layout of another version or rig")
                    newest_messages.append(message.data)
                    if len(newest_messages) >= max_records:
                        break
                return messages.decode(b"".join(reversed(newest_messages)))
    except LogDamagedError:
        raise
    except Exception as error:  # same as in _read_file
        raise LogDamagedError(f"{path}: {str(error) or type(error).__name__}") from error
    records = messages.decode(b"")  # its writer was killed, so there is no index
    for part in _read_file(path, messages):
        if isinstance(part, np.ndarray):
            records = np.concatenate([records, part])[-max_records:]
    return records


def _read_summary(file: IO[bytes]) -> Summary | None:
    """Return the index at a file's end; None if its writer did not finish it, or it is damaged."""
    try:
        return make_reader(file).get_summary()
    except Exception:  # mcap's errors have no common base; reading the file reports the problem
        return None


def log_size(folder: Path) -> int:
    """Return the total size of a run's log files, in bytes."""
    return sum(path.stat().st_size for path in log_files(folder))


def count_steps(folder: Path) -> int:
    """Return the number of records in a run's log files; approximate for an unfinished file."""
    return sum(_count_file(path) for path in log_files(folder))


def _count_file(path: Path) -> int:
    try:
        with open_file(path, None) as file:
            summary = _read_summary(file)
    except OSError:
        return 0
    if summary is None or summary.statistics is None:
        return path.stat().st_size // _BYTES_PER_STEP
    steps = [c.id for c in summary.channels.values() if c.topic == STEPS]
    return sum(summary.statistics.channel_message_counts.get(channel, 0) for channel in steps)


def _read_file(path: Path, messages: StepMessages) -> Generator[Part, None, None]:
    expected = wire.descriptor_set((messages.file,))
    schemas: dict[int, Schema] = {}
    topics: dict[int, str] = {}
    metadata: dict[str, str] = {}
    attachments: dict[str, bytes] = {}
    has_started = False
    pending_messages: list[bytes] = []

    def batch() -> Records:
        records = messages.decode(b"".join(pending_messages))
        pending_messages.clear()
        return records

    is_complete = True
    try:
        with open_file(path, None) as file:
            complete_records = io.BufferedReader(_CompleteRecords(cast(io.RawIOBase, file.raw)))
            for record in StreamReader(
                complete_records, validate_crcs=True, record_size_limit=_MAX_RECORD_BYTES
            ).records:
                if isinstance(record, Metadata) and record.name == METADATA_NAME:
                    metadata = dict(record.metadata)
                    if metadata.get("format") != FORMAT_VERSION:
                        raise LogDamagedError(
                            f"{path}: format {metadata.get('format')}, this version reads {FORMAT_VERSION}"
                        )
                elif isinstance(record, Attachment):
                    attachments[record.name] = record.data
                elif isinstance(record, Schema):
                    schemas[record.id] = record
                elif isinstance(record, Channel):
                    topics[record.id] = record.topic
                    if record.topic == STEPS and schemas[record.schema_id].data != expected:
                        raise LogDamagedError(f"{path}: its steps have the layout of another version or rig")
                elif isinstance(record, Message):
                    if not has_started:
                        has_started = True
                        yield LogStart(path, metadata, attachments)
                    topic = topics[record.channel_id]
                    if topic == STEPS:
                        pending_messages.append(record.data)
                        if len(pending_messages) >= _BATCH_SIZE:
                            yield batch()
                    elif topic in (EVENTS, LOOP):
                        if pending_messages:
                            yield batch()
                        yield (Event if topic == EVENTS else StoredLoopState)(_decode_json(record.data))
    except EndOfFile:
        is_complete = False
    except LogDamagedError:
        raise
    except OSError as error:
        raise LogDamagedError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # errors of the decompressors and of mcap have no common base
        raise LogDamagedError(f"{path}: {str(error) or type(error).__name__}") from error
    if pending_messages:
        yield batch()
    yield LogEnd(path, is_complete)


class _CompleteRecords(io.RawIOBase):
    """View of a file's complete records, without a truncated one at the end."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._remaining_bytes = _complete_bytes(file)
        file.seek(0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n = self._file.readinto(memoryview(buffer)[: self._remaining_bytes]) or 0
        self._remaining_bytes -= n
        return n


def _complete_bytes(file: io.RawIOBase) -> int:
    """Return the end of the last complete record before the footer, or the file's length if footer and closing magic
    are present."""
    size = file.seek(0, os.SEEK_END)
    offset = len(MCAP0_MAGIC)
    while offset + _RECORD_HEADER.size <= size:
        file.seek(offset)
        opcode, length = _RECORD_HEADER.unpack(file.read(_RECORD_HEADER.size) or b"")
        if offset + _RECORD_HEADER.size + length > size:
            return offset
        end = offset + _RECORD_HEADER.size + length
        if opcode == Opcode.FOOTER:
            return size if size >= end + len(MCAP0_MAGIC) else offset
        offset = end
    return min(offset, size)


def _decode_json(message: bytes) -> Fields:
    """Return the last text field of an ``onrig.Event`` or ``onrig.Loop``; fields are in order."""
    offset = 0
    content = b""
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        if key & 7 == wire.LENGTH_DELIMITED:
            length, offset = _read_varint(message, offset)
            content, offset = message[offset : offset + length], offset + length
        else:
            offset += 8
    return msgspec.json.decode(content, type=Fields)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < wire.CONTINUATION_BIT:
            return value, offset
