"""Contradictions in a device's frames: false reports of a safe output, a wrong sampling rate, frozen sensors.

Pure, and restarted in each episode, so that a recorded run replays to the same verdicts.  ``hw/PROTOCOL.md`` §6
states the thresholds for firmware authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.hw.intake import frames_between
from onrig.hw.messages import State, Status, contradicts_safe
from onrig.hw.rig import Rig
from onrig.runtime.run_state.faults import FaultName

RATE_WINDOW: Final = 128
"""Frames within which the device clock may drift half a period off the configured grid: 0.4 %."""
RATE_STRIKES: Final = 8
"""Consecutive drifts, each measured from the end of the previous one, that count as a wrong rate.

A single drift means that a clock stopped or jumped, which happens on a simulated board and does not end the run.
"""
MIN_COMMAND_SWING: Final = 0.25
"""Share of its range by which each actuator's output must have varied before sensors count as frozen.

It is several times what friction and gear backlash absorb, and far more than the noise of a balancing policy.
"""
FROZEN_WINDOWS: Final = 2
"""Number of parts of ``supervision.frozen_s``, in each of which the outputs must vary: a single pulse is not enough."""


class Contradiction(NamedTuple):
    """Contradiction found."""

    fault: FaultName
    detail: str


class RateCheck:
    """Comparison of the device clock with the frame count."""

    def __init__(self, period_us: int) -> None:
        self._period_us = period_us
        self._slack_us = period_us // 2
        self.found_us = float(period_us)
        """Period by the device's own clock, as measured in the last drift."""
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._frame = -1
        self._until = self._grid_us = self._strikes = 0

    def take(self, state: State) -> bool:
        """Process a frame; return True if the device samples at another rate."""
        frame = state.frame
        strays_us = state.t_us - frame * self._period_us - self._grid_us
        if frame < self._until and -self._slack_us <= strays_us <= self._slack_us:
            return False
        return self._judge(state, strays_us)

    def _judge(self, state: State, strays_us: int) -> bool:
        """Count a drift or clear the count; measure from this frame on.  A wrapped counter looks like one drift."""
        if self._frame >= 0 and abs(strays_us) > self._slack_us:
            self._strikes += 1
            self.found_us = self._period_us + strays_us / max(state.frame - self._frame, 1)
        else:
            self._strikes = 0
        self._frame, self._until = state.frame, state.frame + RATE_WINDOW
        self._grid_us = state.t_us - state.frame * self._period_us
        return self._strikes >= RATE_STRIKES


class FrozenCheck:
    """Detector of sensors that do not change by more than a count although the commands should have moved the rig.

    A decoder that has lost one of its two lines dithers by one count.
    """

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._window = max(round(frozen_s * 1e6 / FROZEN_WINDOWS / period_us), 2) if frozen_s > 0 else 0
        self._swings = tuple(MIN_COMMAND_SWING * (a.high - a.low) / a.resolution for a in rig.actuators)
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._sensors: tuple[int, ...] = ()
        self._low: list[int] = []
        self._high: list[int] = []
        self._frames = self._windows = 0

    def take(self, state: State) -> bool:
        """Process a frame; return True if the sensors are frozen."""
        sensors, previous = state.sensors, self._sensors
        if sensors != previous and (not previous or _moved(sensors, previous)):
            self._sensors = sensors
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


def _moved(sensors: Sequence[int], previous: Sequence[int]) -> bool:
    # Executed in every tick: any() takes three times as long.
    for now, then in zip(sensors, previous, strict=True):  # noqa: SIM110
        if not -1 <= now - then <= 1:
            return True
    return False


_SAFE: Final = int(Status.SAFE)


class SafeOutputCheck:
    """Comparison of the reported safe output with the reported outputs."""

    def __init__(self, rig: Rig) -> None:
        self._safe = rig.safe_counts
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._safe_frame: State | None = None

    def take(self, state: State) -> Contradiction | None:
        """Process a frame; return a contradiction, if any."""
        previous, is_safe = self._safe_frame, state.status & _SAFE
        if previous is None and not is_safe:
            return None
        self._safe_frame = state if is_safe else None
        if previous is not None and frames_between(state.frame, previous.frame) != 1:
            previous = None
        if not contradicts_safe(state, previous, self._safe):
            return None
        detail = f"frame {state.frame} reports outputs of {state.u_start} and {state.u_end} counts"
        return Contradiction(FaultName.DEVICE_UNSAFE, f"{detail}; safe: {tuple(map(round, self._safe))}")


class Contradictions:
    """All contradiction checks, for one rig at one rate."""

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._period_us, self._frozen_s = period_us, frozen_s
        self._output = SafeOutputCheck(rig)
        self._rate = RateCheck(period_us)
        self._frozen = FrozenCheck(rig, period_us, frozen_s)

    def reset(self) -> None:
        """Restart, in a new episode or after a fault was handled."""
        self._output.reset()
        self._rate.reset()
        self._frozen.reset()

    def take(self, state: State) -> Contradiction | None:
        """Process a frame in well under a microsecond and constant memory."""
        if untrue := self._output.take(state):
            return untrue
        if self._rate.take(state):
            found_hz = 1e6 / max(self._rate.found_us, 1e-6)
            detail = f"{found_hz:.4g} Hz by its clock, configured {1e6 / self._period_us:.4g} Hz"
            return Contradiction(FaultName.DEVICE_RATE, detail)
        if self._frozen.take(state):
            return Contradiction(FaultName.SENSORS_FROZEN, f"no change for {self._frozen_s:g} s")
        return None
