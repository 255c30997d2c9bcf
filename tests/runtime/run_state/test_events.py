from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.run_state import events as module
from onrig.runtime.run_state.events import (
    COUNT_FIELD,
    MAX_WINDOW_S,
    MAX_WINDOWS,
    MIN_WINDOW_S,
    EventAggregator,
    EventFile,
    Origin,
    PendingEvent,
    Value,
    kind_of,
    n_occurrences,
    shorten_texts,
)


class Clock:
    """Replaces ``time``."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.8e9 + self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def lines_of(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_events_are_json_lines_available_at_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.write("policy_refused", policy=3, reason="two\nlines", share=0.5, fine=True, nothing=None)
    file.write("ended", code=0)
    first_line, second_line = [
        msgspec.json.decode(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()
    ]
    assert first_line.pop("t_unix_s") > 1.7e9
    expected = {"kind": "policy_refused", "policy": 3, "reason": "two\nlines", "share": 0.5, "fine": True}
    assert first_line == {**expected, "nothing": None}
    assert (second_line["kind"], second_line["code"]) == ("ended", 0)
    file.close()


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    first_file, second_file = EventFile(tmp_path / "events.jsonl"), EventFile(tmp_path / "events.jsonl")
    for n in range(4):
        (first_file, second_file)[n % 2].write("event", n=n)
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["n"] for line in lines] == [0, 1, 2, 3]
    first_file.close()
    second_file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_loses_only_the_event() -> None:
    file = EventFile(Path("/dev/full"))
    file.write("event", n=1)
    file.close()


class LimitedDisk:
    """Takes so many bytes, then is full; ``appended_by_others`` append to the file as soon as it is."""

    def __init__(self, room_bytes: int, appended_by_others: bytes = b"") -> None:
        self.room_bytes, self.content, self.appended_by_others = room_bytes, b"", appended_by_others

    def write(self, data: bytes) -> int:
        written_part = data[: self.room_bytes]
        if not self.room_bytes:
            raise OSError(28, "No space left on device")
        self.room_bytes -= len(written_part)
        self.content += written_part
        return len(written_part)

    def tell(self) -> int:
        end = len(self.content)
        self.content, self.appended_by_others = self.content + self.appended_by_others, b""
        return end

    def seek(self, offset: int, whence: int) -> int:
        return len(self.content)

    def truncate(self, size: int) -> None:
        self.room_bytes += len(self.content) - size
        self.content = self.content[:size]

    def fileno(self) -> int:
        raise OSError(9, "Bad file descriptor")

    def close(self) -> None:
        pass


def test_events_delayed_by_a_full_disk_are_written_complete_and_in_order_once_there_is_room(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = LimitedDisk(60)
    file._file = disk  # type: ignore[assignment]
    for n in range(3):
        file.write("event", n=n)
    disk.room_bytes = 10_000
    file.write("event", n=3)
    assert [msgspec.json.decode(line)["n"] for line in disk.content.splitlines()] == [0, 1, 2, 3]


def test_a_partial_line_is_undone_so_that_other_processes_can_continue(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = LimitedDisk(30)
    file._file = disk  # type: ignore[assignment]
    file.write("event", n=0)
    assert disk.content == b""
    disk.room_bytes = 10_000
    file.write("event", n=1)
    assert [msgspec.json.decode(line)["n"] for line in disk.content.splitlines()] == [0, 1]


def test_lines_appended_by_others_after_a_partial_one_are_not_truncated(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = LimitedDisk(30, appended_by_others=b"theirs\n")
    file._file = disk  # type: ignore[assignment]
    file.write("event", n=0)
    disk.room_bytes = 10_000
    file.write("event", n=1)
    first_line, *lines = disk.content.splitlines()
    assert first_line.endswith(b"theirs")
    assert [msgspec.json.decode(line)["n"] for line in lines] == [0, 1]


def test_if_too_many_wait_the_oldest_are_dropped(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = LimitedDisk(30)
    file._file = disk  # type: ignore[assignment]
    for n in range(1500):  # more than can wait; of a kind that is not aggregated
        file.write("policy_admitted", policy=n, learner="plain")
    disk.room_bytes = 10_000_000
    file.write("ended", code=0)
    lines = [msgspec.json.decode(line) for line in disk.content.splitlines()]
    policies = [line["policy"] for line in lines if "policy" in line]
    assert policies == list(range(1500 - len(policies), 1500))
    assert lines[-1]["kind"] == "ended"


def test_on_a_full_disk_vital_events_are_dropped_last(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.close()
    disk = LimitedDisk(0)
    file._file = disk  # type: ignore[assignment]
    file.write("fault", source="control", message="the emergency stop was pressed", fault="device_estop")
    for n in range(1500):
        file.write("policy_admitted", policy=n, learner="plain")
    disk.room_bytes = 10_000_000
    file.write("ended", code=0)
    kinds = [msgspec.json.decode(line)["kind"] for line in disk.content.splitlines()]
    assert (kinds[0], kinds[-1]) == ("fault", "ended")
    assert kinds.count("policy_admitted") < 1000


def test_a_watcher_that_connects_a_thousand_times_a_second_costs_a_line_a_minute(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    per_s, hour_s = 100, 3600
    for n in range(per_s * hour_s):
        clock.now_s += 1 / per_s
        file.write("learner_attached", learner="plain", pushes=False)
        if n == 0:
            assert len(lines_of(path)) == 1, "the first is written at once"
    file.close()
    lines = lines_of(path)
    assert sum(module.n_occurrences(line) for line in lines) == per_s * hour_s, "every event is counted"
    assert len(lines) < 80
    assert path.stat().st_size < 10_000


def test_a_counting_line_sums_amounts_and_shows_the_last_of_the_rest(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for n in range(4):
        file.write("connections_ended", address=f"127.0.0.{n}", why="too many", connections=10)
    clock.now_s += 2
    file.poll()
    first_line, repeat_line = lines_of(path)
    assert (first_line["connections"], first_line["address"], "count" in first_line) == (10, "127.0.0.0", False)
    assert (repeat_line["connections"], repeat_line["address"], repeat_line["count"]) == (30, "127.0.0.3", 3)
    file.close()


@pytest.fixture
def shrink_event_file(monkeypatch: pytest.MonkeyPatch) -> int:
    size = 8000
    monkeypatch.setattr(module, "MAX_FILE_BYTES", size)
    return size


def test_strangers_fill_a_quarter_of_the_file_and_faults_always_fit(
    tmp_path: Path, clock: Clock, shrink_event_file: int
) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for n in range(500):  # all different
        file.write("policy_admitted", policy=n, learner="x" * 2000)
    assert path.stat().st_size < shrink_event_file / 4 + 2000, "only the lines that count dropped events are added"
    for n in range(500):
        file.write("memory_restored", inserted=n)
    size_before = path.stat().st_size
    assert shrink_event_file / 2 < size_before < shrink_event_file * 3 / 4 + 2000
    for n in range(200):
        file.write("fault", fault="lease", message=f"{n}")
        file.write("transition", fault="lease", message="FAULT")
    file.close()
    lines = lines_of(path)
    assert sum(line["kind"] in ("fault", "transition") for line in lines) == 400
    dropped = [line for line in lines if line["kind"] == "events_dropped"][-1]
    n_written = sum(line["kind"] in ("policy_admitted", "memory_restored") for line in lines)
    assert dropped["events"] == 1000 - n_written
    assert "policy_admitted" in str(dropped["which"])
    assert "memory_restored" in str(dropped["which"])


def test_a_reopened_file_continues_with_the_remaining_room(
    tmp_path: Path, clock: Clock, shrink_event_file: int
) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(3):
        file = EventFile(path)
        for n in range(200):
            file.write("policy_admitted", policy=n, learner="plain")
        file.close()
    admitted_bytes = sum(len(line) for line in path.read_bytes().splitlines() if b'"kind":"policy_admitted"' in line)
    assert admitted_bytes <= shrink_event_file / 4


def test_external_text_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.write("policy_refused", policy=1, learner="me", stage="s", reason="r" * 100_000)
    file.write("warning", source="replay", message="m" * 100_000)
    file.close()
    assert path.stat().st_size < 2000


@pytest.mark.parametrize("kind", ["learner_attached", "learner_turned_away", "policy_refused", "connections_ended"])
def test_events_that_strangers_can_cause_are_marked(kind: str) -> None:
    assert kind_of(kind, {}).origin is Origin.PEER
    assert kind_of(kind, {}).grouped_by is not None


def test_every_event_with_a_fault_is_vital() -> None:
    for kind in ("tick", "transition", "error", "of tomorrow"):
        assert kind_of(kind, {"fault": "lease"}).origin is Origin.VITAL
        assert kind_of(kind, {"fault": None}).origin is Origin.RUN


def test_only_texts_are_truncated() -> None:
    fields: dict[str, Value] = {"a": "x" * 20, "b": 10**30, "c": None}
    assert shorten_texts(fields, 10) == {"a": "x" * 7 + "...", "b": 10**30, "c": None}


@pytest.mark.parametrize(("count", "n"), [(None, 1), (5, 5), (True, 1), ("7", 1), (-3, 1), (2.5, 1)])
def test_a_line_states_how_many_events_it_represents(count: object, n: int) -> None:
    assert n_occurrences({"count": count} if count is not None else {}) == n


def add_refusal(aggregator: EventAggregator, now_s: float, policy: int, stage: str = "contract") -> list[PendingEvent]:
    return aggregator.add("policy_refused", {"policy": policy, "learner": "plain", "stage": stage}, now_s, now_s)


def test_the_first_event_is_reported_at_once_and_similar_ones_when_the_window_closes() -> None:
    aggregator = EventAggregator()
    (first_event,) = add_refusal(aggregator, 0.0, 1)
    assert first_event.fields["policy"] == 1
    assert add_refusal(aggregator, 0.1, 2) == add_refusal(aggregator, 0.2, 3) == []
    (other,) = add_refusal(aggregator, 0.3, 4, "bounds")
    assert other.fields["policy"] == 4, "a refusal at another stage is another event"
    (summary_event,) = aggregator.due(MIN_WINDOW_S)
    assert (summary_event.fields["policy"], summary_event.fields[COUNT_FIELD], summary_event.t_unix_s) == (3, 2, 0.2)


def test_windows_double_while_it_continues_and_start_over_after_a_silence() -> None:
    aggregator, reported_at_s = EventAggregator(), []
    add_refusal(aggregator, 0.0, 0)
    for n in range(1, 3000):
        if add_refusal(aggregator, n / 10, n):
            reported_at_s.append(n / 10)
    gaps = [round(b - a) for a, b in itertools.pairwise(reported_at_s)]
    assert gaps == [2, 4, 8, 16, 32, MAX_WINDOW_S, MAX_WINDOW_S, MAX_WINDOW_S]
    aggregator.due(1000.0)
    assert aggregator.due(2000.0) == []
    assert len(add_refusal(aggregator, 2001.0, 1)) == 1


def test_another_event_first_closes_the_windows_that_are_due() -> None:
    aggregator = EventAggregator()
    add_refusal(aggregator, 0.0, 1)
    add_refusal(aggregator, 0.1, 2)
    assert [event.kind for event in aggregator.add("stop", {}, 5.0, 5.0)] == ["policy_refused", "stop"]


def test_a_fault_is_always_reported_and_never_just_counted() -> None:
    aggregator = EventAggregator()
    fields: dict[str, Value] = {"episode": 1, "rule": "none", "cause": "none", "missed": 0, "fault": 3}
    assert [len(aggregator.add("tick", fields, 0.0, 0.0)) for _ in range(3)] == [1, 1, 1]
    fields["fault"] = 0
    assert [len(aggregator.add("tick", fields, 0.0, 0.0)) for _ in range(3)] == [1, 0, 0]


def test_the_number_of_windows_is_limited() -> None:
    aggregator = EventAggregator()
    for n in range(10 * MAX_WINDOWS):
        for _ in range(2):
            aggregator.add("policy_refused", {"learner": str(n)}, 0.0, 0.0)
    assert len(aggregator._windows) == MAX_WINDOWS
    assert len(aggregator.remaining()) == MAX_WINDOWS
    assert aggregator.remaining() == []
