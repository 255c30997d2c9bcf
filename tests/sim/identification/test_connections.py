"""Signs that follow from a plant's geometry, and excluded windows."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.identification.connections import most_excited_windows
from onrig.sim.identification.identify import connection_of, identify
from onrig.sim.identification.outcome import Implausible
from onrig.sim.identification.recording import Stretch, windows_of
from onrig.sim.plants import Magman
from onrig.sim.twin.options import TwinOptions
from onrig.tools.load import load
from tests.sim.identification.recorded import record

RIG = load("magman").rig
TRUE = Magman(c1=6.5e-10, delay_s=0.01)


def to_and_fro(k: int) -> tuple[float, ...]:
    """The first and the second coil in turn."""
    first = k % 40 < 20
    return (0.2 if first else 0.0, 0.0 if first else 0.2, 0.0, 0.0)


@pytest.fixture(scope="module")
def rolled() -> Stretch:
    return record(TwinOptions(plant=TRUE, sensor_noise=0.001), 400, to_and_fro, RIG)


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1), (1, -1), (-1, 1)])
def test_stationary_coils_determine_the_signs_of_the_sensors(rolled: Stretch, signs: tuple[int, int]) -> None:
    found = connection_of(Magman(), RIG, [rolled._replace(readings=rolled.readings * np.array(signs))])
    assert found.signs == (signs, (1, 1, 1, 1))
    assert found.is_certain
    assert not found.is_mirrored


def test_windows_with_an_external_push_are_left_out(rolled: Stretch) -> None:
    pushed = rolled.readings.copy()
    pushed[200:205, 0] += 0.004
    found = identify(Magman(), RIG, [rolled._replace(readings=pushed)])
    assert 1 <= found.excluded_windows <= 8
    at = [u.name for u in found.unknowns].index("pull_m6_per_a2_s2")
    assert abs(found.fit.coordinates[at] - np.log(TRUE.lumped["pull_m6_per_a2_s2"])) < 2 * found.half_widths[at]


def test_a_slipping_sensor_is_refused(rolled: Stretch) -> None:
    slipped = rolled.readings.copy()
    slipped[200:, 0] += 0.004
    with pytest.raises(Implausible, match="does not fit"):
        identify(Magman(), RIG, [rolled._replace(readings=slipped)])


def test_windows_with_motion_are_preferred(rolled: Stretch) -> None:
    still = rolled._replace(readings=np.repeat(rolled.readings[:1], len(rolled.readings), axis=0))
    chosen = most_excited_windows(windows_of([still] * 4 + [rolled] * 4, 10))
    assert np.mean(np.std(chosen.readings[..., 0], axis=1) > 0) > 0.9
