from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.log import messages, wire
from onrig.runtime.log.messages import EPISODES, EVENTS, LINES, LOOP, POLICIES, STEPS
from onrig.runtime.log.steps import StepMessages
from onrig.runtime.run_state.episodes import parse_row
from onrig.runtime.run_state.running import Running
from onrig.runtime.view import run_view
from onrig.tools.foxglove.feed import MAX_MESSAGES, Feed
from tests.runtime.samples import PENDULUM, records
from tests.runtime.view.live import LiveRun

REALTIME = msgspec.structs.replace(PENDULUM, device=msgspec.structs.replace(PENDULUM.device, pace="realtime"))
HEADER = "episode,kind,steps,return,mean_reward,normalized,exploration,interventions,missed_ticks,policy_id,t_mono_ns"


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> list[Running]:
    """Runs on this machine."""
    running: list[Running] = []
    monkeypatch.setattr(run_view, "find_running", lambda folder: next((r for r in running if r.folder == folder), None))
    return running


@pytest.fixture
def live_run(tmp_path: Path, rigs: list[Running]) -> Iterator[LiveRun]:
    with LiveRun(tmp_path / "run", tmp_path / "shm", REALTIME) as run:
        rigs.append(run.running)
        yield run


@pytest.fixture
def feed(live_run: LiveRun) -> Iterator[Feed]:
    feed = Feed(live_run.folder, REALTIME)
    assert [*feed.poll(0.0)] == []
    yield feed
    feed.close()


def test_the_records_of_a_run_equal_the_steps_of_its_log(live_run: LiveRun, feed: Feed) -> None:
    rows = records(30)
    live_run.push(rows)
    messages_sent = [*feed.poll(0.1)]
    steps = [m for m in messages_sent if m.topic == STEPS]
    assert [m.t_ns for m in steps] == rows["t_mono_ns"].tolist()
    decoded = StepMessages(REALTIME.rig).decode(b"".join(m.data for m in steps))
    assert decoded["tick"].tolist() == rows["tick"].tolist()
    assert decoded["observation"].tobytes() == rows["observation"].tobytes()
    assert [m.topic for m in messages_sent if m.topic != STEPS] == [POLICIES]
    assert [*feed.poll(0.2)] == [], "nothing new"


def test_episodes_and_events_are_as_in_the_log(live_run: LiveRun, feed: Feed) -> None:
    row = "1,train,200,-1,-0.5,,0.25,0,0,1,77"
    (live_run.folder / "episodes.csv").write_text(f"{HEADER}\n{row}\n")
    with (live_run.folder / "events.jsonl").open("a") as file:
        file.write('{"t_unix_s":1.0,"kind":"fault","message":"LEASE"}\n')
    message_by_topic = {m.topic: m for m in feed.poll(1.0)}
    assert set(message_by_topic) == {EPISODES, EVENTS, LINES}
    parsed = parse_row(row.encode())
    assert parsed is not None
    assert (message_by_topic[EPISODES].t_ns, message_by_topic[EPISODES].data) == (77, messages.encode_episode(parsed))
    event = messages.read_event(b'{"t_unix_s":1.0,"kind":"fault","message":"LEASE"}')
    assert event is not None
    assert message_by_topic[EVENTS].data == wire.encode(messages.EVENT, event.fields)


def test_a_late_viewer_gets_only_the_newest(live_run: LiveRun, feed: Feed) -> None:
    live_run.push(records(MAX_MESSAGES + 40))
    steps = [m for m in feed.poll(0.1) if m.topic == STEPS]
    assert len(steps) == MAX_MESSAGES
    decoded = StepMessages(REALTIME.rig).decode(b"".join(m.data for m in steps))
    assert decoded["tick"][-1] == MAX_MESSAGES + 39


def test_a_resumed_run_is_followed(live_run: LiveRun, feed: Feed, rigs: list[Running], tmp_path: Path) -> None:
    live_run.push(records(10))
    assert len([*feed.poll(0.1)]) == 11
    with LiveRun(live_run.folder, tmp_path / "again", REALTIME) as resumed_run:
        rigs[:] = [resumed_run.running]
        assert [*feed.poll(1.0)] == []
        resumed_run.push(records(5))
        assert [m.topic for m in feed.poll(1.1)] == [POLICIES, *[STEPS] * 5]
        rigs.clear()
        assert [*feed.poll(2.0)] == []
    assert [*feed.poll(3.0)] == []


def test_its_channels_are_those_of_the_log_except_the_one_for_replays(feed: Feed) -> None:
    channel_by_topic = {c.topic: c for c in messages.channels(StepMessages(REALTIME.rig))}
    assert {c.topic: c for c in feed.channels} == {topic: c for topic, c in channel_by_topic.items() if topic != LOOP}
