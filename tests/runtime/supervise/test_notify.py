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


class NotifySocket:
    """The listening end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def received(self) -> list[list[str]]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages


@pytest.fixture
def systemd(socket_folder: Path) -> Iterator[NotifySocket]:
    notify_socket = NotifySocket(str(socket_folder / "notify"))
    with closing(notify_socket.socket):
        yield notify_socket


def notifier(systemd: NotifySocket, **environment: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": systemd.socket.getsockname(), **environment}, 1)


def test_a_run_reports_ready_alive_and_stopping_in_that_order(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as sd_notifier:
        sd_notifier.ready("up")
        sd_notifier.update(0.0, 1, "episode 1", is_hung=False)
        sd_notifier.update(1.0, 2, "episode 1", is_hung=False)
        sd_notifier.update(5.0, 3, "episode 2", is_hung=False)
        sd_notifier.stopping("ending")
    assert systemd.received() == [
        ["READY=1", "STATUS=up", "WATCHDOG=1"],
        ["STATUS=episode 1", "WATCHDOG=1"],
        ["STATUS=episode 2", "WATCHDOG=1"],
        ["STOPPING=1", "STATUS=ending", "WATCHDOG_USEC=120000000", "WATCHDOG=1"],
    ]


def test_the_watchdog_is_not_fed_for_a_hung_loop_and_the_status_reports_it_once(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as sd_notifier:
        sd_notifier.update(0.0, 1, "running", is_hung=False)
        for step in range(200):
            sd_notifier.update(0.1 * step, 1, "HUNG", is_hung=True)
    received = systemd.received()
    assert received == [["STATUS=running", "WATCHDOG=1"], ["STATUS=HUNG"]]


def test_the_watchdog_is_fed_for_a_paused_loop_that_polls_but_does_not_tick(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="2000000")) as sd_notifier:
        for second in range(10):
            sd_notifier.update(float(second), 1000 * (second + 1), "paused", is_hung=False)
    assert [m for m in systemd.received() if "WATCHDOG=1" in m] == [["STATUS=paused", "WATCHDOG=1"]] * 10


def test_the_watchdog_is_not_fed_for_a_loop_that_no_longer_polls_in_any_state(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="2000000")) as sd_notifier:
        for second in range(10):
            sd_notifier.update(float(second), 7, "paused", is_hung=False)
    assert len([m for m in systemd.received() if "WATCHDOG=1" in m]) == 1


def test_an_abstract_address_reaches_its_socket() -> None:
    name = f"onrig-test-{os.getpid()}"
    notify_socket = NotifySocket(f"\0{name}")
    with closing(notify_socket.socket), closing(Notifier(f"@{name}", None)) as sd_notifier:
        sd_notifier.ready("up")
        assert notify_socket.received() == [["READY=1", "STATUS=up"]]


def test_without_a_watchdog_only_the_status_is_updated(systemd: NotifySocket) -> None:
    with closing(notifier(systemd)) as sd_notifier:
        for second in range(11):
            sd_notifier.update(float(second), second + 1, f"episode {second}", is_hung=False)
        sd_notifier.stopping("ending")
    assert systemd.received() == [
        ["STATUS=episode 0"],
        ["STATUS=episode 5"],
        ["STATUS=episode 10"],
        ["STOPPING=1", "STATUS=ending"],
    ]


def test_a_multi_line_status_remains_one_field(systemd: NotifySocket) -> None:
    with closing(notifier(systemd)) as sd_notifier:
        sd_notifier.ready("a\nWATCHDOG=trigger")
    assert systemd.received() == [["READY=1", "STATUS=a WATCHDOG=trigger"]]


def test_without_a_listener_notifications_cost_nothing(tmp_path: Path) -> None:
    with closing(Notifier(str(tmp_path / "gone"), 1.0)) as sd_notifier:
        sd_notifier.ready("up")
        sd_notifier.update(0.0, 1, "running", is_hung=False)
        sd_notifier.stopping("ending")
    with closing(Notifier.from_environment({}, 1)) as disabled:
        disabled.ready("up")
        disabled.update(0.0, 1, "running", is_hung=False)
        disabled.stopping("ending")


def test_an_end_that_makes_progress_is_given_enough_time(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as sd_notifier:
        sd_notifier.stopping("ending")
        systemd.received()
        for now_s in (100.0, 101.0, 104.9, 105.0):
            sd_notifier.extend_timeout(now_s)
    assert systemd.received() == 2 * [["EXTEND_TIMEOUT_USEC=120000000", "WATCHDOG=1"]]


def test_a_status_refused_by_a_full_queue_is_sent_again(systemd: NotifySocket) -> None:
    with closing(notifier(systemd, WATCHDOG_USEC="10000000")) as sd_notifier:
        for _ in range(5000):
            sd_notifier.ready("up")
        sd_notifier.update(0.0, 0, "HUNG", is_hung=True)
        assert ["STATUS=HUNG"] not in systemd.received()
        sd_notifier.update(1.0, 0, "HUNG", is_hung=True)
    assert systemd.received() == [["STATUS=HUNG"]]


def test_a_full_queue_does_not_hold_up_the_run(systemd: NotifySocket) -> None:
    with closing(notifier(systemd)) as sd_notifier:
        for _ in range(5000):
            sd_notifier.ready("up")
    assert 0 < len(systemd.received()) < 5000


def test_the_environment_is_removed_from_the_processes_of_the_run(systemd: NotifySocket) -> None:
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
def test_the_watchdog_is_ours_only_if_it_names_us(environment: dict[str, str], expected: float | None) -> None:
    assert watchdog_interval_s(environment, 77) == expected


def test_the_control_process_shows_that_it_polls(tmp_path: Path) -> None:
    board = Board(Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA))
    orders = Requests(board)
    seen_polls = []
    for _ in range(3):
        assert not orders.is_stop_requested
        seen_polls.append(board[Word.POLLS])
    assert seen_polls == [1, 2, 3]


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_status_line_and_a_hung_one_reports_it(state: State) -> None:
    line = status_line(state, 12, 3, is_hung=False)
    assert "episode 12" in line
    assert "3 ticks missed" in line
    assert status_line(state, 12, 3, is_hung=True).startswith("HUNG")


@settings(max_examples=50)
@given(
    interval_s=st.floats(0.01, 60.0),
    steps=st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 2), st.booleans()), max_size=60),
)
def test_the_watchdog_is_fed_only_if_the_loop_has_polled_since_the_last_time(
    interval_s: float, steps: list[tuple[float, int, bool]]
) -> None:
    watchdog_schedule, now_s, n_polls, polls_at_reset = WatchdogSchedule(interval_s), 0.0, 0, 0
    for elapsed_s, n_new_polls, is_hung in steps:
        now_s, n_polls = now_s + elapsed_s, n_polls + n_new_polls
        if watchdog_schedule.decide(now_s, n_polls, is_hung=is_hung) is ResetDecision.RESET:
            assert n_polls > polls_at_reset
            assert not is_hung
            polls_at_reset = n_polls
