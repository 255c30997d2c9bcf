"""Least squares on simulated trajectories: multiple shooting over short windows with free initial states.

The initial states are eliminated by variable projection (Golub and Pereyra 2003, with Kaufman's Jacobian), so the
solver optimises only the parameters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from onrig.sim.identification.model import Model
from onrig.sim.plants.integrate import Array

_N_ROUNDS: Final = 2
"""Gauss-Newton rounds for the initial states per evaluation; the remaining error of these states enters the projected
residuals only quadratically."""
_N_LAST_ROUNDS: Final = 8
_DIVERGED_RESIDUAL: Final = 1e6
"""Weighted prediction that replaces a non-finite one, so that the residual is large."""


class Fit(NamedTuple):
    """Least-squares solution, with its residuals and their derivatives."""

    coordinates: Array
    """(p,)."""
    starts: Array
    """(W, n)."""
    residuals: Array
    """(W, L + 1, s): measured minus predicted, in the sensors' units."""
    projected_residuals: Array
    """(W, (L + 1) s): weighted residuals with the initial states projected out."""
    jacobian: Array
    """(W, (L + 1) s, p): Jacobian of the weighted predictions, initial states projected out."""
    leverage: Array
    """(W, L + 1, s): leverage of the initial states on each residual."""
    cost: float
    """Mean square of the weighted residuals."""


