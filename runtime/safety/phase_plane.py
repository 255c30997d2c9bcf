"""The safe set S of a pendulum, as the highest velocity for each angle.

Only the highest velocity is computed; the lowest follows by mirroring angle, velocity and voltage.  The proof is a
comparison.  Let f(theta, omega) be the largest acceleration of any plant of the box under the given command.  If a
curve omega = W(theta) around the cylinder follows the flow (omega, f), no plant crosses it from below: at each point of
the curve, every plant has the same theta' = omega, and its omega' is no larger than the curve's.  The plant may
therefore vary within the box while it moves, and so may the dead band of its motor: in f, a pushing voltage counts in
full, and a braking voltage is reduced by the largest dead band.  Four curves are computed, each from the previous one:

* ``coasting``: below it, the device's safe output keeps omega <= limit for ever after the death of the host.  Here the
  plant is assumed constant, since a gravity that changed with the angle could add energy in every turn.  If the safe
  output drives the motor to a value, the box is cut into slices of gravity, and each slice is scanned backwards in
  theta.  If it releases the motor, which then neither pushes nor brakes, the energy of a swing without friction gives
  the curve.
* ``fallback``: below it, the braking fallback keeps the motion below ``coasting``, so that the host may die at any
  moment.
* ``safe`` (S): ``fallback`` carried back under the worst command for any time up to ``delay_s``.  This covers late and
  lost commands, and the lease of a device whose host has died.  It also makes the scan of ``fallback`` valid in
  discrete time: the command in force was chosen for a sample that is at most ``delay_s`` old, and a motion that reaches
  the curve ``fallback`` was already above S at that sample.  S is above ``full_at``, so the command is full braking.
* ``passing``: S carried back under a given command for one period, then under the worst command for the time by which
  a command may be late.  It bounds the states in which this command may be sent.

If the host dies while the fallback acts, a braking command keeps the motion below ``coasting`` at least as well as the
safe output, since it brakes harder.  A pushing command answers a sample at standstill or below, which is inside S.

Grid errors are subtracted, on the safe side: each node is lowered by the largest second difference, which is eight
times the error of a chord (four times at a kink), over the angle for each resampled curve and over time for each
running minimum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

N_NODES: Final = 1024
"""Number of angles at which curves are sampled."""
N_LEVELS: Final = 33
"""Number of commands over the range for which ``passing`` is tabulated; a command in between uses the worse of its
neighbours."""
_STEP_S: Final = 5e-4
"""Step of the integration (Runge-Kutta, fourth order) and of the running minimum."""
_N_GRAVITY_SLICES: Final = 16
"""Number of slices into which the range of gravity is cut for ``coasting``; a plant may vary within its slice."""
_N_SCAN_TURNS: Final = 3
_MIN_SCAN_VELOCITY: Final = 1e-3
"""Velocity (rad/s) below which a scan in the angle is ill-conditioned."""
_FULL_TURN: Final = 2.0 * math.pi


class Span(NamedTuple):
    """A closed interval."""

    low: float
    high: float


class Box(NamedTuple):
    """Plants theta'' = -gravity sin(theta) - damping theta' + gain u, u less a dead band of at most ``dead_band``."""

    gravity: Span
    """A in 1/s^2."""
    damping: Span
    """D in 1/s."""
    gain: Span
    """G in 1/(V s^2)."""
    dead_band: float = 0.0
    """Dead band in V."""


class Case(NamedTuple):
    """Parameters of the upper side."""

    box: Box
    command: Span
    """Range of commands in V."""
    limit: float
    """Highest allowed velocity, rad/s."""
    full_at: float
    """Velocity from which the fallback brakes with ``command.low``, rad/s."""
    period_s: float
    delay_s: float
    """Longest time after a sample at which the command that answers it may still act."""
    late_s: float
    """Longest time from a sample to the effect of its command in normal operation."""
    angle_error: float
    velocity_error: float
    """Bounds on the errors of the measured angle and velocity."""
    safe_output: float | None
    """Voltage (V) of the device's safe output; None if it releases the motor."""


class UpperSide(NamedTuple):
    """Curves of the upper side over the nodes -pi, -pi + h, ...; velocities in rad/s."""

    coasting: Curve
    fallback: Curve
    safe: Curve
    passing: Curve
    """(LEVELS, NODES): row i for the command at i / (LEVELS - 1) of the range."""
    cells: Curve
    """(LEVELS, NODES): ``passing`` as a bound on measured velocities, for a measured angle in [node, next node)."""


class NoSafeSet(ValueError):
    """Raised if the fallback or the safe output cannot keep these plants within the limits."""


def mirror_case(case: Case, min_velocity: float) -> Case:
    """Return the case whose upper side is the lower side of ``case``; ``min_velocity``: lowest allowed velocity,
    rad/s."""
    return case._replace(
        command=Span(-case.command.high, -case.command.low),
        limit=-min_velocity,
        safe_output=-case.safe_output if case.safe_output else case.safe_output,
    )


