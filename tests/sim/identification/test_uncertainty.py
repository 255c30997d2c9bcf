"""Noise and covariance on linear problems, where the right answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.identification.fit import Fit
from onrig.sim.identification.uncertainty import half_widths, joint_of, noise_of
from onrig.sim.plants.integrate import Array

WINDOWS, SAMPLES, TRUE = 120, 20, np.array([0.7, -0.2])


def linear_fit(rng: np.random.Generator, errors: Array) -> Fit:
    """Least squares of two parameters from readings (W, R, 1) with unit weights and no starts."""
    design = rng.normal(1.0, 0.5, (WINDOWS, SAMPLES, 2))
    measured = design @ TRUE + errors
    found = np.linalg.lstsq(design.reshape(-1, 2), measured.ravel(), rcond=None)[0]
    left = measured - design @ found
    shape = (WINDOWS, SAMPLES, 1)
    return Fit(
        found, np.zeros((WINDOWS, 0)), left.reshape(shape), left, design, np.zeros(shape), float(np.mean(left**2))
    )


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_intervals_cover_the_truth_even_if_errors_within_a_window_are_correlated(common: float) -> None:
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(400):
        errors = rng.normal(0, 1, (WINDOWS, SAMPLES)) + common * rng.normal(0, 1, (WINDOWS, 1))
        fit = linear_fit(rng, errors)
        inside.append(np.abs(fit.coordinates - TRUE) <= half_widths(joint_of(fit, np.ones(2, bool))))
    assert 0.92 <= np.mean(inside) <= 0.98


def test_correlated_errors_widen_them() -> None:
    rng = np.random.default_rng(2)
    errors = rng.normal(0, 1, (WINDOWS, SAMPLES)) + rng.normal(0, 1, (WINDOWS, 1))
    assert np.max(joint_of(linear_fit(rng, errors), np.ones(2, bool)).inflation) > 3


def test_unfitted_parameters_have_no_covariance() -> None:
    rng = np.random.default_rng(3)
    joint = joint_of(linear_fit(rng, rng.normal(0, 1, (WINDOWS, SAMPLES))), np.array([False, True]))
    assert np.all(joint.covariance[0] == 0)
    assert joint.covariance[1, 1] > 0


def test_noise_is_distinguished_from_rounding_as_far_as_possible() -> None:
    rng = np.random.default_rng(4)
    for sigma, resolution, alone in ((0.5, 0.1, 0.5), (0.001, 1.0, 0.0)):
        exact = rng.uniform(0, 100, (WINDOWS, SAMPLES))
        seen = np.round((exact + rng.normal(0, sigma, exact.shape)) / resolution) * resolution
        noise = noise_of(linear_fit(rng, seen - exact), np.array([resolution]))
        assert noise.total[0] == pytest.approx(np.hypot(sigma, resolution / np.sqrt(12)), rel=0.05)
        assert noise.alone[0] == pytest.approx(alone, rel=0.05)
        assert 0.005 < noise.spread[0] < 0.03
