"""Device outputs in n episodes, and their possibly delayed effect on the plants."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.safety.plant_box import MAX_DELAY_PERIODS, PlantBox, plant_delay_s_of
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.tools.safety_case.campaign import N_SUBSTEPS, State, advance


class Output(NamedTuple):
    """Device outputs in a period, (actuators, n) each: ``before`` until ``switched_s`` (n,), ``after`` from then on."""

    before: Array
    after: Array
    switched_s: Array


class Actuation:
    """Devices of n episodes, with constant connection and plant delays."""

    def __init__(self, box: PlantBox, period_s: float, safe: Array, n: int, rng: np.random.Generator) -> None:
        """Draw the delays; ``safe`` (actuators,) are the outputs before the first command."""
        self._period_s, self._delay_s = period_s, plant_delay_s_of(box)
        late_s = min(box.late_us * 1e-6, period_s + self._delay_s)
        self._delays: Final = rng.uniform(0.0, late_s - self._delay_s, n)
        self._plant_delays = rng.uniform(0.0, self._delay_s, n) if self._delay_s else np.zeros(n)
        self._remaining_s = self._plant_delays.copy()
        """Remaining time for which the last output acts on a released plant."""
        safe_outputs = np.repeat(safe[:, None], n, axis=1)
        self._outputs = deque(
            [Output(safe_outputs, safe_outputs, np.zeros(n))] * (MAX_DELAY_PERIODS + 1), MAX_DELAY_PERIODS + 1
        )

    def advance(
        self, plant: Plant, state: State, previous_command: Array, command: Array, has_fallen_back: NDArray[np.bool_]
    ) -> tuple[State, Array]:
        """Advance by a period in which ``command`` replaces ``previous_command``.

        There is no connection delay where a device ``has_fallen_back`` to its safe output. Returns the states and the
        largest |velocity| (n,).
        """
        if self._delay_s:
            self._outputs.append(Output(previous_command, command, np.where(has_fallen_back, 0.0, self._delays)))
            return advance_delayed(plant, state, self._outputs, self._plant_delays, self._period_s)
        state, first_peak = advance(plant, state, tuple(previous_command), self._delays, 2)
        state, second_peak = advance(plant, state, tuple(command), self._period_s - self._delays, N_SUBSTEPS)
        return state, np.maximum(first_peak, second_peak)

    def coast(
        self, plant: Plant, released_plant: Plant, state: State, is_released: NDArray[np.bool_]
    ) -> tuple[State, Array]:
        """Advance by a period without outputs.

        Where a plant ``is_released``, the last output first acts for its remaining time. Returns the states and the
        largest |velocity| (n,).
        """
        rest_s, early_peak = np.full(len(is_released), self._period_s), np.abs(state[-1])
        last_output = self._outputs[0].after
        if self._delay_s:
            last_s = np.where(is_released, np.minimum(self._remaining_s, self._period_s), 0.0)
            self._remaining_s = self._remaining_s - last_s
            state, early_peak = advance(plant, state, tuple(last_output), last_s, N_SUBSTEPS)
            rest_s = rest_s - last_s
        state, speed = advance(released_plant, state, tuple(0.0 * last_output), rest_s, N_SUBSTEPS)
        return state, np.maximum(early_peak, speed)


def advance_delayed(
    plant: Plant, state: State, outputs: Sequence[Output], delay_s: Array, period_s: float
) -> tuple[State, Array]:
    """Advance by a period under the outputs of this and earlier periods, oldest first.

    Each output is delayed by ``delay_s`` (n,). Returns the states and the largest |velocity| (n,).
    """
    speeds = [np.abs(state[-1])]
    for age, output in zip(range(len(outputs) - 1, -1, -1), outputs, strict=True):
        begins_s = delay_s - age * period_s
        times = (begins_s, begins_s + output.switched_s, begins_s + period_s)
        for command, (start_s, end_s) in zip((output.before, output.after), pairwise(times), strict=True):
            duration_s = np.clip(end_s, 0.0, period_s) - np.clip(start_s, 0.0, period_s)
            if duration_s.any():
                state, speed = advance(plant, state, tuple(command), duration_s, N_SUBSTEPS)
                speeds.append(speed)
    return state, np.max(speeds, axis=0)
