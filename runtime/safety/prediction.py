"""What a command leads to, for every plant of a box: the last rule of the shield (ARCHITECTURE §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from onrig.hw.rig import Rig
from onrig.runtime.config.limits import Limits, MagmanPlants, PendulumPlants

FARTHEST: Final = 1e6
"""Readings beyond are no place or speed, in whatever unit; NaN and infinity fail the same comparison."""


class Prediction(Protocol):
    """Judges one command in one state."""

    def judge(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """Return (excess, margin) of a command (m,) in a state (n,), both SI, for one period and what may follow.

        excess: by how much the worst plant would pass what is allowed, in normalised units of the velocity; the
        command may go out where it is 0.  margin: 1 far inside, 0 where the command is refused.
        """


def compile_prediction(limits: Limits, rig: Rig, period_s: float) -> Prediction | None:
    """Build the prediction that a configuration asks for; takes a few tenths of a second the first time.

    Raises ValueError where nothing can be promised, KeyError for a name the rig does not have.
    """
    from onrig.runtime.safety.magman import MagmanPrediction
    from onrig.runtime.safety.pendulum import PendulumPrediction

    match limits.predicted:
        case PendulumPlants() as plants:
            return PendulumPrediction(plants, limits, rig, period_s)
        case MagmanPlants() as plants:
            return MagmanPrediction(plants, limits, rig)
    return None


def error_bound(plants: PendulumPlants | MagmanPlants, rig: Rig, name: str) -> float:
    """Bound of an observation's error: as configured, else half a count of its sensor; KeyError for an estimate."""
    if name in plants.sensor_error:
        return plants.sensor_error[name]
    observation = next(o for o in rig.observations if o.name == name)
    if observation.derivative_of is not None:
        raise KeyError(name)
    return 0.5 * next(s.resolution for s in rig.sensors if s.name == (observation.sensor or name))
