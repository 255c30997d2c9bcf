"""Contradictions in a device's frames: false reports of a safe output, a wrong sampling rate, frozen sensors.

The checks depend only on the frames and restart with each episode, so that replaying a recorded run finds the same
contradictions.  ``hw/PROTOCOL.md`` §6 lists the thresholds for firmware authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.hw.intake import frames_between
from onrig.hw.messages import State, Status, contradicts_safe
from onrig.hw.rig import Rig
from onrig.runtime.run_state.faults import FaultName

RATE_WINDOW: Final = 128
"""Length, in frames, of the window within which the device clock may drift by at most half a period (0.4 %)."""
RATE_STRIKES: Final = 8
"""Number of consecutive drifts, each measured from the end of the previous one, that indicate a wrong rate.

A single drift only means that a clock stopped or jumped, which happens on a simulated board and does not end the run.
"""
MIN_COMMAND_SWING: Final = 0.25
"""Fraction of its range by which each actuator's output must have varied before sensors count as frozen.

This is several times what friction and gear backlash absorb, and far more than the noise of a balancing policy.
"""
FROZEN_WINDOWS: Final = 2
"""Number of windows into which ``supervision.frozen_s`` is divided; the outputs must vary in each of them, so that a
single pulse is not enough."""


class Contradiction(NamedTuple):
    """Fault implied by contradictory frames, and its description."""

    fault: FaultName
    detail: str


class RateCheck:
    """Comparison of the device clock with the frame count."""

    def __init__(self, period_us: int) -> None:
        self._period_us = period_us
        self._slack_us = period_us // 2
        self.measured_period_us = float(period_us)
        """Sampling period (us) by the device's clock, measured over the last drift."""
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._window_start = -1
        self._window_end = self._grid_us = self._n_drifts = 0

    def check(self, state: State) -> bool:
        """Check a frame; return True if the device samples at a rate other than the configured one."""
        frame = state.frame
        drift_us = state.t_us - frame * self._period_us - self._grid_us
        if frame < self._window_end and -self._slack_us <= drift_us <= self._slack_us:
            return False
        return self._start_window(state, drift_us)

    def _start_window(self, state: State, drift_us: int) -> bool:
        """Count a drift, or reset the count if there was none, and start a new window.

        A frame counter that wraps around counts as one drift.
        """
        if self._window_start >= 0 and abs(drift_us) > self._slack_us:
            self._n_drifts += 1
            self.measured_period_us = self._period_us + drift_us / max(state.frame - self._window_start, 1)
        else:
            self._n_drifts = 0
        self._window_start, self._window_end = state.frame, state.frame + RATE_WINDOW
        self._grid_us = state.t_us - state.frame * self._period_us
        return self._n_drifts >= RATE_STRIKES


class FrozenCheck:
    """Detector of sensors that change by no more than one count although the commands should have moved the rig.

    One count is tolerated because a decoder that has lost one of its two lines dithers by one count.
    """

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._window_frames = max(round(frozen_s * 1e6 / FROZEN_WINDOWS / period_us), 2) if frozen_s > 0 else 0
        self._min_swings = tuple(MIN_COMMAND_SWING * (a.high - a.low) / a.resolution for a in rig.actuators)
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._sensors: tuple[int, ...] = ()
        self._low: list[int] = []
        self._high: list[int] = []
        self._n_frames = self._n_swung_windows = 0

    def check(self, state: State) -> bool:
        """Check a frame; return True if the sensors are frozen."""
        sensors, previous = state.sensors, self._sensors
        if sensors != previous and (not previous or _has_moved(sensors, previous)):
            self._sensors = sensors
            self._n_frames = self._n_swung_windows = 0
            return False
        if not self._window_frames:
            return False
        if self._n_frames == 0:
            self._low, self._high = list(state.u_end), list(state.u_end)
        else:
            low, high = self._low, self._high
            for i, count in enumerate(state.u_end):
                if count < low[i]:
                    low[i] = count
                elif count > high[i]:
                    high[i] = count
        self._n_frames += 1
        if self._n_frames < self._window_frames:
            return False
        self._n_frames = 0
        has_swung = all(h - low >= s for low, h, s in zip(self._low, self._high, self._min_swings, strict=True))
        self._n_swung_windows = self._n_swung_windows + 1 if has_swung else 0
        return self._n_swung_windows >= FROZEN_WINDOWS


def _has_moved(sensors: Sequence[int], previous: Sequence[int]) -> bool:
    # Runs in every tick, and any() would take three times as long.
    for count, previous_count in zip(sensors, previous, strict=True):  # noqa: SIM110
        if not -1 <= count - previous_count <= 1:
            return True
    return False


_SAFE: Final = int(Status.SAFE)


class SafeOutputCheck:
    """Check that a device that reports safe outputs (status SAFE) also reports the safe output values."""

    def __init__(self, rig: Rig) -> None:
        self._safe_counts = rig.safe_counts
        self.reset()

    def reset(self) -> None:
        """Restart with the next frame."""
        self._safe_frame: State | None = None

    def check(self, state: State) -> Contradiction | None:
        """Check a frame; return its contradiction, if any."""
        previous, is_safe = self._safe_frame, state.status & _SAFE
        if previous is None and not is_safe:
            return None
        self._safe_frame = state if is_safe else None
        if previous is not None and frames_between(state.frame, previous.frame) != 1:
            previous = None
        if not contradicts_safe(state, previous, self._safe_counts):
            return None
        detail = f"frame {state.frame} reports outputs of {state.u_start} and {state.u_end} counts"
        return Contradiction(FaultName.DEVICE_UNSAFE, f"{detail}; safe: {tuple(map(round, self._safe_counts))}")


class Contradictions:
    """All contradiction checks, for one rig at one rate."""

    def __init__(self, rig: Rig, period_us: int, frozen_s: float) -> None:
        self._period_us, self._frozen_s = period_us, frozen_s
        self._output_check = SafeOutputCheck(rig)
        self._rate_check = RateCheck(period_us)
        self._frozen_check = FrozenCheck(rig, period_us, frozen_s)

    def reset(self) -> None:
        """Restart all checks, for a new episode or after a fault has been handled."""
        self._output_check.reset()
        self._rate_check.reset()
        self._frozen_check.reset()

    def check(self, state: State) -> Contradiction | None:
        """Check a frame in well under a microsecond and in constant memory; return its contradiction, if any."""
        if contradiction := self._output_check.check(state):
            return contradiction
        if self._rate_check.check(state):
            measured_hz = 1e6 / max(self._rate_check.measured_period_us, 1e-6)
            detail = f"{measured_hz:.4g} Hz by its clock instead of the configured {1e6 / self._period_us:.4g} Hz"
            return Contradiction(FaultName.DEVICE_RATE, detail)
        if self._frozen_check.check(state):
            return Contradiction(FaultName.SENSORS_FROZEN, f"no change for {self._frozen_s:g} s")
        return None
