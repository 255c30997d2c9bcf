from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.log.mcap_log import McapLog
from onrig.runtime.replay.accounts.figures import TimingFile
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.running import Running
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.runtime.view import run_view as module
from onrig.runtime.view.reader import Figures, ViewReader
from onrig.tools.web.connections import Message
from onrig.tools.web.producer import Producer
from tests.runtime.log.test_mcap_log import seal
from tests.runtime.samples import PENDULUM, episode, records
from tests.runtime.view.live import LiveRun

REALTIME = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="realtime"))
HEADER = "episode,kind,steps,return,mean_reward,normalized,exploration,interventions,missed_ticks,policy_id,t_mono_ns"


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    """The runs on this machine, as far as the page is concerned."""
    running: list[Running] = []
    monkeypatch.setattr(module, "find_running", lambda folder: next((r for r in running if r.folder == folder), None))
    return running


@pytest.fixture
def live_run(tmp_path: Path, rigs: list[Running]) -> Iterator[LiveRun]:
    with make_live_run(tmp_path, REALTIME) as run:
        rigs.append(run.running)
        yield run


def make_live_run(tmp_path: Path, config: RunConfig) -> LiveRun:
    return LiveRun(tmp_path / "run", tmp_path / "shm", config)


def data_by_kind(messages: Iterable[Message]) -> dict[str, object]:
    return {m.kind: msgspec.json.decode(msgspec.json.encode(m.data)) for m in messages}


def field(data: object, name: str) -> object:
    assert isinstance(data, dict)
    return data[name]


def test_a_live_run_is_reported_from_its_board_records_and_files(live_run: LiveRun) -> None:
    producer = Producer(REALTIME, live_run.folder)
    live_run.board[Word.STATE], live_run.board[Word.EPISODE], live_run.board[Word.POLICY] = State.RUNNING, 7, 9
    (live_run.folder / "episodes.csv").write_text(f"{HEADER}\n1,train,200,-1,-0.5,0.5,0.25,0,0,1,0\n")
    (live_run.folder / "events.jsonl").write_text('{"kind":"policy_admitted","policy":1}\n')
    live_run.push(records(50))
    live_run.telemetry.poll(1e6)
    messages = data_by_kind(producer.updates(0.0))
    assert set(messages) == {"episodes", "events", "status", "figures"}
    assert (field(messages["status"], "state"), field(messages["status"], "episode")) == ("running", 7)
    assert field(messages["figures"], "ticks") == 50
    rows = records(20, tick=50)
    rows["t_mono_ns"] = np.arange(1, 21) * 10**9
    live_run.push(rows)
    later_messages = data_by_kind(producer.updates(0.05))
    assert set(later_messages) == {"motion"}
    assert len(msgspec.convert(field(later_messages["motion"], "t"), list[float])) == 20
    assert data_by_kind(producer.updates(0.1)) == {}, "nothing new"
    snapshot = data_by_kind(producer.snapshot())
    assert set(snapshot) == {"about", "status", "episodes", "events", "figures", "motion"}
    assert field(snapshot["events"], "policies") == [[1, "admitted", ""]]
    producer.close()


def test_the_memory_is_shown_once_it_has_been_sampled_for_the_page(live_run: LiveRun) -> None:
    import time

    producer = Producer(REALTIME, live_run.folder)
    live_run.insert_random(30, np.random.default_rng(0))
    live_run.telemetry.poll(time.monotonic())
    list(producer.updates(0.0))
    live_run.telemetry.poll(time.monotonic() + 0.5)
    message_by_kind = data_by_kind(producer.updates(1.0))
    assert (field(message_by_kind["memory"], "shown"), field(message_by_kind["memory"], "stored")) == (30, 30)
    assert "memory" not in data_by_kind(producer.updates(2.0)), "the sample has not changed"
    producer.close()