@lru_cache(maxsize=8)
def upper_side(case: Case) -> UpperSide:
    """Compute all curves, in a few tenths of a second; raises NoSafeSet."""
    coasting, fallback, safe = _curves(case)
    levels = np.linspace(case.command.low, case.command.high, N_LEVELS)
    passing = _propagate_back(case.box, safe, levels[:, None], case.period_s)
    if case.late_s > 0:
        passing = _propagate_back(case.box, passing, case.command.high, case.late_s)
    max_shift = min(math.ceil(case.angle_error / (_FULL_TURN / N_NODES)), N_NODES // 2)  # at most one turn
    shifted_curves = [np.roll(passing, -shift, axis=1) for shift in range(-max_shift, max_shift + 2)]
    return UpperSide(coasting, fallback, safe, passing, np.min(shifted_curves, axis=0) - case.velocity_error)


def check_feasible(case: Case) -> None:
    """Raise NoSafeSet if :func:`upper_side` would, in a fraction of the time."""
    _curves(case)


@lru_cache(maxsize=16)
def _curves(case: Case) -> tuple[Curve, Curve, Curve]:
    """Return the curves ``coasting``, ``fallback`` and ``safe``."""
    coasting = _coasting_curve(case)
    fallback = _fallback_curve(case, coasting)
    return coasting, fallback, _safe_curve(case, fallback)


def largest_effect(command: Curve | float, dead_band: float) -> Curve:
    """Return the largest effect (V) of a command under a dead band of up to ``dead_band``: a push counts in full, and a
    brake is reduced by all of ``dead_band``."""
    return np.where(np.greater(command, 0.0), command, np.minimum(np.add(command, dead_band), 0.0))


def acceleration(box: Box, sine: Curve | float, velocity: Curve, command: Curve | float) -> Curve:
    """Return the largest angular acceleration (rad/s^2) of any plant of the box."""
    if box.dead_band:
        command = largest_effect(command, box.dead_band)
    gravity = np.where(np.less(sine, 0.0), box.gravity.high, box.gravity.low)
    damping = np.where(np.greater(velocity, 0.0), box.damping.low, box.damping.high)
    gain = np.where(np.greater(command, 0.0), box.gain.high, box.gain.low)
    return np.asarray(gain * command - gravity * sine - damping * velocity, dtype=np.float64)


def _coasting_curve(case: Case) -> Curve:
    """Return the highest velocities from which the safe output keeps a constant plant within the limit for ever."""
    gravity, limit = case.box.gravity, case.limit
    if case.safe_output is None:
        # The energy omega^2 / 2 - A cos(theta) never increases, so the speed is highest at the bottom, theta = 0.
        nodes = np.linspace(-math.pi, math.pi, N_NODES, endpoint=False)
        squared_velocity = limit * limit - 2.0 * gravity.high * (1.0 - np.cos(nodes))
        if not squared_velocity.min() > 0:
            raise NoSafeSet(f"falling from the upright with the motor released exceeds {limit:.3g} rad/s")
        return _subtract_chord_error(np.sqrt(squared_velocity))
    edges = np.linspace(gravity.low, gravity.high, _N_GRAVITY_SLICES + 1).tolist()
    slice_curves = [
        _scan_backwards(case.box._replace(gravity=Span(*span)), case.safe_output, np.full(N_NODES, limit))
        for span in pairwise(edges)
    ]
    lowest = np.min(slice_curves, axis=0)
    if not lowest.min() > 0:
        raise NoSafeSet(f"falling from the upright under {case.safe_output:g} V exceeds {limit:.3g} rad/s")
    return _subtract_chord_error(lowest)


def _fallback_curve(case: Case, coasting: Curve) -> Curve:
    """Return the highest velocities from which full braking keeps the motion below ``coasting``."""
    curve = _scan_backwards(case.box, case.command.low, coasting)
    if not curve.min() > 0:
        raise NoSafeSet(f"at some angles the fallback is too weak to stay within {case.limit:.3g} rad/s")
    return _subtract_chord_error(curve)


def _scan_backwards(box: Box, command: float, highest: Curve) -> Curve:
    """Return the highest velocities from which a held command keeps the motion below ``highest``.

    This is an obstacle problem, solved by scanning backwards.  All velocities are 0 if any angle has no such velocity.
    """
    h = _FULL_TURN / N_NODES
    effect = float(largest_effect(command, box.dead_band))
    push = (box.gain.high if effect > 0 else box.gain.low) * effect
    max_gravity, min_gravity, damping = box.gravity.high, box.gravity.low, box.damping.low
    sines = [math.sin(-math.pi + 0.5 * k * h) for k in range(2 * N_NODES)]
    bounds = highest.tolist()

    def slope(half_node: int, velocity: float) -> float:
        sine = sines[half_node % (2 * N_NODES)]
        gravity = max_gravity if sine < 0 else min_gravity
        return (push - gravity * sine - damping * velocity) / velocity

    curve, velocity = [0.0] * N_NODES, bounds[0]
    for k in range(_N_SCAN_TURNS * N_NODES, 0, -1):
        k1 = slope(2 * k, velocity)
        k2 = slope(2 * k - 1, velocity - 0.5 * h * k1)
        k3 = slope(2 * k - 1, velocity - 0.5 * h * k2)
        k4 = slope(2 * k - 2, velocity - h * k3)
        velocity = min(bounds[(k - 1) % N_NODES], velocity - h / 6.0 * (k1 + 2.0 * (k2 + k3) + k4))
        if not velocity > _MIN_SCAN_VELOCITY:  # also for NaN
            return np.zeros(N_NODES)
        if k <= N_NODES:
            curve[k - 1] = velocity
    return np.array(curve)


def _safe_curve(case: Case, fallback: Curve) -> Curve:
    safe = _propagate_back(case.box, fallback, case.command.high, case.delay_s)
    if not safe.min() > case.full_at + case.velocity_error:
        angle = -math.pi + _FULL_TURN / N_NODES * int(np.argmin(safe))
        raise NoSafeSet(
            f"the fallback brakes fully from {case.full_at:.3g} rad/s, up to {case.delay_s:.3g} s late; at an angle "
            f"of {angle:.3g} rad this is too late to stay within {case.limit:.3g} rad/s"
        )
    return safe


def _propagate_back(box: Box, curve: Curve, command: Curve | float, duration_s: float) -> Curve:
    """Return the highest velocities from which ``command`` keeps the motion below ``curve`` throughout ``duration_s``.

    ``curve`` is (..., NODES), and ``command`` broadcasts against it.  Errors are subtracted: the largest second
    difference in time from the running minimum, and the chord error from the result.
    """
    steps = max(4, math.ceil(duration_s / _STEP_S))
    h = duration_s / steps
    nodes = np.linspace(-math.pi, math.pi, N_NODES, endpoint=False)
    shape = np.broadcast_shapes(np.shape(command), curve.shape)
    angle, velocity = np.broadcast_to(nodes, shape).copy(), np.broadcast_to(curve, shape).copy()

    def reversed_flow(a: Curve, v: Curve) -> tuple[Curve, Curve]:
        return -v, -acceleration(box, np.sin(a), v, command)

    lowest = previous = last_curve = velocity.copy()
    max_difference = np.zeros(shape)
    for k in range(steps):
        a1, v1 = reversed_flow(angle, velocity)
        a2, v2 = reversed_flow(angle + 0.5 * h * a1, velocity + 0.5 * h * v1)
        a3, v3 = reversed_flow(angle + 0.5 * h * a2, velocity + 0.5 * h * v2)
        a4, v4 = reversed_flow(angle + h * a3, velocity + h * v3)
        angle = angle + h / 6.0 * (a1 + 2.0 * (a2 + a3) + a4)
        velocity = velocity + h / 6.0 * (v1 + 2.0 * (v2 + v3) + v4)
        new_curve = _resample(nodes, angle, velocity)
        if k:
            np.maximum(max_difference, np.abs(new_curve - 2.0 * last_curve + previous), out=max_difference)
        lowest = np.minimum(lowest, new_curve)
        previous, last_curve = last_curve, new_curve
    return _subtract_chord_error(lowest - max_difference)


def _resample(nodes: Curve, angle: Curve, velocity: Curve) -> Curve:
    """Resample the curves through (angle, velocity) at the nodes."""
    is_monotonic = np.all(np.diff(angle, axis=-1) > 0) and np.all(angle[..., 0] + _FULL_TURN > angle[..., -1])
    if not (is_monotonic and np.all(np.isfinite(velocity))):  # also rejects overflow
        raise NoSafeSet("at some angles the limits allow no velocity; the lease may be too long for the plant")
    # np.interp with a period would sort every row, but the rows are sorted already except at the end of the turn.
    target_angles, wrapped_angles = nodes % _FULL_TURN, angle % _FULL_TURN
    order = np.argsort(wrapped_angles, axis=-1, kind="stable")
    x, y = np.take_along_axis(wrapped_angles, order, -1), np.take_along_axis(velocity, order, -1)
    x = np.concatenate((x[..., -1:] - _FULL_TURN, x, x[..., :1] + _FULL_TURN), axis=-1)
    y = np.concatenate((y[..., -1:], y, y[..., :1]), axis=-1)
    rows = zip(x.reshape(-1, N_NODES + 2), y.reshape(-1, N_NODES + 2), strict=True)
    return np.array([np.interp(target_angles, a, v) for a, v in rows]).reshape(velocity.shape)


def _subtract_chord_error(curve: Curve) -> Curve:
    """Lower a curve by its largest neighbouring second difference, so that its chords are below the true curve."""
    second_difference = np.abs(np.roll(curve, -1, axis=-1) - 2.0 * curve + np.roll(curve, 1, axis=-1))
    return curve - np.maximum(
        second_difference, np.maximum(np.roll(second_difference, 1, axis=-1), np.roll(second_difference, -1, axis=-1))
    )
