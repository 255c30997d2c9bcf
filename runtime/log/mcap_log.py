"""Writer of a run's log as MCAP files: step records from the ring, episodes, policies and events.

Complete chunks are written every second, so that a killed run leaves a file that is readable up to a second before its
end.  A failing write interrupts the log with one event, but never the process; once space is available again, the log
continues in a new file and reports how many records are missing.  Writing shares the replay process's thread: a chunk
of 200 steps takes a millisecond, and the ring holds eight seconds at 1 kHz.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import numpy as np

from onrig.hw.native import variant
from onrig.runtime.log import messages, wire
from onrig.runtime.log.companions import StateAndEventReader
from onrig.runtime.log.mcap_file import CHUNK_BYTES, FORMAT_VERSION, McapFile
from onrig.runtime.log.messages import EPISODES, EVENTS, LINES, LOOP, POLICIES, STEPS, PolicyTracker
from onrig.runtime.log.staged_file import log_files, next_file
from onrig.runtime.log.steps import Records, StepMessages
from onrig.runtime.process_settings import Log
from onrig.runtime.record import Flag
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.completeness import LogAccount
from onrig.runtime.run_state.episodes import EpisodeRow

_WRITE_INTERVAL_S: Final = 1.0
_RETRY_INTERVAL_S: Final = 5.0
"""Interval at which an interrupted log checks for free space."""
_MIN_ROOM_BYTES: Final = 16_000_000
"""Free space required beyond ``log.keep_free_bytes`` before the log continues."""
_BATCH_RECORDS: Final = 200
"""Number of records encoded per batch."""
_MAX_CHUNKS_PER_FILE: Final = 10_000
"""Maximum number of chunks per file, which bounds the writer's memory."""


class _RecordCounts:
    """Counts of the records passed to a log, encoded, and written to disk."""

    def __init__(self) -> None:
        self.n_received = self._n_encoded = self._n_on_disk = 0
        self._next_seq = self._encoded_seq = 0
        self.first_unlogged = 0
        """Number of the first record not on disk."""
        self.n_missing = 0
        """Number of records that were passed to the log and will never be on disk."""

    def add(self, records: Records, *, is_stopped: bool) -> None:
        """Count records passed to the log; a stopped log does not write them."""
        self.n_received += len(records)
        self._next_seq = int(records[-1]["seq"]) + 1
        if is_stopped:
            self.n_missing += len(records)

    def mark_encoded(self, last_seq: int) -> None:
        """Mark all records up to this number as encoded."""
        self._n_encoded, self._encoded_seq = self.n_received, last_seq + 1

    def mark_written(self) -> None:
        """Mark all encoded records as written to disk."""
        self._n_on_disk, self.first_unlogged = self._n_encoded, self._encoded_seq

    def mark_stopped(self) -> None:
        """Mark the log as stopped: records not yet on disk are lost."""
        self.n_missing += self.n_received - self._n_on_disk

    def mark_resumed(self) -> None:
        """Mark the log as resumed with the next records."""
        self._n_encoded = self._n_on_disk = self.n_received
        self._encoded_seq = self.first_unlogged = self._next_seq


