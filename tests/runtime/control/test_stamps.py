"""When a frame was due, on the host's clock and in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from onrig.runtime.control.stamps import DeviceStamps, HostStamps
from tests.runtime.control.test_actor import a_step

PERIOD_NS = 2_000_000
START_NS = 7_000_000


def state(t_us: int) -> Any:
    return type("State", (), {"t_us": t_us})()


@pytest.fixture
def stamps() -> HostStamps:
    """Stamps of ten frames that arrived without delay."""
    stamps = HostStamps(1.0, PERIOD_NS)
    for k in range(10):
        stamps.stamp(a_step(k), state(2000 * k), START_NS + PERIOD_NS * k)
    return stamps


def test_a_frame_without_an_estimate_counts_as_punctual() -> None:
    assert HostStamps(1.0, PERIOD_NS).due_ns(4000, 5) == 5


@pytest.mark.parametrize("n_missed", [0, 3])
@pytest.mark.parametrize("lateness_ns", [0, 900_000, PERIOD_NS - 1])
def test_a_late_frame_was_due_earlier(stamps: HostStamps, n_missed: int, lateness_ns: int) -> None:
    due_ns = START_NS + PERIOD_NS * (10 + n_missed)
    assert stamps.due_ns(2000 * (10 + n_missed), due_ns + lateness_ns) == due_ns


@pytest.mark.parametrize("lateness_ns", [-1, PERIOD_NS, 10**9], ids=["early", "a period", "after a stop"])
def test_an_estimate_that_cannot_be_right_is_not_used(stamps: HostStamps, lateness_ns: int) -> None:
    now_ns = START_NS + 10 * PERIOD_NS + lateness_ns
    assert stamps.due_ns(20_000, now_ns) == now_ns


def test_no_frame_is_late_in_virtual_time() -> None:
    assert DeviceStamps().due_ns(20_000, 5) == 5
