"""Notifications to systemd, and its watchdog."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.control.outside import Requests
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.runtime.supervise.notify import Notifier, ResetDecision, WatchdogSchedule, status_line, watchdog_interval_s


class Systemd:
    """The listening end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages


@pytest.fixture
def systemd(socket_folder: Path) -> Iterator[Systemd]:
    listening = Systemd(str(socket_folder / "notify"))
    with closing(listening.socket):
        yield listening


def notifier(systemd: Systemd, **more: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": systemd.socket.getsockname(), **more}, 1)


def test_a_run_says_ready_alive_and_stopping_in_that_order(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as telling:
        telling.ready("up")
        telling.update(0.0, 1, "episode 1", is_hung=False)
        telling.update(1.0, 2, "episode 1", is_hung=False)
        telling.update(5.0, 3, "episode 2", is_hung=False)
        telling.stopping("ending")
    assert systemd.heard() == [
        ["READY=1", "STATUS=up", "WATCHDOG=1"],
        ["STATUS=episode 1", "WATCHDOG=1"],
        ["STATUS=episode 2", "WATCHDOG=1"],
        ["STOPPING=1", "STATUS=ending", "WATCHDOG_USEC=120000000", "WATCHDOG=1"],
    ]


def test_a_hung_loop_is_not_petted_and_the_status_says_so_once(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as telling:
        telling.update(0.0, 1, "running", is_hung=False)
        for tenth in range(200):
            telling.update(0.1 * tenth, 1, "HUNG", is_hung=True)
    heard = systemd.heard()
    assert heard == [["STATUS=running", "WATCHDOG=1"], ["STATUS=HUNG"]]


def test_a_paused_loop_that_looks_is_petted_though_it_makes_no_ticks(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="2000000")) as telling:
        for second in range(10):
            telling.update(float(second), 1000 * (second + 1), "paused", is_hung=False)
    assert [m for m in systemd.heard() if "WATCHDOG=1" in m] == [["STATUS=paused", "WATCHDOG=1"]] * 10


def test_a_loop_that_no_longer_looks_is_not_petted_whatever_its_state(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="2000000")) as telling:
        for second in range(10):
            telling.update(float(second), 7, "paused", is_hung=False)
    assert len([m for m in systemd.heard() if "WATCHDOG=1" in m]) == 1


def test_an_abstract_address_reaches_its_socket() -> None:
    name = f"onrig-test-{os.getpid()}"
    listening = Systemd(f"\0{name}")
    with closing(listening.socket), closing(Notifier(f"@{name}", None)) as telling:
        telling.ready("up")
        assert listening.heard() == [["READY=1", "STATUS=up"]]


def test_without_a_watchdog_only_the_status_is_renewed(systemd: Systemd) -> None:
    with closing(notifier(systemd)) as telling:
        for second in range(11):
            telling.update(float(second), second + 1, f"episode {second}", is_hung=False)
        telling.stopping("ending")
    assert systemd.heard() == [
        ["STATUS=episode 0"],
        ["STATUS=episode 5"],
        ["STATUS=episode 10"],
        ["STOPPING=1", "STATUS=ending"],
    ]


def test_a_status_of_several_lines_stays_one_field(systemd: Systemd) -> None:
    with closing(notifier(systemd)) as telling:
        telling.ready("a\nWATCHDOG=trigger")
    assert systemd.heard() == [["READY=1", "STATUS=a WATCHDOG=trigger"]]


def test_nobody_who_listens_costs_nothing(tmp_path: Path) -> None:
    with closing(Notifier(str(tmp_path / "gone"), 1.0)) as telling:
        telling.ready("up")
        telling.update(0.0, 1, "running", is_hung=False)
        telling.stopping("ending")
    with closing(Notifier.from_environment({}, 1)) as silent:
        silent.ready("up")
        silent.update(0.0, 1, "running", is_hung=False)
        silent.stopping("ending")


def test_an_end_that_makes_progress_is_given_the_time_it_takes(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as telling:
        telling.stopping("ending")
        systemd.heard()
        for now_s in (100.0, 101.0, 104.9, 105.0):
            telling.extend_timeout(now_s)
    assert systemd.heard() == 2 * [["EXTEND_TIMEOUT_USEC=120000000", "WATCHDOG=1"]]


def test_a_status_that_a_full_queue_refused_is_sent_again(systemd: Systemd) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as telling:
        for _ in range(5000):
            telling.ready("up")
        telling.update(0.0, 0, "HUNG", is_hung=True)
        assert ["STATUS=HUNG"] not in systemd.heard()
        telling.update(1.0, 0, "HUNG", is_hung=True)
    assert systemd.heard() == [["STATUS=HUNG"]]


def test_a_full_queue_does_not_hold_up_the_run(systemd: Systemd) -> None:
    with closing(notifier(systemd)) as telling:
        for _ in range(5000):
            telling.ready("up")
    assert 0 < len(systemd.heard()) < 5000


def test_the_environment_is_taken_away_from_the_processes_of_the_run(systemd: Systemd) -> None:
    environment = {
        "NOTIFY_SOCKET": systemd.socket.getsockname(),
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "HOME": "x",
    }
    Notifier.from_environment(environment, 1).close()
    assert environment == {"HOME": "x"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "77"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_ours_only_where_it_names_us(environment: dict[str, str], expected: float | None) -> None:
    assert watchdog_interval_s(environment, 77) == expected


def test_the_control_process_shows_that_it_looks(tmp_path: Path) -> None:
    board = Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))
    orders = Requests(board)
    seen = []
    for _ in range(3):
        assert not orders.is_stop_requested
        seen.append(board[Word.POLLS])
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_status_line_and_a_hung_one_says_so(state: State) -> None:
    line = status_line(state, 12, 3, is_hung=False)
    assert "episode 12" in line
    assert "3 ticks missed" in line
    assert status_line(state, 12, 3, is_hung=True).startswith("HUNG")


@settings(max_examples=50)
@given(
    every_s=st.floats(0.01, 60.0),
    turns=st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 2), st.booleans()), max_size=60),
)
def test_no_beat_counts_as_alive_unless_the_loop_looked_since_the_last_one(
    every_s: float, turns: list[tuple[float, int, bool]]
) -> None:
    pulse, now, polls, looks_at_last = WatchdogSchedule(every_s), 0.0, 0, 0
    for passed, looked, is_hung in turns:
        now, polls = now + passed, polls + looked
        if pulse.decide(now, polls, is_hung=is_hung) is ResetDecision.RESET:
            assert polls > looks_at_last
            assert not is_hung
            looks_at_last = polls
