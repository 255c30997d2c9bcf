"""Twins are identified from their recordings: parameters, imperfections, noise and connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.hw.rig import Rig
from onrig.sim.identification.identify import identify
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.recording import Stretch
from onrig.sim.identification.result import result_of
from onrig.sim.plants import Pendulum, Plant
from onrig.sim.plants.linear import Linear
from onrig.sim.twin.options import TwinOptions
from tests.sim.identification.recorded import LINE, chirped, record
from tests.sim.plants.spring import Spring
from tests.sim.twin.bench import RIG


class Nameless(Pendulum, frozen=True, tag="nameless"):
    """A pendulum without lumped parameters: seven declared ones, of which motion determines three combinations."""

    @property
    def lumped(self) -> dict[str, Any]:
        return {}


TRUE = Pendulum(mass=0.06, damping=2e-5, dry_friction=0.8, dead_band=0.15, delay_s=0.01)
PERIODS = 1200


@pytest.fixture(scope="module")
def swung() -> Stretch:
    return record(TwinOptions(plant=TRUE, sensor_noise=0.002, sensor_zero={"angle": 0.05}), PERIODS, chirped())


@pytest.fixture(scope="module")
def found(swung: Stretch) -> Identification:
    return identify(Pendulum(), RIG, [swung])


def missed_by(found: Identification, truth: Mapping[str, float]) -> dict[str, float]:
    """Errors as shares of the intervals' half-widths."""
    estimates = zip(found.unknowns, found.fit.coordinates, found.half_widths, strict=True)
    return {u.name: abs(c - u.coordinate(truth[u.name])) / h for u, c, h in estimates}


def truth_of(plant: Plant, **zeros: float) -> dict[str, float]:
    imperfections = {n: getattr(plant, n) or 0.0 for n in ("dry_friction", "dead_band", "delay_s")}
    return {**plant.identifiable, **imperfections, **zeros}


def test_the_intervals_cover_the_truth(found: Identification) -> None:
    missed = missed_by(found, truth_of(TRUE, zero_angle=0.05))
    assert max(missed.values()) < 1.7, missed
    assert np.mean([m < 1 for m in missed.values()]) > 0.7
    assert all(found.is_free)
    assert found.excluded_windows == 0


def test_the_intervals_are_narrow_enough_to_be_useful(found: Identification) -> None:
    widths = dict(zip([u.name for u in found.unknowns], found.half_widths, strict=True))
    assert widths["gravity_per_s2"] < 0.01
    assert widths["gain_per_v_s2"] < 0.02
    assert widths["delay_s"] < 0.001
    assert widths["dead_band"] < 0.03


def test_the_sensor_noise_is_reported(found: Identification) -> None:
    np.testing.assert_allclose(found.noise.alone, [0.002 * np.pi, 0.002 * 30.0], rtol=0.08)


def test_for_a_pendulum_the_reversal_of_all_signs_cannot_be_detected(found: Identification) -> None:
    assert found.connection.signs == ((1, 1), (1,))
    assert found.connection.is_certain
    assert found.connection.is_mirrored


@pytest.mark.parametrize(
    "turned",
    [
        pytest.param(((1, -1), (1,)), marks=pytest.mark.study),
        pytest.param(((1, 1), (-1,)), marks=pytest.mark.study),
        ((1, -1), (-1,)),
    ],
)
def test_reversed_connections_are_found(swung: Stretch, turned: tuple[tuple[int, int], tuple[int]]) -> None:
    sensors, actuators = turned
    seen = swung._replace(
        readings=swung.readings * np.array(sensors),
        u_start=swung.u_start * actuators[0],
        u_end=swung.u_end * actuators[0],
    )
    found = identify(Pendulum(), RIG, [seen])
    assert found.connection.signs == turned
    assert max(missed_by(found, truth_of(TRUE, zero_angle=0.05)).values()) < 1.7


def test_a_zero_anywhere_on_the_circle_is_found() -> None:
    recorded = record(TwinOptions(plant=TRUE, sensor_noise=0.002, sensor_zero={"angle": 2.5}), 600, chirped())
    found = identify(Pendulum(), RIG, [recorded])
    assert missed_by(found, truth_of(TRUE, zero_angle=2.5))["zero_angle"] < 2


def test_a_third_party_plant_needs_only_its_declaration() -> None:
    plant = Spring(stiffness=52.0, damping=0.8, gain=1.7)
    recorded = record(TwinOptions(plant=plant, sensor_noise=0.002), 800, chirped(reach=4.0), LINE)
    found = identify(Spring(), LINE, [recorded])
    missed = missed_by(found, truth_of(plant, zero_position=0.0))
    assert max(missed[n] for n in ("stiffness_per_s2", "damping_per_s", "gain_m_per_v_s2", "delay_s")) < 1.7


