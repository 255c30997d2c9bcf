"""Budget that the rig's motion uses in each tick, determined from the applied commands and the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onrig.hw.rig import Rig
from onrig.runtime.explore.budgets import Ledger
from onrig.runtime.explore.settings import Budgets


class ConsumptionMeter:
    """Meter that books the consumption of each tick in a ledger; quantities as in `Quota`."""

    def __init__(self, rig: Rig, period_us: int, budgets: Budgets, ledger: Ledger) -> None:
        self._ledger: Final = ledger
        self._period_us: Final = period_us
        self._actuators: Final = tuple(
            (a.safe, max(a.high - a.safe, a.safe - a.low), a.high - a.low) for a in rig.actuators
        )
        """Safe output, full effort and full stroke, in SI units."""
        sensors = {s.name: (i, s.resolution) for i, s in enumerate(rig.sensors)}
        self._thermometer: Final = None if budgets.temperature is None else sensors[budgets.temperature.sensor]
        self.begin_episode()

    def begin_episode(self) -> None:
        """Start an episode; its wear is measured from its first output on."""
        self._applied: Sequence[float] | None = None

    def book(
        self, *, intervened: bool, tripped: bool, applied: Sequence[float], sensors: Sequence[int], periods: int
    ) -> bool:
        """Book a tick, with arguments as for ``Explorer.record_outcome``.

        Return whether the ledger's factor or pause may have changed.
        """
        ledger = self._ledger
        was_ample = ledger.is_ample
        energy, wear = 0.0, 0.0
        for u, previous, (safe, full, stroke) in zip(applied, self._applied or applied, self._actuators, strict=True):
            effort = (u - safe) / full
            energy += effort * effort
            wear += abs(u - previous) / stroke
        self._applied = applied
        duration_us = periods * self._period_us
        duration_s = duration_us * 1e-6
        ledger.book((intervened, tripped, energy * duration_s, wear, duration_s), duration_us)
        if self._thermometer is not None:
            index, resolution = self._thermometer
            ledger.set_temperature(sensors[index] * resolution)
        return not (was_ample and ledger.is_ample)
