"""Post-mortem of a fault: ``post-mortem/NNN-FAULT/`` in the run folder.

It contains the last two seconds of step records and of frames on the wire, and the recent transitions of the run's
state.  The supervisor reads the records and frames from shared memory, so it needs neither the control process (which
may have been killed) nor the replay process, and the loop neither writes anything for it nor waits.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.run_config import RunConfig, Scaled, record_layout
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import Report
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.frame_log import FRAME_LOG_SCHEMA, FrameLogReader, LoggedFrame
from onrig.runtime.shm.ring import RingHistory
from onrig.runtime.shm.segment import Segment, SegmentError
from onrig.runtime.supervise.last_moments import frames_jsonl, records_csv

FOLDER: Final = "post-mortem"
RECORDS, FRAMES, FAULT = "records.csv", "frames.jsonl", "fault.json"
RECORDED_BEFORE_S: Final = 2.0
"""Device time recorded before the fault, or before the last record if that is earlier."""
RECORDED_AFTER_S: Final = 0.25
"""Time recorded after the fault, which shows the device's transition to its safe output."""
MAX_POST_MORTEMS: Final = 8
"""Maximum number of post-mortems per run; further ones replace the last."""
_MAX_TRANSITIONS: Final = 256
_TRANSITIONS_SPAN_S: Final = 10.0
_FAULT_REPORTS: Final = ("error", "fault", "transition")

EventWriter = Callable[..., None]
"""Callback that writes an event: kind, and fields by name."""


class _Pending(NamedTuple):
    fault: FaultName
    message: str
    detail: str | None
    source: str
    t_ns: int
    t_unix_s: float
    state: str
    episode: int
    tick: int
    policy: int