def test_a_sensor_of_the_velocity_is_not_needed() -> None:
    blind = Rig(name="blind", sensors=RIG.sensors[:1], actuators=RIG.actuators, observations=RIG.observations[:1])
    recorded = record(TwinOptions(plant=TRUE, sensor_noise=0.001), PERIODS, chirped(), blind)
    found = identify(Pendulum(), blind, [recorded])
    missed = missed_by(found, truth_of(TRUE, zero_angle=0.0))
    assert max(missed[n] for n in TRUE.identifiable) < 2


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_a_rig_that_never_moved_is_refused(noise: float) -> None:
    still = record(TwinOptions(plant=TRUE, sensor_noise=noise), 300, lambda k: (0.0,))
    with pytest.raises(Implausible, match="cannot be compared: excite" if noise else "angle never changes its reading"):
        identify(Pendulum(), RIG, [still])


def test_unexcited_parameters_keep_their_initial_value() -> None:
    """Free swings, after pumping, depend on neither gain, dead band nor delay."""
    plant = Pendulum(mass=0.06, damping=2e-5)
    recorded = record(
        TwinOptions(plant=plant, sensor_noise=0.002), 700, lambda k: (3.0 * (-1) ** (k // 32) * (k < 200),)
    )
    free_swings = Stretch(recorded.period_s, *(values[220:] for values in recorded[1:]))
    found = identify(Pendulum(), RIG, [free_swings])
    free = dict(zip([u.name for u in found.unknowns], found.is_free.tolist(), strict=True))
    assert not free["gain_per_v_s2"]
    assert not free["dead_band"]
    assert not free["delay_s"]
    assert free["gravity_per_s2"]


def test_motion_determines_three_combinations_of_seven_declared_parameters(swung: Stretch) -> None:
    found = identify(Nameless(), RIG, [swung])
    free = {u.name for u, free in zip(found.unknowns, found.is_free, strict=True) if free}
    declared = set(Nameless().identifiable)
    assert declared == {"inertia", "mass", "gravity", "length", "damping", "torque_constant", "resistance"}
    assert len(free & declared) == 3
    assert {"mass", "gravity", "length"} - free <= set(found.held)
    assert "damping" not in found.held, "the damping is too small to be visible"
    values = {u.name: u.value(c) for u, c in zip(found.unknowns, found.fit.coordinates, strict=True)}
    lumped = Pendulum(**{name: values[name] for name in declared}).lumped
    assert lumped == pytest.approx(TRUE.lumped, rel=0.03)
    text = "\n".join(result_of(found, Nameless(), RIG, None, "a test").not_known)
    for name, others in found.held.items():
        assert f"{name}: indistinguishable from {', '.join(others)}; kept at" in text
    assert "damping: the recorded signals do not depend on it" in text


class Bare(Pendulum, frozen=True, tag="bare"):
    """A plant without fields of its own to estimate."""

    @property
    def identifiable(self) -> dict[str, Any]:
        return {}


class Lavish(Nameless, frozen=True, tag="lavish"):
    """A plant that declares more parameters than can be estimated together."""

    one: float = 1.0
    two: float = 1.0
    three: float = 1.0
    four: float = 1.0
    five: float = 1.0
    six: float = 1.0


def test_a_plant_with_no_or_too_many_parameters_is_refused(swung: Stretch) -> None:
    with pytest.raises(Implausible, match="declares no parameters to estimate"):
        identify(Bare(), RIG, [swung])
    with pytest.raises(Implausible, match="declares 13 parameters: name up to 12 to estimate in its `separable`"):
        identify(Lavish(), RIG, [swung])


def test_a_linear_plant_is_identified_by_the_entries_of_its_matrices() -> None:
    model = {"kind": "linear", "states": ["position", "velocity"], "actions": ["voltage"]}
    true = msgspec.convert({**model, "A": [[0, 1], [-52, -0.8]], "B": [[0], [1.7]]}, Linear)
    recorded = record(TwinOptions(plant=true, sensor_noise=0.002), 800, chirped(reach=4.0), LINE)
    guess = msgspec.convert({**model, "A": [[0, 1], [-40, -0.5]], "B": [[0], [2]]}, Linear)
    found = identify(guess, LINE, [recorded])
    missed = missed_by(found, truth_of(true, zero_position=0.0))
    assert max(missed[name] for name in true.identifiable) < 2
    twin = result_of(found, guess, LINE, None, "a test").twin["plant"]
    assert twin["A"][1][0] == pytest.approx(-52, rel=0.02)
    assert twin["A"][0] == (0.0, 1.0)


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was recorded"):
        identify(Pendulum(), RIG, [])
