"""Writer of a run's log as MCAP files: step records from the ring, episodes, policies and events.

Whole chunks are written every second, so that a killed run leaves a file that is readable up to a second before its
end.  A failing write interrupts the log with one event, never the process; once there is room again, the log continues
in another file and reports what is missing.  Writing shares the thread with all other work: a chunk of 200 steps takes
a millisecond, and the ring holds eight seconds at 1 kHz.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Final, cast

import msgspec
import numpy as np
from mcap.writer import CompressionType, Writer

from onrig.hw.native import variant
from onrig.runtime.files import MAX_JSON_BYTES, LineTail, read_file
from onrig.runtime.log import messages, wire
from onrig.runtime.log.messages import ActingPolicy, read_event
from onrig.runtime.log.staged_file import StagedFile, log_files, next_file
from onrig.runtime.log.steps import PACKAGE, Records, StepMessages
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeRow
from onrig.runtime.run_state.wholeness import LogAccount

FORMAT: Final = "2"
"""Of the channels and their schemas; the metadata record ``onrig`` names it.  1 had mean and std in every step."""
METADATA: Final = "onrig"
STEPS: Final = "/onrig/step"
EPISODES: Final = "/onrig/episode"
POLICIES: Final = "/onrig/policy"
LOOP: Final = "/onrig/loop"
EVENTS: Final = "/onrig/event"
LINES: Final = "/onrig/log"
_EVENTS_AT_ONCE_BYTES: Final = 1 << 16
_PUT_EVERY_S: Final = 1.0
_AGAIN_S: Final = 5.0
"""Interval at which an interrupted log checks for room."""
_ROOM_BYTES: Final = 16_000_000
"""Free space required beyond ``log.keep_free_bytes`` before the log continues."""
_TOGETHER: Final = 200
"""Records encoded per batch."""
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS_PER_FILE: Final = 10_000
"""Chunks per file: the writer keeps about 1 kB for each until the file is finished."""
_ATTACHED: Final = (("config.yaml", "application/yaml"), ("meta.json", "application/json"))


class McapLog:
    """An `onrig.runtime.log.sink.Sink` that writes MCAP."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        session: str,
        event: Callable[..., None],
        kept_state: Callable[[], bytes | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        written: Collection[str] = (),
    ) -> None:
        """``kept_state`` returns the loop's last stored state, or None; ``written``: as for `open_log`."""
        self._written = written
        self._config, self._folder, self._session, self._event = config, folder, session, event
        self._settings = config.log
        self._messages = StepMessages(config.rig, behaviour=config.stochastic, inputs=config.composed)
        self._events = LineTail(folder / "events.jsonl", from_end=True, at_once_bytes=_EVENTS_AT_ONCE_BYTES)
        self._unix_minus_mono_s = time.time() - time.monotonic()
        self._t_ns = 0
        self._policies = ActingPolicy()
        self._kept_state, self._kept = kept_state, b""
        self._waiting = bytearray()
        self._before = sum(path.stat().st_size for path in log_files(folder))
        self._finished = 0
        self._counted = True
        """Whether the bytes of the file at hand are among the finished ones."""
        self._steps = 0
        self._given = self._encoded = self._on_disk = 0
        self._next_seq = self._encoded_seq = 0
        self._logged = 0
        self._missing = 0
        self._reason = ""
        self._put_s = clock()
        self._ended_by_request = self._closed = False
        self._stopped = not self._began()
        if self._stopped:
            event("log_stopped", reason=self._reason, steps=0)

    def _began(self) -> bool:
        """Start a file; False if the disk refuses it."""
        try:
            self._open()
            self._file.put()
        except OSError as error:
            self._reason = error.strerror or str(error)
            with contextlib.suppress(OSError):  # or each attempt on a full disk would leave an empty file
                if self.path.stat().st_size == 0:
                    self.path.unlink()
            return False
        return True

    # -- the sink ----------------------------------------------------------------------------------------------------

    def add(self, records: Records) -> None:
        """Take step records, in order."""
        if not len(records):
            return
        self._given += len(records)
        self._next_seq = int(records[-1]["seq"]) + 1
        if self._stopped:
            self._missing += len(records)
            return
        self._t_ns = max(int(records[-1]["t_mono_ns"]), 0)
        self._take_state()
        if self._config.lockstep:  # virtual time stands still with the records: what happened now belongs here
            self._take_events()
        self._waiting += records.tobytes()  # to join structured arrays takes numpy far longer
        if len(self._waiting) >= _TOGETHER * records.itemsize:
            self._encode()

    def _encode(self) -> None:
        """Encode the pending records into the chunk in one batch: one by one takes ten times as long."""
        if self._stopped or not self._waiting:
            return
        kept = records = np.frombuffer(bytes(self._waiting), self._messages.layout.dtype)
        self._waiting.clear()
        self._encoded, self._encoded_seq = self._given, int(records[-1]["seq"]) + 1
        for t_ns, change in self._policies.changes(records):
            self._add(POLICIES, t_ns, wire.encode(messages.POLICY, change))
        if self._settings.decimation > 1:
            edges = records["flags"] & (Flag.FIRST | Flag.NO_ACTION)
            kept = records[(records["tick"] % self._settings.decimation == 0) | (edges != 0)]
        encoded, size = self._messages.encode(kept), self._messages.size
        times, numbers = kept["t_mono_ns"].tolist(), kept["seq"].tolist()
        for i, (t_ns, seq) in enumerate(zip(times, numbers, strict=True)):
            self._add(STEPS, t_ns, encoded[i * size : (i + 1) * size], seq)
        self._steps += len(kept)
        if self._file.staged > _CHUNK_BYTES:
            self._put()

    def episode(self, row: EpisodeRow) -> None:
        """Take the row of an episode that has ended."""
        kind = Kind.TRAIN if row.kind == "train" else Kind.EVAL
        values = (row.episode, kind, *(math.nan if value is None else value for value in row[2:]))
        self._add(EPISODES, row.t_mono_ns, wire.encode(messages.EPISODE, values))

    def turn(self, now_s: float) -> None:
        """Every second: add new events, and write everything to disk."""
        if now_s - self._put_s < (_AGAIN_S if self._stopped else _PUT_EVERY_S):
            return
        self._put_s = now_s
        if self._stopped:
            self._go_on()
            return
        self._bring_in()
        self._put()

    @property
    def logged(self) -> int | None:
        """Number of the first record not on disk; None while nothing is written."""
        return None if self._stopped and not self._closed else self._logged

    def account(self) -> LogAccount:
        """Account of the records given and missing."""
        return LogAccount(self._given, self._missing, self._reason, self._ended_by_request)

    def close(self) -> None:
        """Finish the file and report its figures."""
        if not self._stopped:
            self._bring_in()
            self._finish()
        if not self._stopped:
            self._stopped = self._closed = True
            self._event("log_closed", **self._figures())

    def _bring_in(self) -> None:
        self._take_state()
        self._take_events()
        self._encode()

    def _figures(self) -> dict[str, float | int]:
        written = self._finished + (0 if self._counted else self._file.written)
        per_step = written / self._steps if self._steps else 0.0
        rate = self._config.rate_hz / self._settings.decimation
        return {
            "steps": self._steps,
            "bytes": written,
            "bytes_per_step": round(per_step, 1),
            "mb_per_hour": round(per_step * rate * 3600 / 1e6, 3),
        }

    # -- one file ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.path = next_file(self._folder, self._written)
        self._file = StagedFile(self.path)
        self._counted = False
        self._chunks = 0
        self._writer = Writer(cast(IO[bytes], self._file), chunk_size=_CHUNK_BYTES, compression=CompressionType.ZSTD)
        self._writer.start()
        config = self._config
        self._writer.add_metadata(
            METADATA,
            {
                "format": FORMAT,
                "session": self._session,
                "rig": config.rig.name,
                "task": config.task.name,
                "seed": str(config.seed),
                "rate_hz": repr(config.rate_hz),
                "decimation": str(self._settings.decimation),
                "library": variant(),
                "clock": "virtual" if config.lockstep else "monotonic",
                "unix_minus_monotonic_s": repr(self._unix_minus_mono_s),
            },
        )
        for name, media_type in _ATTACHED:
            path = self._folder / name
            if path.is_file():
                self._writer.add_attachment(0, 0, name, media_type, read_file(path, MAX_JSON_BYTES))
        step = wire.descriptor_set((self._messages.file,))
        others = (
            *((EPISODES, messages.EPISODE), (POLICIES, messages.POLICY)),
            *((LOOP, messages.LOOP), (EVENTS, messages.EVENT)),
        )
        self._channels = {STEPS: self._channel(STEPS, f"{PACKAGE}.Step", step)}
        for topic, message in others:
            self._channels[topic] = self._channel(topic, f"{PACKAGE}.{message.name}", messages.descriptors(message))
        self._channels[LINES] = self._channel(LINES, "foxglove.Log", messages.descriptors(messages.LOG))

    def _channel(self, topic: str, name: str, descriptors: bytes) -> int:
        schema = self._writer.register_schema(name, "protobuf", descriptors)
        return self._writer.register_channel(topic, "protobuf", schema)

    def _add(self, topic: str, t_ns: int, data: bytes, sequence: int = 0) -> None:
        if not self._stopped:
            t_ns = max(t_ns, 0)
            self._writer.add_message(self._channels[topic], t_ns, data, t_ns, sequence & 0xFFFFFFFF)

    def _put(self) -> None:
        """Close the chunk and write it to disk; start the next file if this one is long."""
        if self._stopped:
            return
        self._writer.flush()  # type: ignore[no-untyped-call]
        self._chunks += 1
        reason = self._over_limit() or self._no_room()
        if reason is not None:
            self._finish()
            self._stop(reason)
            return
        try:
            self._file.put()
            self._note_put()
            if self._chunks >= _CHUNKS_PER_FILE:
                self._finish()
                if not self._stopped:
                    self._open()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _finish(self) -> None:
        try:
            self._writer.finish()  # type: ignore[no-untyped-call]
            self._file.put()
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self._note_put()
        self._leave_file()

    def _leave_file(self) -> None:
        if not self._counted:
            self._finished += self._file.written
            self._counted = True
            self._file.close()

    def _note_put(self) -> None:
        """Note that all encoded records are on disk."""
        self._on_disk, self._logged = self._encoded, self._encoded_seq

    def _over_limit(self) -> str | None:
        most = self._settings.max_bytes
        if most is None or self._before + self._finished + self._file.tell() <= most:
            return None
        self._ended_by_request = True
        return f"the log has reached log.max_bytes ({most})"

    def _no_room(self, more: int = 0) -> str | None:
        """Reason not to fill the disk further; ``more`` bytes must stay free in addition to those of the settings."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return None  # writing will tell
        free, least = disk.f_bavail * disk.f_frsize, self._settings.keep_free_bytes
        staged = 0 if self._stopped else self._file.staged  # there may never have been a file
        if free - staged < least + more:
            return f"the disk has {free / 1e6:.0f} MB left, log.keep_free_bytes is {least}"
        return None

    def _stop(self, reason: str) -> None:
        if self._stopped:
            return
        self._stopped, self._reason = True, reason
        self._missing += self._given - self._on_disk
        self._leave_file()
        self._event("log_stopped", reason=reason, **self._figures())
        self._waiting.clear()

    def _go_on(self) -> None:
        """Continue in another file, if there is room again."""
        if self._ended_by_request or self._no_room(_ROOM_BYTES) is not None:
            return
        if not self._began():
            return
        self._stopped = False
        self._encoded = self._on_disk = self._given
        self._encoded_seq = self._logged = self._next_seq
        self._event("log_goes_on", file=self.path.name, missing=self._missing)

    # -- what is beside the records ----------------------------------------------------------------------------------

    def _take_state(self) -> None:
        """Add the loop's state if it is new; it precedes the records that follow it."""
        kept = self._kept_state()
        if kept is None or kept == self._kept:
            return
        self._kept = kept
        state = msgspec.msgpack.decode(kept, type=dict[str, object])
        tick = state.get("tick", 0)
        values = (tick if isinstance(tick, int) else 0, msgspec.json.encode(state))
        self._add(LOOP, self._t_ns, wire.encode(messages.LOOP, values))

    def _take_events(self) -> None:
        """Add the events since the last call, at the host's monotonic time."""
        now_s = time.monotonic()
        for line in self._events.lines():
            event = read_event(line)
            if event is None:
                continue
            t_ns = self._t_ns
            if not self._config.lockstep:
                t_s = event.t_unix_s - self._unix_minus_mono_s
                t_ns = round(min(max(t_s, now_s - _AGAIN_S), now_s) * 1e9)
            self._add(EVENTS, t_ns, wire.encode(messages.EVENT, event.fields))
            self._add(LINES, max(t_ns, 0), wire.encode(messages.LOG, event.line(max(t_ns, 0))))
