"""The board reports *safe* only after a frame does, never because a request was sent or answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from onrig.hw.messages import Status, shows_safe
from onrig.runtime.control.outside import Confirmation
from onrig.runtime.lease import longest_hold_ns
from onrig.runtime.run_state.faults import FaultName
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.segment import Segment
from onrig.tools.load import load
from tests.hw.fake_device import state_of

REALTIME = load("pendulum", ["device.pace=realtime"])
SAFE, ARMED, FAULT = int(Status.SAFE), int(Status.ARMED), int(Status.FAULT)


class Bench:
    def __init__(self, folder: Path) -> None:
        session: Any = SimpleNamespace(last_frame=None, received_ns=0)
        self.session = session
        self.board = Board(Segment.create(folder / "board", BOARD_BYTES, BOARD_SCHEMA))
        self.confirmation = Confirmation(REALTIME, session, self.board)

    def receive(self, frame: int, status: int) -> tuple[int, int]:
        """Frames arrive one per period; returns (since, newest) on the board after each, in frames."""
        self.session.last_frame, self.session.received_ns = frame, 1000 * frame
        self.confirmation.process(state_of(frame)._replace(status=status, u_start=(0,), u_end=(0,)))
        return self.board[Word.SAFE_SINCE_NS] // 1000, self.board[Word.SAFE_NS] // 1000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("status", "safe"),
    [
        (Status.SAFE, True),
        (Status.SAFE | Status.FAULT, True),
        (Status.SAFE | Status.FIRST, True),
        (Status.ARMED | Status.SAFE, False),
        (Status.ARMED, False),
        (Status.FAULT, False),
        (0, False),
        (0x8000 | Status.SAFE, True),
    ],
)
@pytest.mark.rules("H202")
def test_safe_means_disarmed_with_the_safe_output_in_force(status: int, safe: bool) -> None:
    assert shows_safe(state_of(1)._replace(status=int(status), u_end=(0,)), (0.0,)) is safe


@pytest.mark.parametrize(("u_end", "safe"), [(7, True), (8, True), (9, False), (6, False), (-30_000, False)])
@pytest.mark.rules("H202")
def test_a_safe_output_is_within_half_a_count_of_the_safe_value(u_end: int, safe: bool) -> None:
    frame = state_of(1)._replace(status=SAFE, u_start=(30_000,), u_end=(u_end,))
    assert shows_safe(frame, (7.5,)) is safe


STATUS_CLAIMS = {
    "its own output": (False, [(SAFE, 0, 30_000)]),
    "the next frame's": (False, [(SAFE, 0, 0), (SAFE, 30_000, 0)]),
    "armed, not commanded": (False, [(ARMED | SAFE, 30_000, 30_000)]),
    "a latched fault": (False, [(SAFE | FAULT, 30_000, 30_000), (SAFE | FAULT, 30_000, 30_000)]),
    "a fault at the sample": (True, [(SAFE | FAULT, 30_000, 30_000), (SAFE | FAULT, 0, 0)]),
    "switched in the period": (True, [(ARMED, 30_000, 30_000), (SAFE, 30_000, 0), (SAFE, 0, 0)]),
    "commanded": (True, [(ARMED | SAFE, 0, 0), (ARMED, 0, 30_000)]),
}


@pytest.mark.parametrize("claim", STATUS_CLAIMS)
@pytest.mark.rules("H629")
def test_outputs_that_contradict_a_safe_status_are_a_fault(bench: Bench, claim: str) -> None:
    is_truthful, frames = STATUS_CLAIMS[claim]
    for n, (status, u_start, u_end) in enumerate(frames, 1):
        bench.confirmation.process(state_of(n)._replace(status=status, u_start=(u_start,), u_end=(u_end,)))
    contradiction = bench.confirmation.contradiction
    assert (contradiction is None) is is_truthful
    assert contradiction is None or contradiction.fault is FaultName.DEVICE_UNSAFE


def test_a_frame_whose_predecessor_was_lost_is_judged_on_its_own(bench: Bench) -> None:
    bench.receive(1, SAFE)
    bench.confirmation.process(state_of(3)._replace(status=ARMED, u_start=(30_000,)))
    assert bench.confirmation.contradiction is None


def test_the_first_and_the_newest_confirming_frame_are_kept(bench: Bench) -> None:
    assert bench.receive(7, SAFE) == (7, 7)
    assert bench.receive(8, SAFE) == (7, 8)
    assert bench.receive(9, ARMED | SAFE) == (0, 0)
    assert bench.receive(10, SAFE) == (10, 10)


def test_arming_withdraws_the_confirmation_before_the_device_can_receive_it(bench: Bench) -> None:
    bench.receive(7, SAFE)
    bench.confirmation.withdraw()
    assert bench.board[Word.SAFE_NS] == bench.board[Word.SAFE_SINCE_NS] == 0


@pytest.mark.rules("H202")
def test_a_frame_sampled_before_arming_confirms_nothing_afterwards(bench: Bench) -> None:
    bench.confirmation.withdraw()
    bench.session.last_frame = 8
    bench.confirmation.on_armed()
    bench.confirmation.process(state_of(8)._replace(status=SAFE, u_start=(0,), u_end=(0,)))
    assert bench.board[Word.SAFE_NS] == 0
    assert bench.receive(9, SAFE) == (9, 9)


def test_only_a_frame_newer_than_the_given_one_is_returned(bench: Bench) -> None:
    assert not bench.confirmation.is_confirmed_after(None)
    bench.receive(0xFFFF_FFFF, SAFE)
    assert bench.confirmation.is_confirmed_after(None)
    assert not bench.confirmation.is_confirmed_after(0xFFFF_FFFF)
    bench.receive(1, SAFE)
    assert bench.confirmation.is_confirmed_after(0xFFFF_FFFF)
    bench.receive(2, ARMED)
    assert not bench.confirmation.is_confirmed_after(None)


@pytest.mark.rules("H612")
def test_a_command_stays_in_force_for_a_lease_and_the_period_of_its_frame(bench: Bench) -> None:
    periods = REALTIME.rig.lease_periods + 1
    assert bench.board[Word.HOLD_NS] == longest_hold_ns(REALTIME) == periods * REALTIME.wall_period_ns
    lockstep = msgspec.structs.replace(REALTIME.device, pace="lockstep")
    assert longest_hold_ns(msgspec.structs.replace(REALTIME, device=lockstep)) == 0