class ShootingResiduals:
    """Residuals of a model for given standard deviations of its sensors' noise, as functions of the coordinates."""

    def __init__(self, model: Model, sigma: Array, coordinates: Array, starts: Array | None = None) -> None:
        self.model, self.sigma = model, sigma
        windows = model.windows
        self._n = len(model.plant.state_names)
        self._starts = model.initial_starts(coordinates) if starts is None else starts
        self._last_solution: tuple[Array, tuple[Array, Array, Array]] | None = None
        spread = np.std(windows.readings.reshape(-1, windows.readings.shape[-1]), axis=0)
        scale = np.ones(self._n)
        scale[model.states] = np.maximum(spread, 1e-9)
        self._steps = 1e-6 * scale
        self._coordinate_steps = np.array([u.step for u in model.unknowns])

    def _weighted_predictions(self, coordinates: Array, starts: Array) -> Array:
        """Return the weighted predictions (V, W, R)."""
        predictions = self.model.predict(coordinates, starts) / self.sigma
        flat_predictions = predictions.reshape(*predictions.shape[:2], -1)
        return np.where(np.isfinite(flat_predictions), flat_predictions, _DIVERGED_RESIDUAL)

    def _weighted_readings(self) -> Array:
        return np.asarray((self.model.windows.readings / self.sigma).reshape(self.model.windows.size, -1))

    def best_starts(self, coordinates: Array, starts: Array, rounds: int = _N_ROUNDS) -> tuple[Array, Array, Array]:
        """Return the best starts (W, n) for the coordinates (p,), with the residuals (W, R) and the derivative
        (W, R, n) of the predictions with respect to the starts there."""
        n, readings = self._n, self._weighted_readings()
        shifts = np.vstack([np.zeros(n), np.diag(self._steps)])
        varied_coordinates = np.repeat(coordinates[None], n + 1, axis=0)
        damping = np.full(len(starts), 1e-6)
        trial_starts, best = starts, None
        for _ in range(rounds):
            predictions = self._weighted_predictions(varied_coordinates, trial_starts[None] + shifts[:, None, :])
            residuals = readings - predictions[0]
            slopes = np.moveaxis((predictions[1:] - predictions[0]) / self._steps[:, None, None], 0, -1)
            cost = np.sum(residuals**2, axis=1)
            if best is None:
                best = (trial_starts, residuals, slopes, cost)
            else:
                is_better = cost <= best[3]
                damping = np.where(is_better, 0.1 * damping, np.maximum(100.0 * damping, 1e-3))
                gain = np.max((best[3] - cost) / (1.0 + best[3]), initial=0.0, where=is_better)
                previous = best
                best = tuple(
                    np.where(is_better.reshape(-1, *[1] * (new_value.ndim - 1)), new_value, old_value)
                    for new_value, old_value in zip((trial_starts, residuals, slopes, cost), previous, strict=True)
                )
                if gain < 1e-9:
                    break
            trial_starts = best[0] + _solve(best[2], best[1], damping)
        assert best is not None
        return best[0], best[1], best[2]

    def window_costs(self, coordinates: Array, rounds: int = 3) -> Array:
        """Return the mean square of each window's weighted residuals (W,), at the best starts."""
        _, residuals, _ = self.best_starts(coordinates, self._starts, rounds)
        return np.asarray(np.mean(residuals**2, axis=1))

    def residuals(self, coordinates: Array) -> Array:
        """Return the projected residuals (predicted minus measured), flattened for the solver."""
        solution = self.best_starts(coordinates, self._starts)
        self._last_solution = (coordinates, solution)
        _, residuals, slopes = solution
        return np.asarray(-_project_out(slopes, residuals[..., None]).ravel())

    def jacobian(self, coordinates: Array) -> Array:
        """Return the derivative of :meth:`residuals`, (W R, p)."""
        if self._last_solution is None or not np.array_equal(self._last_solution[0], coordinates):
            self.residuals(coordinates)
        assert self._last_solution is not None
        self._starts, _, slopes = self._last_solution[1]
        coordinate_slopes = self._slopes(coordinates, self._starts)
        return _project_out(slopes, coordinate_slopes).reshape(-1, len(coordinates))

    def _slopes(self, coordinates: Array, starts: Array) -> Array:
        """Return the derivative (W, R, p) of the weighted predictions with respect to the coordinates.

        The starts are held fixed.
        """
        p = len(coordinates)
        signs = np.where(coordinates + self._coordinate_steps > self._bounds()[1], -1.0, 1.0) * self._coordinate_steps
        varied_coordinates = coordinates + np.vstack([np.zeros(p), np.diag(signs)])
        predictions = self._weighted_predictions(varied_coordinates, np.repeat(starts[None], p + 1, axis=0))
        return np.moveaxis((predictions[1:] - predictions[0]) / signs[:, None, None], 0, -1)

    def _bounds(self) -> tuple[Array, Array]:
        unknowns = self.model.unknowns
        ends = np.array([[u.coordinate(u.low), u.coordinate(u.high)] for u in unknowns])
        return ends.min(axis=1), ends.max(axis=1)

    def solve(self, coordinates: Array, is_free: NDArray[np.bool_], tolerance: float, evaluations: int = 30) -> Fit:
        """Minimise over the free coordinates (p,), starting from the given ones, to a relative tolerance."""
        low, high = self._bounds()
        margin = 1e-9 * (high - low)
        clipped_coordinates = np.clip(coordinates, low + margin, high - margin)

        def full_coordinates(free_coordinates: Array) -> Array:
            out = clipped_coordinates.copy()
            out[is_free] = free_coordinates
            return out

        solution = least_squares(
            lambda free_coordinates: self.residuals(full_coordinates(free_coordinates)),
            clipped_coordinates[is_free],
            jac=lambda free_coordinates: self.jacobian(full_coordinates(free_coordinates))[:, is_free],
            bounds=(low[is_free], high[is_free]),
            x_scale="jac",
            max_nfev=evaluations,
            ftol=tolerance,
            xtol=tolerance,
            gtol=tolerance,
        )
        return self.fit_at(full_coordinates(solution.x))

    def fit_at(self, coordinates: Array) -> Fit:
        """Return the fit at given coordinates, with the best starts."""
        starts, residuals, slopes = self.best_starts(coordinates, self._starts, _N_LAST_ROUNDS)
        self._starts = starts
        coordinate_slopes = self._slopes(coordinates, starts)
        shape = self.model.windows.readings.shape
        basis = np.linalg.qr(slopes).Q
        leverage = np.sum(basis**2, axis=2).reshape(shape)
        projected_residuals = _project_out(slopes, residuals[..., None])[..., 0]
        return Fit(
            coordinates,
            starts,
            residuals.reshape(shape) * self.sigma,
            projected_residuals,
            _project_out(slopes, coordinate_slopes),
            leverage,
            float(np.mean(residuals**2)),
        )


def _gram(slopes: Array, damping: Array | float) -> Array:
    gram = np.swapaxes(slopes, 1, 2) @ slopes
    diagonal = np.einsum("wii->wi", gram)
    floor = 1e-12 * np.max(diagonal, axis=0) + 1e-300
    return np.asarray(gram + np.eye(slopes.shape[2]) * (np.reshape(damping, (-1, 1)) * diagonal + floor)[:, None, :])


def _solve(slopes: Array, residuals: Array, damping: Array) -> Array:
    """Return the damped Gauss-Newton step (W, n)."""
    gradient = np.swapaxes(slopes, 1, 2) @ residuals[..., None]
    return np.asarray(np.linalg.solve(_gram(slopes, damping), gradient)[..., 0])


def _project_out(slopes: Array, vectors: Array) -> Array:
    """Return vectors (W, R, k) minus their projection onto the span of the slopes (W, R, n)."""
    projection_coefficients = np.linalg.solve(_gram(slopes, 0.0), np.swapaxes(slopes, 1, 2) @ vectors)
    return np.asarray(vectors - slopes @ projection_coefficients)
