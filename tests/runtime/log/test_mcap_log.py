"""The log on disk, as seen by public readers, and after a killed writer or a full disk."""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.exceptions import EndOfFile
from mcap.reader import make_reader
from mcap.records import Message as McapMessage
from mcap.stream_reader import StreamReader
from mcap_protobuf.decoder import DecoderFactory

from onrig.runtime.log import sink
from onrig.runtime.log.mcap_file import McapFile
from onrig.runtime.log.mcap_log import McapLog
from onrig.runtime.log.reading import (
    Event,
    LogDamagedError,
    LogEnd,
    LogStart,
    StoredLoopState,
    count_steps,
    read_last,
    read_log,
)
from onrig.runtime.log.sink import LogMissing, NoLog, open_log
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.process_settings import Log
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_state.completeness import LogAccount
from onrig.runtime.run_state.episodes import EpisodeAccounts
from tests.runtime.log.test_staged_file import limit_disk
from tests.runtime.samples import LAYOUT, PENDULUM, Records, episode

Events = list[tuple[str, dict[str, object]]]


class Folder:
    """A run folder, and a log written into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: Events = []
        self.now_s = 0.0
        self.loop_state: bytes | None = None
        (path / "config.yaml").write_text("rig: pendulum\n")

    def event(self, kind: str, **values: object) -> None:
        self.events.append((kind, values))

    def open(self, session: str = "s", **log: Any) -> McapLog:
        config = msgspec.structs.replace(PENDULUM, log=Log(**log))
        return McapLog(config, self.path, session, self.event, lambda: self.loop_state, lambda: self.now_s)

    def log_second(self, log: McapLog) -> None:
        self.now_s += 1.0
        log.poll(self.now_s)

    def records(self) -> Records:
        parts = [p for p in read_log(self.path, PENDULUM.rig) if isinstance(p, np.ndarray)]
        return np.concatenate([np.zeros(0, LAYOUT.dtype), *parts])

    def messages(self, name: str = "log.mcap") -> list[tuple[str, int, Any]]:
        """Result of the public reader: topic, time, content."""
        with (self.path / name).open("rb") as file:
            reader = make_reader(file, decoder_factories=[DecoderFactory()])
            return [(c.topic, m.log_time, d) for _, c, m, d in reader.iter_decoded_messages()]


def file_of(log: McapLog) -> McapFile:
    assert log._file is not None
    return log._file


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def seal(rows: Records) -> Records:
    """The same with times, numbers and checksums as from the loop."""
    rows["seq"] = rows["tick"]
    rows["t_mono_ns"] = 20_000_000 * (rows["tick"].astype(np.int64) + 1)
    buffer = memoryview(bytearray(rows.tobytes()))
    size = LAYOUT.size
    for i, row in enumerate(rows):
        flat = [v for n in (LAYOUT.dtype.names or ())[:-1] for v in np.ravel(row[n]).tolist()]
        LAYOUT.pack_into(buffer, i * size, flat[0], tuple(flat[1:]))
    return np.frombuffer(bytes(buffer), LAYOUT.dtype)


EPISODE = seal(episode(40))


def test_public_readers_find_every_step_episode_policy_and_event_in_time(folder: Folder) -> None:
    log = folder.open()
    log.add(EPISODE[:20])
    (folder.path / "events.jsonl").write_bytes(
        b'{"t_unix_s":5.5,"kind":"fault","source":"control","message":"e-stop","code":3}\nno json\n'
    )
    log.add(EPISODE[20:])
    [row] = EpisodeAccounts(PENDULUM.task, PENDULUM.rate_hz, PENDULUM.rig).add(EPISODE)
    log.episode(row)
    log.close()
    messages = folder.messages()
    assert Counter(topic for topic, _, _ in messages) == {
        "/onrig/step": 41,
        "/onrig/episode": 1,
        "/onrig/policy": 1,
        "/onrig/event": 1,
        "/onrig/log": 1,
    }
    steps = [(t, d) for topic, t, d in messages if topic == "/onrig/step"]
    assert [t for t, _ in steps] == EPISODE["t_mono_ns"].tolist()
    by_topic: dict[str, Any] = {topic: d for topic, _, d in messages}
    for (_, message), record in zip(steps, EPISODE, strict=True):
        step: Any = message
        assert (step.tick, step.reward, step.observation.angle) == tuple(
            float(x) for x in (record["tick"], record["reward"], record["observation"][0])
        )
    assert (by_topic["/onrig/episode"].steps, getattr(by_topic["/onrig/episode"], "return")) == (40, row.reward_sum)
    assert (by_topic["/onrig/policy"].policy_id, by_topic["/onrig/policy"].previous) == (7, 0)
    assert (by_topic["/onrig/event"].kind, by_topic["/onrig/event"].source) == ("fault", "control")
    assert msgspec.json.decode(by_topic["/onrig/event"].json)["code"] == 3
    assert (by_topic["/onrig/log"].message, by_topic["/onrig/log"].level) == ("fault: e-stop", 4)
    [(kind, values)] = folder.events
    assert (kind, values["steps"]) == ("log_closed", 41)
    assert values["bytes"] == (folder.path / "log.mcap").stat().st_size


def test_every_file_holds_the_runs_configuration_and_its_names(folder: Folder) -> None:
    for session in ("first", "second"):
        log = folder.open(session)
        log.add(EPISODE)
        log.close()
    assert [p.name for p in log_files(folder.path)] == ["log.mcap", "log-2.mcap"]
    for name, session in (("log.mcap", "first"), ("log-2.mcap", "second")):
        with (folder.path / name).open("rb") as file:
            reader = make_reader(file)
            [attachment] = reader.iter_attachments()
            [metadata] = reader.iter_metadata()
        assert (attachment.name, attachment.data) == ("config.yaml", b"rig: pendulum\n")
        assert (metadata.metadata["session"], metadata.metadata["rig"]) == (session, "pendulum")
    assert count_steps(folder.path) == 82


def test_records_events_and_the_state_kept_by_the_loop_are_read_back_unchanged(folder: Folder) -> None:
    log = folder.open()
    folder.loop_state = msgspec.msgpack.encode({"tick": 0, "explorer": {"scale.std": 0.1}})
    log.add(EPISODE[:3])
    folder.loop_state = msgspec.msgpack.encode({"tick": 3})
    (folder.path / "events.jsonl").write_bytes(b'{"t_unix_s":1.0,"kind":"event"}\n')
    log.add(EPISODE[3:])
    log.close()
    parts = list(read_log(folder.path, PENDULUM.rig))
    assert [type(p) for p in parts] == [
        LogStart,
        StoredLoopState,
        StoredLoopState,
        Event,
        np.ndarray,
        LogEnd,
    ]  # states before records
    assert [p.fields for p in parts if isinstance(p, StoredLoopState)] == [
        {"tick": 0, "explorer": {"scale.std": 0.1}},
        {"tick": 3},
    ]
    assert [p.fields for p in parts if isinstance(p, Event)] == [{"t_unix_s": 1.0, "kind": "event"}]
    assert parts[-1] == LogEnd(folder.path / "log.mcap", True)
    assert folder.records().tobytes() == EPISODE.tobytes()


def test_all_incoming_data_are_on_disk_every_second(folder: Folder) -> None:
    log = folder.open()
    for n in range(1, 41):
        log.add(EPISODE[n - 1 : n])
        if n % 10 == 0:
            folder.log_second(log)
            assert len(folder.records()) == n  # as a killed process would leave it
    log.add(EPISODE[40:])
    log.poll(folder.now_s + 0.9)
    assert len(folder.records()) == 40
    log.close()


@pytest.fixture(scope="module")
def unfinished_files(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = Folder(tmp_path_factory.mktemp("run"))
    log = folder.open()
    for n in range(8):
        log.add(EPISODE[5 * n : 5 * n + 5])
        folder.log_second(log)
    unfinished_files = (folder.path / "log.mcap").read_bytes()
    log.close()
    return unfinished_files


@settings(max_examples=40)
@given(fraction=st.floats(0, 1))
def test_a_file_truncated_anywhere_gives_its_complete_chunks(
    unfinished_files: bytes, tmp_path: Path, fraction: float
) -> None:
    torn_bytes = unfinished_files[: max(8, round(fraction * len(unfinished_files)))]
    (tmp_path / "log.mcap").write_bytes(torn_bytes)
    *parts, log_end = read_log(tmp_path, PENDULUM.rig)
    assert isinstance(log_end, LogEnd)
    assert not log_end.is_complete
    rows = [p for p in parts if isinstance(p, np.ndarray)]
    read_bytes = b"".join(p.tobytes() for p in rows)
    assert read_bytes == EPISODE[: len(read_bytes) // LAYOUT.size].tobytes()
    assert len(read_bytes) // LAYOUT.size % 5 == 0
    # and by then the public reader, which stops where the bytes end, has found the same ones
    n_read = 0
    with (tmp_path / "log.mcap").open("rb") as file:
        try:
            for record in StreamReader(file).records:
                n_read += isinstance(record, McapMessage) and record.sequence == n_read
        except (EndOfFile, Exception):  # whatever the truncated chunk yields
            pass
    assert n_read >= len(read_bytes) // LAYOUT.size


def test_a_damaged_file_is_not_treated_as_truncated(folder: Folder) -> None:
    log = folder.open()
    log.add(EPISODE)
    log.close()
    path = folder.path / "log.mcap"
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    data[summary.chunk_indexes[0].chunk_start_offset + 80] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamagedError, match=r"log\.mcap"):
        list(read_log(folder.path, PENDULUM.rig))


def test_a_log_of_another_rig_is_reported(folder: Folder) -> None:
    log = folder.open()
    log.add(EPISODE)
    log.close()
    rig = PENDULUM.rig
    other = msgspec.structs.replace(rig, sensors=rig.sensors[::-1])
    with pytest.raises(LogDamagedError, match="the layout of another version or rig"):
        list(read_log(folder.path, other))


@pytest.mark.parametrize("room_bytes", [0, 100])
def test_a_full_disk_interrupts_the_log_which_continues_when_there_is_room(folder: Folder, room_bytes: int) -> None:
    log = folder.open()
    log.add(EPISODE[:20])
    folder.log_second(log)
    limit_disk(file_of(log)._staged_file, room_bytes)
    for n in range(20, 40):
        log.add(EPISODE[n : n + 1])
        folder.log_second(log)
    [row] = EpisodeAccounts(PENDULUM.task, PENDULUM.rate_hz, PENDULUM.rig).add(EPISODE)
    log.episode(row)
    log.close()
    assert [kind for kind, _ in folder.events] == ["log_stopped", "log_goes_on", "log_closed"]
    assert folder.events[0][1]["reason"] == "No space left on device"
    n_missing = log.account().missing
    assert folder.events[1][1]["missing"] == n_missing > 0
    assert log.account().offered == 40
    assert folder.records().tobytes() == np.concatenate([EPISODE[:20], EPISODE[20 + n_missing : 40]]).tobytes()


def test_data_added_to_a_log_at_its_end_are_on_disk(folder: Folder) -> None:
    log = folder.open()
    log.add(EPISODE)
    assert log.first_unlogged == 0
    log.close()
    assert log.first_unlogged == len(EPISODE)


def test_a_disk_that_remains_full_ends_the_log_with_one_event_and_a_count(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder.open()
    log.add(EPISODE[:20])
    folder.log_second(log)
    assert log.first_unlogged == 20
    limit_disk(file_of(log)._staged_file, 0)
    monkeypatch.setattr(McapLog, "_start_file", lambda log: False)
    for n in range(20, 40):
        log.add(EPISODE[n : n + 1])
        folder.log_second(log)
        assert log.first_unlogged is None, "nothing is kept for a log that is not written"
    log.close()
    assert [kind for kind, _ in folder.events] == ["log_stopped"]
    assert log.first_unlogged is None
    assert log.account() == LogAccount(40, 20, "No space left on device")
    assert folder.records().tobytes() == EPISODE[:20].tobytes()


def test_the_log_leaves_disk_space_for_others(folder: Folder) -> None:
    log = folder.open(keep_free_bytes=1 << 62)
    log.add(EPISODE)
    folder.log_second(log)
    log.add(EPISODE)
    log.close()
    [(kind, values)] = folder.events
    assert kind == "log_stopped"
    assert "keep_free_bytes" in str(values["reason"])


def test_the_log_ends_at_its_maximum_size_including_earlier_files(folder: Folder) -> None:
    first_log = folder.open()
    first_log.add(EPISODE)
    first_log.close()
    limit = 2 * (folder.path / "log.mcap").stat().st_size
    log = folder.open(max_bytes=limit)
    for _ in range(40):
        log.add(EPISODE)
        folder.log_second(log)
    log.close()
    assert [kind for kind, _ in folder.events] == ["log_closed", "log_stopped"]
    assert "max_bytes" in str(folder.events[1][1]["reason"])
    assert len(folder.messages("log-2.mcap")) > 41  # it was finished in order


def test_a_decimated_log_keeps_the_edges_of_episodes(folder: Folder) -> None:
    log = folder.open(decimation=7)
    log.add(EPISODE)
    log.close()
    logged = folder.records()
    assert logged["tick"].tolist() == [0, 7, 14, 21, 28, 35, 40]


def test_long_logs_continue_in_the_next_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.runtime.log.mcap_log._MAX_CHUNKS_PER_FILE", 3)
    log = folder.open()
    for n in range(8):
        log.add(EPISODE[5 * n : 5 * n + 5])
        folder.log_second(log)
    log.close()
    assert len(log_files(folder.path)) == 3
    assert folder.records().tobytes() == EPISODE[:40].tobytes()
    assert folder.events[0][1]["bytes"] == sum(p.stat().st_size for p in log_files(folder.path))


@pytest.mark.parametrize("limit", [1, 7, 13, 1000])
def test_the_newest_records_are_found_across_files_and_without_an_index(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    assert len(read_last(folder.path, PENDULUM.rig, limit)) == 0
    monkeypatch.setattr("onrig.runtime.log.mcap_log._MAX_CHUNKS_PER_FILE", 3)
    log = folder.open()
    for n in range(8):
        log.add(EPISODE[5 * n : 5 * n + 5])
        folder.log_second(log)
        expected = EPISODE[: 5 * n + 5][-limit:]
        assert read_last(folder.path, PENDULUM.rig, limit).tobytes() == expected.tobytes(), (
            "while its writer is at work"
        )
    log.close()
    assert read_last(folder.path, PENDULUM.rig, limit).tobytes() == EPISODE[:40][-limit:].tobytes()
    other = msgspec.structs.replace(PENDULUM.rig, sensors=PENDULUM.rig.sensors[::-1])
    with pytest.raises(LogDamagedError, match="another version or rig"):
        read_last(folder.path, other, limit)


def test_a_file_that_cannot_be_finished_is_not_followed_by_another(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_finish() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onrig.runtime.log.mcap_log._MAX_CHUNKS_PER_FILE", 1)
    log = folder.open()
    monkeypatch.setattr(file_of(log)._writer, "finish", fail_finish)
    log.add(EPISODE[:20])
    folder.log_second(log)
    log.close()
    assert [kind for kind, _ in folder.events] == ["log_stopped"]
    assert len(log_files(folder.path)) == 1


def test_each_change_of_policy_is_reported_once_across_batches(folder: Folder) -> None:
    rows = EPISODE.copy()
    rows["policy_id"][10:] = 8
    rows["policy_id"][-1] = 0  # there is no action in the last record of an episode
    rows["flags"][10] |= Flag.ROLLED_BACK
    rows["kind"][30:] = Kind.EVAL
    log = folder.open()
    for n in range(0, 41, 3):
        log.add(rows[n : n + 3])
    log.close()
    policy_changes: list[Any] = [d for topic, _, d in folder.messages() if topic == "/onrig/policy"]
    assert [(c.tick, c.previous, c.policy_id, c.rolled_back) for c in policy_changes] == [
        (0, 0, 7, False),
        (10, 7, 8, True),
    ]


# -- where the log is enabled ----------------------------------------------------------------------------------------


@pytest.fixture
def without_mcap(monkeypatch: pytest.MonkeyPatch) -> None:
    original_import: Callable[..., object] = builtins.__import__

    def import_without_mcap(name: str, *args: Any, **kwargs: Any) -> object:
        if name.split(".")[0] == "mcap":
            raise ModuleNotFoundError("No module named 'mcap'", name="mcap")
        return original_import(name, *args, **kwargs)

    reimported = ("onrig.runtime.log.mcap_log", "onrig.runtime.log.mcap_file")
    for name in [n for n in sys.modules if n in reimported or n.split(".")[0] == "mcap"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", import_without_mcap)


def open_sink(folder: Folder, **log: Any) -> sink.Sink:
    config = msgspec.structs.replace(PENDULUM, log=Log(**log))
    return open_log(config, folder.path, "s", folder.event)


def test_without_the_package_a_run_has_no_log_and_reports_it_once(folder: Folder, without_mcap: None) -> None:
    assert isinstance(open_sink(folder), NoLog)
    [(kind, values)] = folder.events
    assert kind == "log_off"
    assert "onrig[log]" in str(values["reason"])


def test_a_missing_log_is_reported_if_it_was_requested(folder: Folder, without_mcap: None) -> None:
    with pytest.raises(LogMissing, match="pip install"):
        open_sink(folder, mcap=True)


def test_a_disabled_log_leaves_no_file_and_no_event(folder: Folder) -> None:
    log = open_sink(folder, mcap=False)
    log.add(EPISODE)
    log.poll(1.0)
    log.close()
    assert log_files(folder.path) == []
    assert folder.events == []


def test_an_unwritable_folder_costs_only_the_log(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_open(path: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("onrig.runtime.log.sink.Path.open", fail_open)
        log = open_sink(folder, mcap=True)
        log.add(EPISODE)
        log.poll(1e12)
        assert log.account() == LogAccount(len(EPISODE), len(EPISODE), "No space left on device")
        assert [kind for kind, _ in folder.events] == ["log_stopped"]
    log.poll(2e12)
    log.add(EPISODE)
    log.close()
    assert [kind for kind, _ in folder.events] == ["log_stopped", "log_goes_on", "log_closed"]
    assert log.account() == LogAccount(2 * len(EPISODE), len(EPISODE), "No space left on device")
