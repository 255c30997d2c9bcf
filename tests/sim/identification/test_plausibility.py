"""Signals that agree with each other and not with the plant."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from onrig.sim.identification.identify import identify
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.plausibility import drift_of, residuals_of
from onrig.sim.identification.recording import Stretch
from onrig.sim.plants import Pendulum
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import TwinOptions
from tests.sim.identification.recorded import chirped, record
from tests.sim.twin.bench import RIG

PLANT = Pendulum(mass=0.06, damping=2e-5, dry_friction=0.8, dead_band=0.15, delay_s=0.01)


@pytest.fixture(scope="module")
def swung() -> Stretch:
    return record(TwinOptions(plant=PLANT, sensor_noise=0.002, sensor_zero={"angle": 0.05}), 800, chirped())


@pytest.fixture(scope="module")
def found(swung: Stretch) -> Identification:
    return identify(Pendulum(), RIG, [swung])


def test_honest_residuals_are_white(found: Identification) -> None:
    for residuals in residuals_of(found):
        assert abs(residuals.correlation) < 0.1
        assert residuals.model_error < 0.03


def test_an_honest_zero_does_not_drift(found: Identification) -> None:
    at = [u.name for u in found.unknowns].index("zero_angle")
    assert drift_of(found, at).min_change < 1e-3


def both(swung: Stretch, change: Callable[[Array], Array]) -> Stretch:
    return swung._replace(readings=change(swung.readings))


def half(readings: Array) -> Array:
    return np.where(np.arange(len(readings)) < len(readings) // 2, 1.0, -1.0)[:, None]


@pytest.mark.parametrize(
    ("change", "message_pattern"),
    [
        (lambda r: 0.5 * r, "residuals are non-white"),
        (lambda r: half(r) * r, "does not explain"),
        (lambda r: r + np.linspace(0, 0.08, len(r))[:, None] * [1, 0], "angle|velocity|plant"),
    ],
    ids=["both half", "both flip half-way", "angle's zero drifts"],
)
def test_sensors_that_lie_consistently_contradict_the_plant(
    swung: Stretch, change: Callable[[Array], Array], message_pattern: str
) -> None:
    with pytest.raises(Implausible) as refused:
        identify(Pendulum(), RIG, [both(swung, change)])
    assert any(re.search(message_pattern, line) for line in refused.value.problems), refused.value.problems


def test_parameters_far_from_the_initial_guess_are_absurd(swung: Stretch) -> None:
    far = Pendulum(mass=0.06, damping=2e-5, resistance=9.5 * 200)
    with pytest.raises(Implausible, match="times the configured"):
        identify(far, RIG, [swung])
