"""The replay process's turn of work, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.records import Channel

from onrig.runtime.log.reading import count_steps
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.replay import process
from onrig.runtime.replay.process import ReplayProcess
from onrig.runtime.run_loading import load_run, save_resolved
from onrig.runtime.shm.board import Word
from onrig.runtime.shm.ring import RingWriter
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.segments import create_segments
from tests.runtime.samples import LAYOUT, Records, episode, records

EPISODES = 5
SETTINGS = (f"episodes={EPISODES}", "task.episode_s=0.8", "evaluate_every=0")
REAL_TIME = "device.pace=realtime"
BLOCKED_S = process._LEARNER_TIMEOUT_S


class Bench:
    """The shared memory of a run, and its replay process, in virtual time."""

    def __init__(self, folder: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.folder, self.shm = folder, shm
        self._running: ReplayProcess | None = None
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def starts(self, *settings: str) -> ReplayProcess:
        """Start the first one, or a successor once the first has been abandoned."""
        config = load_run("pendulum", [*SETTINGS, *settings])
        if not (self.shm / "board").exists():
            save_resolved(config, self.folder / "config.yaml")
            self.board = create_segments(self.shm, config)
            self.ring = RingWriter(Segment.attach(self.shm / "ring", LAYOUT.schema), LAYOUT)
        self._running = ReplayProcess(config, self.folder, self.shm)
        return self._running

    def leave(self) -> None:
        """Let it abandon the run."""
        if self._running is not None:
            self._running.abandon()
            self._running = None

    def write(self, n: int, *, episode: int = 1) -> None:
        """Let the loop write this number of records."""
        self.push(records(n, episode=episode))

    def push(self, rows: Records) -> None:
        """Let the loop write these records."""
        for row in rows:
            self.ring.push(tuple(v for name in (LAYOUT.dtype.names or ())[1:-1] for v in np.ravel(row[name]).tolist()))


@pytest.fixture
def bench(tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    process_bench = Bench(tmp_path, socket_folder, monkeypatch)
    yield process_bench
    process_bench.leave()


def test_records_logged_at_the_end_are_not_logged_again_by_a_successor(bench: Bench) -> None:
    first_process = bench.starts(REAL_TIME)
    bench.write(10)
    assert first_process.run_once()
    assert bench.board[Word.FIRST_UNLOGGED] == 0, "it waits for more to come"
    bench.leave()
    assert bench.board[Word.FIRST_UNLOGGED] == 10
    second_process = bench.starts(REAL_TIME)
    bench.write(3)
    assert second_process.run_once(), "no checkpoint has the first ten: they are taken in again"
    bench.leave()
    assert bench.board[Word.FIRST_UNLOGGED] == count_steps(bench.folder) == 13


def test_an_episode_is_logged_once_even_if_its_records_are_read_again(bench: Bench) -> None:
    first_episode, second_episode = episode(20, episode=1), episode(20, episode=2, tick=21)
    first_episode["t_mono_ns"], second_episode["t_mono_ns"] = np.arange(1, 22) * 10**7, np.arange(22, 43) * 10**7
    for rows in (first_episode, second_episode):
        process = bench.starts(REAL_TIME)
        bench.push(rows)
        assert process.run_once()
        bench.leave()
    counts_by_topic = Counter(channel.topic for path in log_files(bench.folder) for channel in channels(path))
    assert counts_by_topic["/onrig/episode"] == 2


def channels(path: Path) -> Iterator[Channel]:
    """Channel of each message of a log file."""
    with path.open("rb") as file:
        for _, channel, _ in make_reader(file).iter_messages():
            yield channel


def test_each_completed_episode_is_reported_even_if_it_is_repeated(bench: Bench) -> None:
    replay = bench.starts()
    bench.board[Word.CLOSED] = 4
    done_episodes = []
    for done_episode in (-1, 0, 3, 1, 2):
        replay._parts.requests.last_done_episode = done_episode
        replay.run_once()
        done_episodes.append((bench.board[Word.LEARNER_DONE], bench.board[Word.BARRIER]))
    assert done_episodes == [(0, 0), (1, 1), (4, 4), (2, 4), (3, 4)]


# -- when it is over ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "closed_episode", "done_episode", "n_waiting", "is_over"),
    [
        ((REAL_TIME,), EPISODES, -1, 0, True),
        ((REAL_TIME,), EPISODES, -1, 7, False),
        ((), 3, 2, 0, True),
        ((), 3, 2, 7, False),
        ((), EPISODES, EPISODES - 1, 0, False),
        ((), EPISODES, EPISODES, 0, True),
    ],
    ids=[
        "all is taken in",
        "records wait",
        "a run that was stopped is gone on with later",
        "records of one that was stopped wait",
        "the learner has the last episode to conclude",
        "all is concluded",
    ],
)
def test_it_is_over_once_the_loop_has_ended_and_nothing_is_left_to_do(
    bench: Bench, settings: tuple[str, ...], closed_episode: int, done_episode: int, n_waiting: int, is_over: bool
) -> None:
    replay = bench.starts(*settings)
    bench.write(n_waiting)
    bench.board[Word.CLOSED] = replay._parts.requests.feed.last_closed_episode = closed_episode
    replay._parts.requests.last_done_episode = done_episode
    assert not replay.is_finished, "the loop goes on"
    bench.board[Word.ENDED] = 1
    assert replay.is_finished is is_over


@pytest.mark.parametrize("n_waiting", [0, 7], ids=["nothing waits", "records wait"])
def test_a_learner_that_completes_nothing_more_is_not_waited_for_forever(bench: Bench, n_waiting: int) -> None:
    replay = bench.starts()
    bench.write(n_waiting, episode=EPISODES)
    bench.board[Word.CLOSED] = replay._parts.requests.feed.last_closed_episode = EPISODES
    bench.now_s += 10 * BLOCKED_S
    assert not replay.is_finished
    bench.board[Word.ENDED] = 1
    assert not replay.is_finished, "the wait begins with the loop's end"
    for done_episode in range(EPISODES - 1):
        replay._parts.requests.last_done_episode = done_episode
        replay.run_once()
        bench.now_s += 0.9 * BLOCKED_S
        assert not replay.is_finished, "it makes progress"
    bench.now_s += 0.2 * BLOCKED_S
    assert replay.is_finished