class PostMortem:
    """Recorder that receives all reports of a run, and writes a post-mortem whenever a fault is latched."""

    def __init__(self, config: RunConfig, run_folder: Path, write_event: EventWriter) -> None:
        self._config, self._folder, self._write_event = config, run_folder / FOLDER, write_event
        scale = config.device.pace.scaled if isinstance(config.device.pace, Scaled) else 1.0
        self._span_before_ns = round(RECORDED_BEFORE_S / scale * 1e9)
        self._latched: str | None = None
        self._pending: _Pending | None = None
        self._transitions: deque[dict[str, object]] = deque(maxlen=_MAX_TRANSITIONS)
        self._segments: list[Segment] = []
        self._board: Board | None = None
        self._ring: RingHistory | None = None
        self._frame_log: FrameLogReader | None = None

    def open(self, shm: Path) -> None:
        """Map the run's shared memory; missing segments are skipped."""
        layout = record_layout(self._config)
        self._board = Board(self._attach(shm / "board", BOARD_SCHEMA))
        self._ring = RingHistory(self._attach(shm / "ring", layout.schema), layout)
        with contextlib.suppress(SegmentError):
            self._frame_log = FrameLogReader(self._attach(shm / "frames", FRAME_LOG_SCHEMA))

    def _attach(self, path: Path, schema: str) -> Segment:
        segment = Segment.attach(path, schema)
        self._segments.append(segment)
        return segment

    def record(self, report: Report) -> None:
        """Process one report: store transitions, and schedule a post-mortem for a newly latched fault."""
        values = report.values
        fault = values.get("fault")
        if report.kind == "transition":
            self._transitions.append({"t_mono_ns": time.monotonic_ns(), **values})
            if fault is None:
                self._latched = None
        if report.kind not in _FAULT_REPORTS or fault is None or fault == self._latched:
            return
        self._latched = str(fault)
        if self._pending is not None:
            self._write(self._pending)
        board = self._board
        words = (Word.STATE, Word.EPISODE, Word.TICK, Word.POLICY)
        state, episode, tick, policy = (board[w] if board is not None else 0 for w in words)
        detail = values.get("detail")
        self._pending = _Pending(
            FaultName(self._latched),
            report.message,
            None if detail is None else str(detail),
            report.source,
            time.monotonic_ns(),
            round(time.time(), 3),
            str(values.get("before") or State(state).name.lower()),
            episode,
            tick,
            policy,
        )

    def poll(self) -> None:
        """Write the pending post-mortem if it is due; to be called a few times a second."""
        pending = self._pending
        after_ns = 0 if self._config.lockstep else round(RECORDED_AFTER_S * 1e9)
        if pending is not None and time.monotonic_ns() >= pending.t_ns + after_ns:
            self._write(pending)

    def close(self) -> None:
        """Write a pending post-mortem, and release the shared memory."""
        if self._pending is not None:
            self._write(self._pending)
        for view in (self._board, self._ring, self._frame_log):
            if view is not None:
                view.close()
        for segment in self._segments:
            segment.close()
        self._segments, self._board, self._ring, self._frame_log = [], None, None, None

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(self, pending: _Pending) -> None:
        self._pending = None
        records, frames = self._records(pending), self._frames(pending)
        if records is None and not frames:
            return  # no device was ever connected
        rig = self._config.rig
        content = {
            RECORDS: records_csv(records, rig, self._config.input_names) if records is not None else b"",
            FRAMES: frames_jsonl(frames, rig),
            FAULT: self._account(pending, records, frames),
        }
        existing_folders = find_post_mortems(self._folder.parent)
        number = 1 + max((_parse_number(f) for f in existing_folders), default=0)
        name = f"{number:03d}-{pending.fault.value}"
        temporary_folder = self._folder / f".{name}.tmp"
        replaced_name = existing_folders[-1].name if len(existing_folders) >= MAX_POST_MORTEMS else None
        try:
            shutil.rmtree(temporary_folder, ignore_errors=True)  # left by a supervisor that was killed here
            temporary_folder.mkdir(parents=True)
            # No fsync: on an SD card that stalls for seconds, it would delay the response to the terminal's keys.
            for file, data in content.items():
                (temporary_folder / file).write_bytes(data)
            if replaced_name is not None:
                shutil.rmtree(existing_folders[-1])
            temporary_folder.rename(self._folder / name)
        except OSError as error:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            self._write_event("post_mortem_failed", fault=pending.fault.value, reason=error.strerror or str(error))
            return
        self._write_event(
            "post_mortem",
            fault=pending.fault.value,
            folder=f"{FOLDER}/{name}",
            records=0 if records is None else len(records),
            frames=len(frames),
            replaces=replaced_name,
        )

    def _records(self, pending: _Pending) -> NDArray[np.void] | None:
        """Return the records of the last two seconds; None if there are none."""
        if self._ring is None:
            return None
        if self._config.lockstep:
            return self._records_in_lockstep(self._ring)
        scale = RECORDED_BEFORE_S * 1e9 / self._span_before_ns
        records = self._ring.records_since(
            0, math.ceil((RECORDED_BEFORE_S + 4 * RECORDED_AFTER_S * scale) * self._config.rate_hz)
        )
        if not len(records):
            return None
        end_ns = min(int(records["t_receive_ns"][-1]), pending.t_ns)
        return records[records["t_receive_ns"] >= end_ns - self._span_before_ns]

    def _records_in_lockstep(self, ring: RingHistory) -> NDArray[np.void] | None:
        """Return the records up to the fault, since which the loop may have made thousands of ticks in lockstep."""
        records = ring.records_since(0)
        fault_indices = np.flatnonzero(records["fault"])
        end = int(fault_indices[-1]) + 1 if len(fault_indices) else len(records)
        return records[max(0, end - math.ceil(RECORDED_BEFORE_S * self._config.rate_hz)) : end] if end else None

    def _frames(self, pending: _Pending) -> list[LoggedFrame]:
        if self._frame_log is None:
            return []
        if self._config.lockstep:
            return self._frame_log.frames_since(0, 2 * math.ceil(RECORDED_BEFORE_S * self._config.rate_hz) + 2)
        last_ns = pending.t_ns
        if self._ring is not None and len(newest := self._ring.records_since(0, 1)):
            last_ns = min(last_ns, int(newest["t_receive_ns"][-1]))
        return self._frame_log.frames_since(last_ns - self._span_before_ns)

    def _account(self, pending: _Pending, records: NDArray[np.void] | None, frames: list[LoggedFrame]) -> bytes:
        entry = FAULTS[pending.fault]
        config = self._config
        first_ns = pending.t_ns - round(_TRANSITIONS_SPAN_S * 1e9)
        recent_transitions = [t for t in self._transitions if int(str(t["t_mono_ns"])) >= first_ns]
        account: dict[str, object] = {
            "fault": pending.fault.value,
            "message": pending.message,
            "detail": pending.detail,
            "cause": entry.cause,
            "hint": entry.hint,
            "rearm_by": entry.rearm.value,
            "exit_code": int(entry.code),
            "told_by": pending.source,
            "t_mono_ns": pending.t_ns,
            "t_unix_s": pending.t_unix_s,
            "state": pending.state,
            "episode": pending.episode,
            "tick": pending.tick,
            "policy": pending.policy,
            "virtual_time": config.lockstep,
            "rig": config.rig.name,
            "rate_hz": config.rate_hz,
            "transitions": recent_transitions or list(self._transitions)[-5:],
            "records": _summarize(records),
            "records_dropped": self._ring.n_dropped if self._ring is not None else 0,
            "frames": len(frames),
            "frames_taped": self._frame_log is not None,
        }
        return msgspec.json.format(msgspec.json.encode(account), indent=2) + b"\n"


def _summarize(records: NDArray[np.void] | None) -> dict[str, object]:
    if records is None:
        return {"count": 0}
    return {
        "count": len(records),
        "first_tick": int(records["tick"][0]),
        "last_tick": int(records["tick"][-1]),
        "last_t_mono_ns": int(records["t_mono_ns"][-1]),
        "missed": int(records["missed"].sum()),
    }


def _parse_number(folder: Path) -> int:
    digits = folder.name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def find_post_mortems(run_folder: Path) -> list[Path]:
    """Return the folders of the post-mortems in a run folder, in the order of their numbers."""
    with contextlib.suppress(OSError):
        folders = [f for f in (run_folder / FOLDER).iterdir() if _parse_number(f) and (f / FAULT).is_file()]
        return sorted(folders, key=_parse_number)
    return []
