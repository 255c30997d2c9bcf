from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runtime.supervise.events import EventFile


def test_events_are_lines_of_json_that_are_there_at_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.write("policy_refused", policy=3, reason="two\nlines", share=0.5, fine=True, nothing=None)
    file.write("ended", code=0)
    first, second = [msgspec.json.decode(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert first.pop("t_unix_s") > 1.7e9
    expected = {"kind": "policy_refused", "policy": 3, "reason": "two\nlines", "share": 0.5, "fine": True}
    assert first == {**expected, "nothing": None}
    assert (second["kind"], second["code"]) == ("ended", 0)
    file.close()


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    first, second = EventFile(tmp_path / "events.jsonl"), EventFile(tmp_path / "events.jsonl")
    for n in range(4):
        (first, second)[n % 2].write("event", n=n)
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["n"] for line in lines] == [0, 1, 2, 3]
    first.close()
    second.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_loses_the_event_and_nothing_else() -> None:
    file = EventFile(Path("/dev/full"))
    file.write("event", n=1)
    file.close()


class Disk:
    """Takes so many bytes, then is full."""

    def __init__(self, room: int) -> None:
        self.room, self.held = room, b""

    def write(self, data: bytes) -> int:
        taken = data[: self.room]
        if not self.room:
            raise OSError(28, "No space left on device")
        self.room -= len(taken)
        self.held += taken
        return len(taken)

    def close(self) -> None:
        pass


def test_what_a_full_disk_did_not_take_is_written_whole_and_in_order_once_there_is_room(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = Disk(60)
    file._file = disk  # type: ignore[assignment]
    for n in range(3):
        file.write("event", n=n)
    disk.room = 10_000
    file.write("event", n=3)
    assert [msgspec.json.decode(line)["n"] for line in disk.held.splitlines()] == [0, 1, 2, 3]
