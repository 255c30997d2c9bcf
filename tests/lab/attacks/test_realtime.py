from __future__ import annotations

import pytest

from onrig.hw.messages import State, Status
from tests.lab.attacks.realtime import false_safe, outlived_lease
from tests.lab.rig.wire import TimedState

ACTS, SAFE = int(Status.ARMED), int(Status.SAFE)
PERIOD_NS, ZERO = 20_000_000, (0.0,)


def frames(*status: int, answers: int | None = None) -> list[TimedState]:
    """One frame per period, starting at 0; a frame with SAFE has the safe output."""
    return [
        TimedState(n * PERIOD_NS, State(n, n * 20_000, s, 0, 5, n - 1 if answers is None else answers, 0, (0, 0), u, u))
        for n, s in enumerate(status)
        for u in [(0,) if s & Status.SAFE else (1,)]
    ]


CLAIM = "runs/x: actuators safe after 114 ms (faded out)\n"


def test_safe_is_false_until_a_frame_confirms_it() -> None:
    seen = frames(ACTS, ACTS, ACTS, SAFE)
    (found,) = false_safe(seen, [(PERIOD_NS, CLAIM)], ZERO)
    assert "40 ms more" in found
    assert false_safe(seen, [(3 * PERIOD_NS, CLAIM)], ZERO) == []


def test_a_contradictory_frame_confirms_nothing() -> None:
    lying = [s._replace(state=s.state._replace(u_start=(1,), u_end=(1,))) for s in frames(ACTS, SAFE, SAFE)]
    (found,) = false_safe(lying, [(2 * PERIOD_NS, CLAIM)], ZERO)
    assert "to the end" in found


def test_a_device_that_never_becomes_safe_is_reported() -> None:
    (found,) = false_safe(frames(ACTS, ACTS), [(PERIOD_NS, CLAIM)], ZERO)
    assert "to the end" in found


@pytest.mark.parametrize(
    "message",
    [
        "runs/x: unconfirmed: the device's lease ends at 12:00:01, then the actuators are safe\n",
        "onrig stop: the loop did not confirm that the actuators are safe; the device's lease has seen to it\n",
        "runs/x: ended: interrupted, 1.2 s in all\n",
    ],
)
def test_lines_without_a_claim_are_ignored(message: str) -> None:
    assert false_safe(frames(ACTS, ACTS), [(PERIOD_NS, message)], ZERO) == []


def test_a_command_older_than_the_lease_and_a_period_is_found() -> None:
    assert outlived_lease(frames(*[ACTS] * 8, answers=1), 6, ZERO) == []
    (found,) = outlived_lease(frames(*[ACTS] * 9, answers=1), 5, ZERO)
    assert found.endswith("in 1 frames, first 8")
    assert outlived_lease(frames(*[SAFE] * 9, answers=1), 5, ZERO) == []
