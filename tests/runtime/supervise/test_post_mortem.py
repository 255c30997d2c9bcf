from __future__ import annotations

import csv
import errno
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onrig.hw.messages import CommandLayout, StateLayout
from onrig.runtime.run_state.faults import FAULTS, FaultName
from onrig.runtime.run_state.report import Report
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.frame_log import FRAME_LOG_SCHEMA, FrameLogWriter, frame_log_bytes
from onrig.runtime.shm.ring import RingReader, RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.post_mortem import (
    MAX_POST_MORTEMS,
    RECORDED_AFTER_S,
    RECORDED_BEFORE_S,
    PostMortem,
    find_post_mortems,
)
from onrig.tools.load import load
from tests.runtime.samples import LAYOUT, state, step

S = 1_000_000_000
CONFIG = load("pendulum", ["device.pace=realtime"])
PERIOD_NS = CONFIG.wall_period_ns


class Rig:
    """Everything shared by the processes of a run, with a settable clock; ``events`` are the reported ones."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shm, self.folder = folder / "shm", folder / "run"
        self.shm.mkdir()
        self.folder.mkdir()
        self.now_ns = 1000 * S
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        ring = Segment.create(self.shm / "ring", ring_bytes(LAYOUT, 512), LAYOUT.schema)
        self.ring, self.reader = RingWriter(ring, LAYOUT), RingReader(ring, LAYOUT)
        self.board = Board(Segment.create(self.shm / "board", BOARD_BYTES, BOARD_SCHEMA))
        self.frame_log = FrameLogWriter(
            Segment.create(self.shm / "frames", frame_log_bytes(CONFIG.rate_hz), FRAME_LOG_SCHEMA)
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.tick = 0
        self.post_mortem = self.make_post_mortem()

    def make_post_mortem(self) -> PostMortem:
        """A post-mortem for the same run (the folder may already hold some)."""
        post_mortem = PostMortem(CONFIG, self.folder, lambda kind, **fields: self.events.append((kind, fields)))
        post_mortem.open(self.shm)
        return post_mortem

    def run(self, ticks: int) -> None:
        """Let the loop make ticks, each with a frame, a command and a record."""
        for _ in range(ticks):
            self.now_ns += PERIOD_NS
            frame = state(self.tick + 1)
            self.frame_log.write(self.now_ns, StateLayout(2, 1).encode(frame))
            self.frame_log.write(self.now_ns, CommandLayout(1).encode(frame.frame, (5,)))
            record = step(self.tick, frame)
            record.t_receive_ns = self.now_ns
            if not self.ring.push(LAYOUT.values(record)):
                self.reader.take(len(self.reader.peek()))
                self.reader.release(self.reader.n_taken)
                self.ring.push(LAYOUT.values(record))
            self.tick += 1
            self.board[Word.TICK] = self.tick

    def fault(self, name: FaultName = FaultName.DEVICE_LEASE) -> None:
        """The loop reports a transition into FAULT."""
        values = {"before": "running", "event": "trip", "state": "fault", "fault": name.value, "detail": "it was so"}
        self.post_mortem.record(Report("control", "transition", "running -> fault", dict(values)))

    def rearm(self) -> None:
        values = {"before": "fault", "event": "rearm", "state": "ready", "fault": None}
        self.post_mortem.record(Report("control", "transition", "fault -> ready", dict(values)))

    def list_dumps(self) -> list[str]:
        return [f.name for f in find_post_mortems(self.folder)]

    def read_story(self, folder: str) -> dict[str, Any]:
        content: dict[str, Any] = msgspec.json.decode(
            (self.folder / "post-mortem" / folder / "fault.json").read_bytes()
        )
        return content

    def records(self, folder: str) -> list[dict[str, str]]:
        with (self.folder / "post-mortem" / folder / "records.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def frames(self, folder: str) -> list[dict[str, Any]]:
        text = (self.folder / "post-mortem" / folder / "frames.jsonl").read_bytes()
        return [msgspec.json.decode(line) for line in text.splitlines()]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    rig.post_mortem.close()


def test_a_fault_leaves_the_last_two_seconds_of_records_and_frames(rig: Rig) -> None:
    rig.run(300)
    rig.board[Word.STATE] = State.RUNNING
    rig.fault()
    rig.post_mortem.close()
    [name] = rig.list_dumps()
    assert name == "001-device_lease"
    ticks = [int(r["tick"]) for r in rig.records(name)]
    n = round(RECORDED_BEFORE_S * CONFIG.rate_hz)
    assert ticks == list(range(299 - n, 300))
    frames = rig.frames(name)
    assert [f["frame"] for f in frames if f["type"] == "state"] == [t + 1 for t in ticks]
    assert [f["answers"] for f in frames if f["type"] == "command"] == [t + 1 for t in ticks]
    assert rig.events == [
        (
            "post_mortem",
            {
                "fault": "device_lease",
                "folder": f"post-mortem/{name}",
                "records": n + 1,
                "frames": 2 * (n + 1),
                "replaces": None,
            },
        )
    ]


def test_the_report_states_what_when_why_and_what_to_do(rig: Rig) -> None:
    rig.run(10)
    rig.board[Word.STATE] = State.RUNNING
    rig.fault(FaultName.DEVICE_ESTOP)
    rig.post_mortem.close()
    story = rig.read_story("001-device_estop")
    entry = FAULTS[FaultName.DEVICE_ESTOP]
    assert (story["fault"], story["cause"], story["hint"]) == ("device_estop", entry.cause, entry.hint)
    assert (story["t_mono_ns"], story["tick"], story["state"]) == (rig.now_ns, 10, "running")
    assert (story["detail"], story["rearm_by"], story["exit_code"]) == ("it was so", "person", 5)
    assert [t["state"] for t in story["transitions"]] == ["fault"]
    assert story["records"]["last_tick"] == 9


def test_it_records_for_a_moment_before_it_writes(rig: Rig) -> None:
    rig.run(100)
    rig.fault()
    rig.post_mortem.poll()
    assert rig.list_dumps() == []
    records_after = round(RECORDED_AFTER_S * CONFIG.rate_hz) + 1
    rig.run(records_after)
    rig.post_mortem.poll()
    [name] = rig.list_dumps()
    assert [int(r["tick"]) for r in rig.records(name)][-records_after:] == list(range(100, 100 + records_after))


def test_a_repeatedly_reported_fault_is_written_once(rig: Rig) -> None:
    rig.run(10)
    rig.fault()
    rig.post_mortem.record(Report("control", "error", "in words", {"fault": "device_lease"}))
    rig.post_mortem.record(Report("control", "transition", "fault -> disconnected", {"fault": "device_lease"}))
    rig.post_mortem.close()
    assert rig.list_dumps() == ["001-device_lease"]


def test_a_fault_that_recurs_after_rearming_is_another_one(rig: Rig) -> None:
    for _ in range(2):
        rig.run(10)
        rig.fault()
        rig.rearm()
    rig.post_mortem.close()
    assert rig.list_dumps() == ["001-device_lease", "002-device_lease"]


def test_records_that_are_not_read_are_still_included(rig: Rig) -> None:
    rig.run(20)
    assert len(rig.ring) == 20, "the replay process is dead"
    rig.fault(FaultName.LOOP_KILLED)
    rig.post_mortem.close()
    assert len(rig.records("001-loop_killed")) == 20


def test_of_many_the_first_and_the_last_are_kept_and_the_event_names_the_deleted_one(rig: Rig) -> None:
    for _ in range(MAX_POST_MORTEMS + 3):
        rig.run(5)
        rig.fault()
        rig.rearm()
    rig.post_mortem.close()
    expected_names = [f"{n:03d}-device_lease" for n in range(1, MAX_POST_MORTEMS)]
    assert rig.list_dumps() == [*expected_names, f"{MAX_POST_MORTEMS + 3:03d}-device_lease"]
    assert [e[1]["replaces"] for e in rig.events][-3:] == [f"{MAX_POST_MORTEMS + n:03d}-device_lease" for n in range(3)]
    assert sorted(p.name for p in (rig.folder / "post-mortem").iterdir()) == rig.list_dumps(), (
        "no partial post-mortem is left"
    )


def test_a_run_resumed_in_its_folder_continues_the_numbering(rig: Rig) -> None:
    rig.run(5)
    rig.fault()
    rig.post_mortem.close()
    rig.post_mortem = rig.make_post_mortem()
    rig.fault(FaultName.LINK_SILENT)
    rig.post_mortem.close()
    assert rig.list_dumps() == ["001-device_lease", "002-link_silent"]


def test_a_silent_line_still_shows_what_preceded_the_silence(rig: Rig) -> None:
    rig.run(200)
    rig.now_ns += 16 * S
    rig.fault(FaultName.LOOP_HUNG)
    rig.post_mortem.close()
    n = round(RECORDED_BEFORE_S * CONFIG.rate_hz)
    assert len(rig.records("001-loop_hung")) == n + 1
    assert len(rig.frames("001-loop_hung")) == 2 * (n + 1)


def test_a_device_that_never_sent_leaves_nothing(rig: Rig) -> None:
    rig.fault(FaultName.LINK_CLOSED)
    rig.post_mortem.close()
    assert rig.list_dumps() == []
    assert rig.events == []


def test_a_full_disk_costs_an_event_and_leaves_nothing_half_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.run(5)

    def fail_write(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail_write)
    rig.fault()
    rig.post_mortem.close()
    assert rig.events == [("post_mortem_failed", {"fault": "device_lease", "reason": "No space left on device"})]
    assert list((rig.folder / "post-mortem").iterdir()) == []


def test_without_a_frame_log_the_records_remain(rig: Rig) -> None:
    rig.post_mortem.close()
    (rig.shm / "frames").unlink()
    rig.post_mortem = rig.make_post_mortem()
    rig.run(5)
    rig.fault()
    rig.post_mortem.close()
    [name] = rig.list_dumps()
    assert len(rig.records(name)) == 5
    assert rig.read_story(name)["frames_taped"] is False


def test_it_continues_after_the_shared_memory_is_unlinked(rig: Rig) -> None:
    rig.run(5)
    shutil.rmtree(rig.shm)
    rig.fault()
    rig.post_mortem.close()
    assert rig.list_dumps() == ["001-device_lease"]
