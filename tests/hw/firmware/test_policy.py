"""A policy on an emulated Cortex-M4F: it balances the pendulum while the host renews its lease, and no longer."""

from __future__ import annotations

import math
import time
from itertools import islice
from pathlib import Path

import pytest

from onrig.hw.messages import Fault, State
from onrig.hw.renewal import policy_name, renew, stop
from onrig.hw.session import DeviceSession
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.hw.firmware.build import SWING_UP, Board, qemu

PERIOD_US = 20_000
LEASE = 50  # a second: longer than a busy machine keeps the host waiting
POLICY = policy_name(SWING_UP.read_bytes())
RIG = load("pendulum", []).rig


def session_with(board: Board, lease: int) -> DeviceSession:
    session = DeviceSession(open_port(str(board.line)), RIG, time)
    session.connect()
    session.configure(PERIOD_US, lease)
    return session


def up(state: State) -> bool:
    """Within 0.2 rad of the upright position."""
    return math.cos(state.sensors[0] * RIG.sensors[0].resolution) < -math.cos(0.2)


def test_the_board_swings_the_pendulum_up_and_balances_it_for_ten_seconds(socket_folder: Path) -> None:
    """In device time, in lockstep."""
    with qemu("pendulum-lockstep", socket_folder, policy=True) as board:
        session = session_with(board, 5)
        states = list(islice(renew(session, POLICY, PERIOD_US, time), 650))
        assert all(up(state) for state in states[150:])
        assert states[-1].t_us - states[150].t_us >= 9_980_000
        assert stop(session, RIG, PERIOD_US, time)
        assert 500 < board.word(4) <= 4096 + 1024  # bytes of stack
        session.close()


def falls_safe(session: DeviceSession, lease: int, frames: int) -> list[State]:
    """Renew for a number of frames, then stop until the lease has expired; check that it expires in time."""
    states = list(islice(renew(session, POLICY, PERIOD_US, time), frames))
    read = len(states)
    while not states[-1].fault:
        state = session.wait_state(time.monotonic_ns() + 5_000_000_000)
        assert state is not None
        states.append(state)
    fault = states[-1]
    renewed = states[read - 1]  # the last frame that a renewal answers
    assert Fault(fault.fault) is Fault.LEASE
    assert fault.t_us - renewed.t_us <= (lease + 1) * PERIOD_US
    state = session.wait_state(time.monotonic_ns() + 5_000_000_000)
    assert state is not None
    assert state.u_start == state.u_end == (0,)
    return states[:read]


def test_without_renewals_the_board_is_safe_after_the_lease_and_a_period(socket_folder: Path) -> None:
    with qemu("pendulum", socket_folder, policy=True) as board:
        session = session_with(board, LEASE)
        assert falls_safe(session, LEASE, 20)[-1].answers
        session.close()


@pytest.mark.study
def test_in_real_time_it_balances_for_ten_seconds_and_then_becomes_safe(socket_folder: Path) -> None:
    with qemu("pendulum", socket_folder, policy=True) as board:
        session = session_with(board, LEASE)
        states = falls_safe(session, LEASE, 650)
        assert all(up(state) for state in states if state.frame > states[0].frame + 150)
        assert states[-1].t_us - states[0].t_us >= 12_900_000
        assert max(state.tau_us for state in states if state.answers == state.frame - 1) < PERIOD_US // 2
        session.close()
