"""What a device's frames say that cannot be: samples at another rate than was set, sensors that nothing moves.

Pure, and judged anew in each episode, so that a recorded run replays to the same verdicts.  ``hw/PROTOCOL.md`` §6
states the thresholds for whoever writes a firmware.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from onrig.hw.messages import State
from onrig.hw.rig import Rig
from onrig.runtime.run_state.faults import FaultName

RATE_WINDOW: Final = 128
"""Frames in which a device's clock may stray by half a period from the grid of the rate that was set: 0.4 %."""
RATE_STRIKES: Final = 8
"""Strays in a row, each judged from where the one before ended, that make a wrong rate.

One alone is a clock that stood still or jumped, which happens to a simulated board and ends no run.
"""
FROZEN_SWING: Final = 0.25
"""Share of its range by which each actuator's output must have varied for sensors to be called frozen.

Several times what friction and the play of gears hold still, and far more than the noise of a policy that balances.
"""
FROZEN_WINDOWS: Final = 2
"""In each of so many parts of ``supervision.frozen_s``: one pulse that moves nothing is not enough."""


class Contradiction(NamedTuple):
    """A verdict."""

    fault: FaultName
    detail: str


class RateCheck:
    """Compares the device's clock with the count of its frames."""

    def __init__(self, period_us: int) -> None:
        self._period_us = period_us
        self._slack_us = period_us // 2
        self.found_us = float(period_us)
        """The device's own period, as the last stray showed it."""
        self.reset()

    def reset(self) -> None:
        """Start anew with the next frame."""
        self._frame = -1
        self._until = self._grid_us = self._strikes = 0

    def take(self, state: State) -> bool:
        """Take a frame; True when the device samples at another rate."""
        frame = state.frame
        strays_us = state.t_us - frame * self._period_us - self._grid_us
        if frame < self._until and -self._slack_us <= strays_us <= self._slack_us:
            return False
        return self._judge(state, strays_us)

    def _judge(self, state: State, strays_us: int) -> bool:
        """Count or forgive, and go on from this frame.  Numbers that wrap look like one stray, and are forgiven."""
        if self._frame >= 0 and abs(strays_us) > self._slack_us:
            self._strikes += 1
            self.found_us = self._period_us + strays_us / max(state.frame - self._frame, 1)
        else:
            self._strikes = 0
        self._frame, self._until = state.frame, state.frame + RATE_WINDOW
        self._grid_us = state.t_us - state.frame * self._period_us
        return self._strikes >= RATE_STRIKES


class FrozenCheck:
    """Watches for sensors that stay bit for bit the same while the commands must have moved what they measure."""

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._window = max(round(frozen_s * 1e6 / FROZEN_WINDOWS / period_us), 2) if frozen_s > 0 else 0
        self._swings = tuple(FROZEN_SWING * (a.high - a.low) / a.resolution for a in rig.actuators)
        self.reset()

    def reset(self) -> None:
        """Start anew with the next frame."""
        self._sensors: tuple[int, ...] = ()
        self._low: list[int] = []
        self._high: list[int] = []
        self._frames = self._windows = 0

    def take(self, state: State) -> bool:
        """Take a frame; True when the sensors are frozen."""
        if state.sensors != self._sensors:
            self._sensors = state.sensors
            self._frames = self._windows = 0
            return False
        if not self._window:
            return False
        if self._frames == 0:
            self._low, self._high = list(state.u_end), list(state.u_end)
        else:
            low, high = self._low, self._high
            for i, count in enumerate(state.u_end):
                if count < low[i]:
                    low[i] = count
                elif count > high[i]:
                    high[i] = count
        self._frames += 1
        if self._frames < self._window:
            return False
        self._frames = 0
        swung = all(h - low >= s for low, h, s in zip(self._low, self._high, self._swings, strict=True))
        self._windows = self._windows + 1 if swung else 0
        return self._windows >= FROZEN_WINDOWS


class Contradictions:
    """All of them, for one rig at one rate."""

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._period_us, self._frozen_s = period_us, frozen_s
        self._rate = RateCheck(period_us)
        self._frozen = FrozenCheck(rig, period_us, frozen_s)

    def reset(self) -> None:
        """Start anew: another episode, or a fault that somebody looked at."""
        self._rate.reset()
        self._frozen.reset()

    def take(self, state: State) -> Contradiction | None:
        """Take a frame; well under a microsecond, and nothing grows."""
        if self._rate.take(state):
            found_hz = 1e6 / max(self._rate.found_us, 1e-6)
            detail = f"its clock shows {found_hz:.4g} Hz, set were {1e6 / self._period_us:.4g} Hz"
            return Contradiction(FaultName.DEVICE_RATE, detail)
        if self._frozen.take(state):
            return Contradiction(FaultName.SENSORS_FROZEN, f"not one count in {self._frozen_s:g} s")
        return None
