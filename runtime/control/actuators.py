"""A rig's outputs in SI units and in counts: the commands sent, and what the device reports about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onrig.hw.messages import State, Status
from onrig.runtime.run_config import RunConfig

_SAFE: Final = int(Status.SAFE)
"""A plain number, because an operation on an enumeration of flags takes microseconds with cold caches."""


def _compile_to_si(resolutions: tuple[float, ...]) -> Callable[[Sequence[int]], tuple[float, ...]]:
    """Return a function that converts counts to SI units.

    For a single actuator, a comprehension would take ten times as long.
    """
    if len(resolutions) == 1:
        (resolution,) = resolutions
        return lambda counts: (counts[0] * resolution,)
    return lambda counts: tuple([c * r for c, r in zip(counts, resolutions, strict=True)])


class Actuators:
    """Conversions between actions (m,) in SI units and counts, for one rig at one rate."""

    def __init__(self, config: RunConfig) -> None:
        actuators = config.rig.actuators
        self._period_us: Final = config.period_us
        self._resolutions: Final = tuple(a.resolution for a in actuators)
        self._limits: Final = config.limits.count_ranges(config.rig)
        self.to_si: Final = _compile_to_si(self._resolutions)
        """Function that converts counts to SI units."""
        self.safe_action: Final = tuple(a.safe for a in actuators)
        """Safe output, in SI units."""
        self.safe_counts: Final = self.to_counts(self.safe_action)

    def to_counts(self, action: Sequence[float]) -> tuple[int, ...]:
        """Round an action (SI units) to counts within the limits."""
        counts = []
        for value, resolution, (low, high) in zip(action, self._resolutions, self._limits, strict=True):
            count = round(value / resolution)
            counts.append(low if count < low else high if count > high else count)
        return tuple(counts)

    def outputs(self, state: State) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the output (m,), in SI units, in force at the frame's sample, and the output one period earlier.

        Both are taken from the frame, because the commands sent may have been lost, late or clamped.  The device
        accepts a command only in answer to its latest frame, so the output changes at most once per period.
        """
        if state.status & _SAFE:  # the history restarts at the safe output, regardless of its cause
            return self.safe_action, self.safe_action
        output = self.to_si(state.u_end)
        if state.u_start == state.u_end:
            return output, output
        return output, self.to_si(state.u_start)

    def applied(self, state: State) -> tuple[int, tuple[float, ...]]:
        """Return tau (us), the time from the start of a frame's period T to the switch from output u⁻ to u⁺, and the
        mean output (m,) over the period, in SI units: (tau u⁻ + (T - tau) u⁺) / T."""
        period_us, tau_us = self._period_us, min(state.tau_us, self._period_us)
        mean_outputs = []
        for a, b, r in zip(state.u_start, state.u_end, self._resolutions, strict=True):
            mean_outputs.append(r * (tau_us * a + (period_us - tau_us) * b) / period_us)
        return tau_us, tuple(mean_outputs)
