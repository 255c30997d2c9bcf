"""Latched fault of a device that has refused to arm or to clear a fault."""

from __future__ import annotations

import contextlib
import time
from typing import Final

from onrig.hw.intake import is_before
from onrig.hw.messages import State
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.runtime.control.pace import Pace
from onrig.runtime.run_state.faults import is_faulted

_MIN_WAIT_S: Final = 1.0
_MIN_PERIODS: Final = 10


def latched_frame(session: DeviceSession, pace: Pace, period_ns: int) -> State | None:
    """Return the next frame if it reports a latched fault; None if it does not, or if no frame arrives.

    ``period_ns``: control period on the wall clock.
    """
    previous = session.last_frame  # a waiting frame may have been sampled before the fault was latched
    with contextlib.suppress(RequestRefused):  # in lockstep, from a device that cannot reset
        pace.request_frame()
    limit_ns = time.monotonic_ns() + max(round(_MIN_WAIT_S * 1e9), _MIN_PERIODS * period_ns)
    while (state := session.wait_state(limit_ns)) is not None:
        if is_faulted(state):
            return state
        if previous is None or is_before(previous, state.frame):
            return None
    return None