def test_no_more_is_shown_than_the_stated_number_if_the_sample_is_newer_than_the_figures(
    live_run: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    producer = Producer(REALTIME, live_run.folder)
    live_run.insert_random(30, np.random.default_rng(0))
    live_run.telemetry.poll(time.monotonic())
    list(producer.updates(0.0))
    live_run.telemetry.poll(time.monotonic() + 0.5)
    figures = ViewReader.figures

    def figures_without_sums(reader: ViewReader) -> Figures | None:
        current_figures = figures(reader)
        return current_figures and current_figures._replace(stored=20, inserted=20)

    monkeypatch.setattr(ViewReader, "figures", figures_without_sums)
    messages = data_by_kind(producer.updates(1.0))
    assert (field(messages["memory"], "shown"), field(messages["memory"], "stored")) == (30, 30)
    producer.close()


def test_in_lockstep_one_episode_at_a_time_is_played(tmp_path: Path, rigs: list[Running]) -> None:
    with make_live_run(tmp_path, PENDULUM) as run:
        rigs.append(run.running)
        producer = Producer(PENDULUM, run.folder)
        run.push(episode(40, episode=3))
        messages = data_by_kind(producer.updates(0.0))
        assert field(messages["clip"], "episode") == 3
        run.push(episode(40, episode=4, tick=41))
        assert "clip" not in data_by_kind(producer.updates(1.7)), "0.8 s of it and a pause are not over"
        assert field(data_by_kind(producer.updates(1.9))["clip"], "episode") == 4
        producer.close()


def test_the_end_of_a_run_is_reported_with_its_last_data(live_run: LiveRun, rigs: list[Running]) -> None:
    producer = Producer(REALTIME, live_run.folder)
    list(producer.updates(0.0))
    assert producer.running is not None
    (live_run.folder / "episodes.csv").write_text(f"{HEADER}\n1,train,200,-1,-0.5,0.5,0.25,0,0,1,0\n")
    (live_run.folder / "summary.json").write_text('{"exit_reason":"completed"}')
    rigs.clear()
    messages = list(producer.updates(5.0))
    assert [m.kind for m in messages] == ["episodes", "status", "ended"]
    assert field(field(messages[-1].data, "words"), "ended") == "completed"
    assert producer.running is None
    assert [m.kind for m in producer.snapshot()][-1] == "ended"
    assert list(producer.final_messages()) == []


def test_a_run_that_has_already_ended_is_reported_completely(tmp_path: Path, rigs: list[Running]) -> None:
    (tmp_path / "episodes.csv").write_text(f"{HEADER}\n1,train,200,-1,-0.5,0.5,0.25,0,0,1,0\n")
    (tmp_path / "summary.json").write_text("{}")
    timing = TimingFile(tmp_path / "timing.json", lockstep=True)
    rows = records(600)
    rows["tick_ns"], rows["stage_ns"] = 1024, 100
    timing.add(rows)
    timing.write()
    messages = list(Producer(PENDULUM, tmp_path).updates(0.0))
    assert [m.kind for m in messages][-2:] == ["status", "ended"]
    assert "episodes" in [m.kind for m in messages]
    histograms = field(msgspec.json.decode(msgspec.json.encode(messages[-1].data)), "histograms")
    assert histograms == {"tick": {"first": 80, "counts": [600]}}


def test_a_finished_run_plays_the_last_episode_of_its_log(tmp_path: Path, rigs: list[Running]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("rig: pendulum\n")
    log = McapLog(PENDULUM, tmp_path, "s", lambda kind, **fields: None, lambda: None, lambda: 0.0)
    for number, n in ((1, 20), (2, 30)):
        rows = seal(episode(n, episode=number, tick=100 * number))
        log.add(rows)
    log.add(seal(records(5, episode=3, tick=300)))
    log.close()
    producer = Producer(PENDULUM, tmp_path)
    messages = data_by_kind(producer.updates(0.0))
    assert (field(messages["clip"], "episode"), field(messages["clip"], "kind")) == (2, "training")
    assert len(msgspec.convert(field(messages["clip"], "t"), list[float])) == 31
    assert "clip" in [m.kind for m in producer.snapshot()], "and to pages that open later"


def test_a_page_that_ends_while_the_run_continues_reports_no_end(live_run: LiveRun) -> None:
    producer = Producer(REALTIME, live_run.folder)
    list(producer.updates(0.0))
    assert list(producer.final_messages()) == []
    assert field(data_by_kind(producer.snapshot())["status"], "phase") == "running"
    producer.close()


def test_a_page_opened_after_an_unwatched_resumption_shows_the_run_alive(
    tmp_path: Path, live_run: LiveRun, rigs: list[Running]
) -> None:
    producer = Producer(REALTIME, live_run.folder)
    live_run.push(records(50))
    list(producer.updates(0.0))
    list(producer.updates(0.05))
    rigs.clear()
    assert [m.kind for m in producer.updates(2.0)][-1] == "ended"
    (tmp_path / "again").mkdir()
    with LiveRun(live_run.folder, tmp_path / "again", REALTIME) as resumed_run:
        rigs.append(resumed_run.running._replace(pid=2))
        resumed_run.push(records(5))
        messages = data_by_kind(producer.snapshot())
        assert "ended" not in messages
        assert field(messages["status"], "phase") == "running"
        list(producer.updates(2.05))
        rows = records(3, tick=5)
        rows["t_mono_ns"] = np.arange(1, 4) * 10**9
        resumed_run.push(rows)
        assert "motion" in data_by_kind(producer.updates(2.1)), "though its ring counts from 0 again"
        producer.close()


def test_a_session_that_follows_within_one_poll_is_reported_to_pages_that_saw_the_previous_one(
    tmp_path: Path, live_run: LiveRun, rigs: list[Running]
) -> None:
    producer = Producer(REALTIME, live_run.folder)
    (live_run.folder / "episodes.csv").write_text(f"{HEADER}\n1,train,200,-1,-0.5,0.5,0.25,0,0,1,0\n")
    list(producer.updates(0.0))
    with LiveRun(live_run.folder, tmp_path / "again", REALTIME) as resumed_run:
        rigs[:] = [resumed_run.running._replace(pid=2)]
        messages = list(producer.updates(5.0))
        assert "about" in [m.kind for m in messages]
        assert "ended" not in [m.kind for m in messages]
        (episodes,) = (m.data for m in messages if m.kind == "episodes" and field(m.data, "complete"))
        assert len(msgspec.convert(field(episodes, "rows"), list[object])) == 1
        producer.close()


def test_a_killed_run_is_over_once_it_has_shown_no_activity_for_a_while(tmp_path: Path, rigs: list[Running]) -> None:
    producer = Producer(PENDULUM, tmp_path)
    assert data_by_kind(producer.updates(100.0)) == {}, "it may be about to begin"
    assert "ended" in data_by_kind(producer.updates(161.0))


def test_an_awaited_run_is_not_over_because_of_leftovers_of_an_earlier_one(tmp_path: Path, rigs: list[Running]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    producer = Producer(PENDULUM, tmp_path, starting=True)
    assert "ended" not in data_by_kind(producer.updates(0.0))
    assert field(data_by_kind(producer.snapshot())["status"], "phase") == "starting"


def test_a_stop_is_unconfirmed_until_a_frame_received_after_it_shows_the_actuators_safe(
    live_run: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(REALTIME, live_run.folder)
    board = live_run.board

    def stop_state() -> object:
        return field(data_by_kind(producer.snapshot())["status"], "actuators")

    list(producer.updates(0.0))
    board[Word.SAFE_NS] = board[Word.ANSWERED_NS] = board[Word.HOLD_NS] = 5_000_000_000
    monkeypatch.setattr("onrig.tools.web.producer.time.monotonic_ns", lambda: 7_000_000_000)
    assert stop_state() is None
    board[Word.STOP_OUTSIDE] = 1
    assert str(stop_state()).startswith(
        "unconfirmed: no state frame from the device shows them safe; the device's lease ends at "
    )
    board[Word.STATE] = State.DISCONNECTED
    assert str(stop_state()).startswith("unconfirmed"), "the loop's state does not confirm that of the device"
    board[Word.SAFE_NS] = 7_500_000_000
    assert stop_state() == "safe: shown by a state frame from the device"
    producer.close()
