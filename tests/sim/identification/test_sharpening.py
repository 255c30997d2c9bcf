"""An identification sharpened by newer signals: on normal distributions, where the right answer is known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.result import Result, result_of
from onrig.sim.identification.sharpening import DEPARTURE_P_VALUE, sharpen
from onrig.sim.identification.uncertainty import JointDistribution
from onrig.sim.plants import Pendulum
from onrig.sim.plants.integrate import Array
from tests.runtime.samples import PENDULUM
from tests.sim.identification.test_result import identified

NAMES = ("gravity_per_s2", "damping_per_s", "gain_per_v_s2", "dry_friction", "dead_band", "delay_s", "zero_angle")


def moved(found: Identification, by: Array, scale: float = 1.0) -> Identification:
    """The same estimate with its coordinates moved ``by`` standard deviations, which are then scaled."""
    deviations = np.sqrt(np.diag(found.joint.covariance))
    fit = found.fit._replace(coordinates=found.fit.coordinates + by * deviations)
    return found._replace(fit=fit, joint=JointDistribution(scale**2 * found.joint.covariance, found.joint.inflation))


def result(found: Identification) -> Result:
    return result_of(found, Pendulum(), PENDULUM.rig, None, "the test")


def index(name: str) -> int:
    return NAMES.index(name)


def test_estimates_are_weighted_by_their_precision() -> None:
    before = identified()
    now = moved(before, np.full(7, 0.9), scale=0.5)
    sharpened = sharpen(result(before), now, Pendulum())
    assert not sharpened.has_departed
    for name in NAMES[:6]:
        i = index(name)
        old, new = before.fit.coordinates[i], now.fit.coordinates[i]
        expected = (old / 1.0 + new / 0.25) / (1.0 + 4.0)
        assert sharpened.identification.fit.coordinates[i] == pytest.approx(expected), name
        variance = before.joint.covariance[i, i]
        assert sharpened.identification.joint.covariance[i, i] == pytest.approx(variance / 5.0), name


def test_correlated_estimates_are_weighted_jointly() -> None:
    before = identified()
    now = moved(before, np.zeros(7))
    a, b = index("gravity_per_s2"), index("gain_per_v_s2")
    covariance = before.joint.covariance.copy()
    covariance[a, b] = covariance[b, a] = 0.99 * np.sqrt(covariance[a, a] * covariance[b, b])
    before = before._replace(joint=JointDistribution(covariance, before.joint.inflation))
    sharpened = sharpen(result(before), now, Pendulum())
    found = np.ix_([a, b], [a, b])
    precision = np.linalg.inv(covariance[found]) + np.linalg.inv(now.joint.covariance[found])
    assert sharpened.identification.joint.covariance[found] == pytest.approx(np.linalg.inv(precision))


def test_the_zero_of_a_sensor_drifts_so_the_newer_estimate_counts() -> None:
    before = identified()
    now = moved(before, np.where(np.array(NAMES) == "zero_angle", 40.0, 0.0))
    sharpened = sharpen(result(before), now, Pendulum())
    assert not sharpened.has_departed
    i = index("zero_angle")
    assert sharpened.identification.fit.coordinates[i] == pytest.approx(now.fit.coordinates[i])


def test_parameters_not_visible_in_the_newer_signals_are_unchanged() -> None:
    before, now = identified(), identified(free=False)
    covariance = now.joint.covariance.copy()
    covariance[1] = covariance[:, 1] = 0.0
    now = now._replace(
        joint=JointDistribution(covariance, now.joint.inflation), held={"damping_per_s": ("gravity_per_s2",)}
    )
    now = now._replace(fit=now.fit._replace(coordinates=now.fit.coordinates + np.eye(7)[1]))
    sharpened = sharpen(result(before), now, Pendulum()).identification
    assert sharpened.fit.coordinates[1] == pytest.approx(before.fit.coordinates[1])
    assert sharpened.joint.covariance[1, 1] == pytest.approx(before.joint.covariance[1, 1])
    assert sharpened.is_free[1]
    assert "damping_per_s" not in sharpened.held


@pytest.mark.parametrize(("deviations", "departed"), [(3.0, False), (8.0, True)])
def test_another_plant_is_detected_and_named(deviations: float, departed: bool) -> None:
    before = identified()
    now = moved(before, np.where(np.array(NAMES) == "gain_per_v_s2", deviations, 0.0))
    sharpened = sharpen(result(before), now, Pendulum())
    assert sharpened.has_departed == departed
    worst = min(sharpened.changes, key=lambda change: change.p_value)
    assert worst.name == "gain_per_v_s2"
    assert worst.earlier_value == pytest.approx(7.0)
    assert worst.new_value == pytest.approx(7.0 * np.exp(0.01 * deviations))


def test_the_same_plant_departs_as_rarely_as_stated() -> None:
    rng, before = np.random.default_rng(0), identified()
    departures = []
    for _ in range(4000):
        first, second = (moved(before, rng.standard_normal(7)) for _ in range(2))
        departures.append(sharpen(result_once(first), second, Pendulum()).p_value)
    assert np.mean(np.array(departures) < DEPARTURE_P_VALUE) < 4.0 * DEPARTURE_P_VALUE
    assert np.mean(np.array(departures) < 0.1) == pytest.approx(0.1, abs=0.02)


def result_once(found: Identification) -> Result:
    """Only the fields used by a comparison: a complete result takes milliseconds."""
    values = [float(u.value(c)) for u, c in zip(found.unknowns, found.fit.coordinates, strict=True)]
    parameters = tuple(
        msgspec.structs.replace(p, value=value) for p, value in zip(_TEMPLATE.parameters, values, strict=True)
    )
    return msgspec.structs.replace(_TEMPLATE, parameters=parameters)


_TEMPLATE = result(identified())