class _SpaceLimits:
    """Space limits of a run's log: its maximum size, and the free space to be left on its disk."""

    def __init__(self, settings: Log, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._previous_bytes = sum(path.stat().st_size for path in log_files(folder))
        self.closed_bytes = 0
        """Total bytes of the files written and closed here."""

    def limit_reason(self, size: int) -> str | None:
        """Return the reason for ending a log whose open file has this size in bytes; None within ``log.max_bytes``."""
        max_bytes = self._settings.max_bytes
        if max_bytes is None or self._previous_bytes + self.closed_bytes + size <= max_bytes:
            return None
        return f"the log has reached log.max_bytes ({max_bytes})"

    def shortage_reason(self, extra_bytes: int) -> str | None:
        """Return the reason for not adding ``extra_bytes`` to the disk; None if ``log.keep_free_bytes`` would remain
        free."""
        try:
            disk_status = os.statvfs(self._folder)
        except OSError:
            return None  # the write itself will fail
        free_bytes, min_free_bytes = disk_status.f_bavail * disk_status.f_frsize, self._settings.keep_free_bytes
        if free_bytes < min_free_bytes + extra_bytes:
            return f"the disk has {free_bytes / 1e6:.0f} MB left; log.keep_free_bytes is {min_free_bytes}"
        return None


class McapLog:
    """Sink (`onrig.runtime.log.sink.Sink`) that writes MCAP files."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        session: str,
        event: Callable[..., None],
        loop_state: Callable[[], bytes | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        reserved_names: Collection[str] = (),
    ) -> None:
        """``loop_state`` returns the loop's last stored state, or None; ``reserved_names``: as for `open_log`."""
        self._reserved_names = reserved_names
        self._config, self._folder, self._session, self._event = config, folder, session, event
        self._messages = StepMessages(config.rig, behaviour=config.stochastic, inputs=config.input_names)
        self._companions = StateAndEventReader(config, folder, loop_state)
        self._t_ns = 0
        self._policies = PolicyTracker()
        self._pending_records = bytearray()
        self._space = _SpaceLimits(config.log, folder)
        self._file: McapFile | None = None
        self._records = _RecordCounts()
        self._steps = 0
        self._stop_reason = ""
        self._last_write_s = clock()
        self._has_ended_by_request = self._is_closed = False
        self._is_stopped = not self._start_file()
        if self._is_stopped:
            event("log_stopped", reason=self._stop_reason, steps=0)

    def _start_file(self) -> bool:
        """Start a file; return False if the disk is full."""
        try:
            self._open().put()
        except OSError as error:
            self._file, self._stop_reason = None, error.strerror or str(error)
            with contextlib.suppress(OSError):  # otherwise each attempt on a full disk would leave an empty file
                if self.path.stat().st_size == 0:
                    self.path.unlink()
            return False
        return True

    # -- the sink ----------------------------------------------------------------------------------------------------

    def add(self, records: Records) -> None:
        """Add step records, in order."""
        if not len(records):
            return
        self._records.add(records, is_stopped=self._is_stopped)
        if self._is_stopped:
            return
        self._t_ns = max(int(records[-1]["t_mono_ns"]), 0)
        self._add_state()
        if self._config.lockstep:  # virtual time advances only with records, so pending events belong here
            self._add_events()
        self._pending_records += records.tobytes()  # joining structured arrays is far slower in numpy
        if len(self._pending_records) >= _BATCH_RECORDS * records.itemsize:
            self._encode()

    def _encode(self) -> None:
        """Encode the pending records into the chunk as one batch, because single records take ten times as long."""
        file = self._file
        if self._is_stopped or file is None or not self._pending_records:
            return
        logged_records = records = np.frombuffer(bytes(self._pending_records), self._messages.layout.dtype)
        self._pending_records.clear()
        self._records.mark_encoded(int(records[-1]["seq"]))
        for t_ns, change in self._policies.changes(records):
            self._add(POLICIES, t_ns, wire.encode(messages.POLICY, change))
        decimation = self._config.log.decimation
        if decimation > 1:
            edge_flags = records["flags"] & (Flag.FIRST | Flag.NO_ACTION)
            logged_records = records[(records["tick"] % decimation == 0) | (edge_flags != 0)]
        encoded, size = self._messages.encode(logged_records), self._messages.size
        times, sequence_numbers = logged_records["t_mono_ns"].tolist(), logged_records["seq"].tolist()
        for i, (t_ns, seq) in enumerate(zip(times, sequence_numbers, strict=True)):
            file.add(STEPS, t_ns, encoded[i * size : (i + 1) * size], seq)
        self._steps += len(logged_records)
        if file.staged_bytes > CHUNK_BYTES:
            self._write_chunk()

    def episode(self, row: EpisodeRow) -> None:
        """Add the row of an ended episode."""
        self._add(EPISODES, row.t_mono_ns, messages.encode_episode(row))

    def poll(self, now_s: float) -> None:
        """Once a second, add new events and write everything to disk."""
        if now_s - self._last_write_s < (_RETRY_INTERVAL_S if self._is_stopped else _WRITE_INTERVAL_S):
            return
        self._last_write_s = now_s
        if self._is_stopped:
            self._continue()
            return
        self._update()
        self._write_chunk()

    @property
    def first_unlogged(self) -> int | None:
        """Number of the first record not on disk; None while the log is interrupted."""
        return None if self._is_stopped and not self._is_closed else self._records.first_unlogged

    def account(self) -> LogAccount:
        """Return how many records were passed to the log, and how many are missing from it."""
        return LogAccount(
            self._records.n_received, self._records.n_missing, self._stop_reason, self._has_ended_by_request
        )

    def close(self) -> None:
        """Finish the file and report its figures."""
        if not self._is_stopped:
            self._update()
            self._finish()
        if not self._is_stopped:
            self._is_stopped = self._is_closed = True
            self._event("log_closed", **self._statistics())

    def _update(self) -> None:
        self._add_state()
        self._add_events()
        self._encode()

    def _statistics(self) -> dict[str, float | int]:
        n_bytes = self._space.closed_bytes + (0 if self._file is None else self._file.written_bytes)
        bytes_per_step = n_bytes / self._steps if self._steps else 0.0
        rate = self._config.rate_hz / self._config.log.decimation
        return {
            "steps": self._steps,
            "bytes": n_bytes,
            "bytes_per_step": round(bytes_per_step, 1),
            "mb_per_hour": round(bytes_per_step * rate * 3600 / 1e6, 3),
        }

    # -- one file ----------------------------------------------------------------------------------------------------

    def _open(self) -> McapFile:
        """Start the next file."""
        config = self._config
        self.path = next_file(self._folder, self._reserved_names)
        metadata = {
            "format": FORMAT_VERSION,
            "session": self._session,
            "rig": config.rig.name,
            "task": config.task.name,
            "seed": str(config.seed),
            "rate_hz": repr(config.rate_hz),
            "decimation": str(config.log.decimation),
            "library": variant(),
            "clock": "virtual" if config.lockstep else "monotonic",
            "unix_minus_monotonic_s": repr(self._companions.unix_minus_mono_s),
        }
        self._file = McapFile(self.path, metadata, self._messages)
        return self._file

    def _add(self, topic: str, t_ns: int, data: bytes) -> None:
        if self._file is not None and not self._is_stopped:
            self._file.add(topic, t_ns, data)

    def _write_chunk(self) -> None:
        """Close the chunk and write it to disk; start the next file if this one is long."""
        file = self._file
        if self._is_stopped or file is None:
            return
        file.end_chunk()
        reason = limit_reason = self._space.limit_reason(file.size)
        if limit_reason is None:
            reason = self._space.shortage_reason(file.staged_bytes)
        if reason is not None:
            self._has_ended_by_request = limit_reason is not None
            self._finish()
            self._stop(reason)
            return
        try:
            file.put()
            self._records.mark_written()
            if file.n_chunks >= _MAX_CHUNKS_PER_FILE:
                self._finish()
                if not self._is_stopped:
                    self._open()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _finish(self) -> None:
        if self._file is None:
            return
        try:
            self._file.finish()
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self._records.mark_written()
        self._abandon_file()

    def _abandon_file(self) -> None:
        if self._file is not None:
            self._space.closed_bytes += self._file.written_bytes
            self._file.close()
            self._file = None

    def _stop(self, reason: str) -> None:
        if self._is_stopped:
            return
        self._is_stopped, self._stop_reason = True, reason
        self._records.mark_stopped()
        self._abandon_file()
        self._event("log_stopped", reason=reason, **self._statistics())
        self._pending_records.clear()

    def _continue(self) -> None:
        """Continue in a new file if space is available again."""
        if self._has_ended_by_request or self._space.shortage_reason(_MIN_ROOM_BYTES) is not None:
            return
        if not self._start_file():
            return
        self._is_stopped = False
        self._records.mark_resumed()
        self._event("log_goes_on", file=self.path.name, missing=self._records.n_missing)

    def _add_state(self) -> None:
        for state in self._companions.new_states():
            self._add(LOOP, self._t_ns, state)

    def _add_events(self) -> None:
        for t_ns, event in self._companions.new_events(self._t_ns):
            self._add(EVENTS, t_ns, wire.encode(messages.EVENT, event.fields))
            self._add(LINES, max(t_ns, 0), wire.encode(messages.LOG, event.line(max(t_ns, 0))))
