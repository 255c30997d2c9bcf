"""The safe set S of a pendulum, as a highest velocity for each angle.

One side is computed, the highest velocity; the lowest follows by mirroring angle, velocity and voltage.  The proof is a
single comparison.  Let f(theta, omega) be the largest acceleration of any plant of the box under the given command.  A
curve omega = W(theta) around the cylinder that is carried by the flow (omega, f) is never crossed from below by any
plant: at a point of the curve every plant has the same theta' = omega, and at most the curve's own omega'.  So the
plant may even vary within the box while it moves, and so may its motor's dead band: in f, a pushing voltage counts in
full, a braking one less the largest dead band.  For constant plants S is hardly larger: while the mass rises under the
fallback the envelope is not at risk, so the fall decides, with one vertex (most gravity, least damping and gain) as
its worst case.  Three curves follow, each from the previous one:

* ``fallback``: below it the braking fallback keeps omega <= limit.  Scanned backwards in theta under full braking.
  It holds in discrete time: a command in force answers a sample at most ``delay_s`` old, so from the velocity
  ``brake_from`` on every such sample asked for full braking; below it nothing is assumed of the fallback, and the scan
  fails if motion starting at ``brake_from`` might exceed the limit.
* ``safe`` (S): the curve above carried back under the worst command for any time up to ``delay_s``.
* ``passing``: S carried back under a given command for one period, then under the worst one for the time that a command
may be late: the states in which this command may be sent.

Grid errors are subtracted on the safe side: at each node the largest second difference, which is eight times the error
of a chord (four times at a kink), in the angle for each resampled curve, in time for each running minimum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

NODES: Final = 1024
"""Angles at which curves are kept."""
LEVELS: Final = 33
"""Commands with tabulated passing states, over the whole range; a command in between counts as the next worse one."""
_STEP_S: Final = 5e-4
"""Step of the integration (Runge-Kutta, fourth order) and of the running minimum."""
_TURNS: Final = 3
_TURN: Final = 2.0 * math.pi


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
    """In V."""


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
    """Longest time for which a command may stay in force after a sample whose answer should have replaced it."""
    late_s: float
    """Longest time from a sample to the effect of its command in normal operation."""
    angle_error: float
    velocity_error: float
    """Bounds of the sensors' errors."""


class Sides(NamedTuple):
    """Curves of the upper side over the nodes -pi, -pi + h, ...; velocities in rad/s."""

    fallback: Curve
    safe: Curve
    passing: Curve
    """(LEVELS, NODES): row i for the command at i / (LEVELS - 1) of the range."""
    cells: Curve
    """(LEVELS, NODES): the same as bounds on a measured velocity, for a measured angle within [node, next node)."""
    brake_from: float


class NoSafeSet(ValueError):
    """The fallback cannot keep the limits for these plants."""


def mirrored(case: Case, lowest: float) -> Case:
    """The case whose upper side is the lower side of ``case``, for a lowest allowed velocity (rad/s)."""
    return case._replace(command=Span(-case.command.high, -case.command.low), limit=-lowest)


@lru_cache(maxsize=8)
def upper_side(case: Case) -> Sides:
    """Compute all curves, in a few tenths of a second; raises NoSafeSet."""
    fallback, safe = _fallback_and_safe(case)
    levels = np.linspace(case.command.low, case.command.high, LEVELS)
    passing = _carried_back(case.box, safe, levels[:, None], case.period_s)
    if case.late_s > 0:
        passing = _carried_back(case.box, passing, case.command.high, case.late_s)
    reach = min(math.ceil(case.angle_error / (_TURN / NODES)), NODES // 2)  # at most a whole turn
    around = [np.roll(passing, -shift, axis=1) for shift in range(-reach, reach + 2)]
    return Sides(fallback, safe, passing, np.min(around, axis=0) - case.velocity_error, _brake_from(case))


def feasible(case: Case) -> None:
    """Raise NoSafeSet if :func:`upper_side` would, in a fraction of its time."""
    _fallback_and_safe(case)


@lru_cache(maxsize=16)
def _fallback_and_safe(case: Case) -> tuple[Curve, Curve]:
    fallback = _fallback_curve(case, _brake_from(case))
    return fallback, _safe_curve(case, fallback)


def largest_effect(command: Curve | float, dead_band: float) -> Curve:
    """Most (V) that is left of a command by any dead band up to ``dead_band``: all of a push, the least of a brake."""
    return np.where(np.greater(command, 0.0), command, np.minimum(np.add(command, dead_band), 0.0))


def acceleration(box: Box, sine: Curve | float, velocity: Curve, command: Curve | float) -> Curve:
    """Largest angular acceleration (rad/s^2) of any plant of the box."""
    if box.dead_band:
        command = largest_effect(command, box.dead_band)
    gravity = np.where(np.less(sine, 0.0), box.gravity.high, box.gravity.low)
    damping = np.where(np.greater(velocity, 0.0), box.damping.low, box.damping.high)
    gain = np.where(np.greater(command, 0.0), box.gain.high, box.gain.low)
    return np.asarray(gain * command - gravity * sine - damping * velocity, dtype=np.float64)


def _brake_from(case: Case) -> float:
    """Velocity above which every sample of the last ``delay_s`` asked for full braking."""
    box, push = case.box, max(case.command.high, 0.0)
    gained = (box.gravity.high + box.gain.high * push) * case.delay_s
    return case.full_at + case.velocity_error + gained


def _fallback_curve(case: Case, brake_from: float) -> Curve:
    """Highest velocity from which full braking keeps the limit: an obstacle problem scanned backwards."""
    box, h = case.box, _TURN / NODES
    least = float(largest_effect(case.command.low, box.dead_band))
    brake = (box.gain.low if least < 0 else box.gain.high) * least
    most_gravity, least_gravity = box.gravity.high, box.gravity.low
    sines = [math.sin(-math.pi + 0.5 * k * h) for k in range(2 * NODES)]

    def slope(half_node: int, velocity: float) -> float:
        sine = sines[half_node % (2 * NODES)]
        gravity = most_gravity if sine < 0 else least_gravity
        return (brake - gravity * sine - box.damping.low * velocity) / velocity

    curve, velocity = [case.limit] * NODES, case.limit
    for k in range(_TURNS * NODES, 0, -1):
        k1 = slope(2 * k, velocity)
        k2 = slope(2 * k - 1, velocity - 0.5 * h * k1)
        k3 = slope(2 * k - 1, velocity - 0.5 * h * k2)
        k4 = slope(2 * k - 2, velocity - h * k3)
        velocity = min(case.limit, velocity - h / 6.0 * (k1 + 2.0 * (k2 + k3) + k4))
        if not velocity >= brake_from:  # NaN too
            raise NoSafeSet(
                f"the fallback brakes fully above {brake_from:.3g} rad/s, up to {case.delay_s:.3g} s late; at some "
                f"angles that is too late to stay within {case.limit:.3g} rad/s"
            )
        if k <= NODES:
            curve[k - 1] = velocity
    return _less_chord(np.array(curve))


def _safe_curve(case: Case, fallback: Curve) -> Curve:
    safe = _carried_back(case.box, fallback, case.command.high, case.delay_s)
    if not safe.min() > case.velocity_error:
        angle = -math.pi + _TURN / NODES * int(np.argmin(safe))
        raise NoSafeSet(
            f"at an angle of {angle:.3g} rad even standstill is unsafe: after {case.delay_s:.3g} s under the worst "
            f"command the fallback cannot keep {case.limit:.3g} rad/s"
        )
    return safe


def _carried_back(box: Box, curve: Curve, command: Curve | float, duration_s: float) -> Curve:
    """Highest velocities from which ``command`` stays below ``curve`` throughout ``duration_s``.

    curve (..., NODES); command broadcasts against it.  Errors are subtracted: the largest second difference in time
    from the running minimum, and the chord error from the result.
    """
    steps = max(4, math.ceil(duration_s / _STEP_S))
    h = duration_s / steps
    nodes = np.linspace(-math.pi, math.pi, NODES, endpoint=False)
    shape = np.broadcast_shapes(np.shape(command), curve.shape)
    angle, velocity = np.broadcast_to(nodes, shape).copy(), np.broadcast_to(curve, shape).copy()

    def backwards(a: Curve, v: Curve) -> tuple[Curve, Curve]:
        return -v, -acceleration(box, np.sin(a), v, command)

    least = before = latest = velocity.copy()
    curved = np.zeros(shape)
    for k in range(steps):
        a1, v1 = backwards(angle, velocity)
        a2, v2 = backwards(angle + 0.5 * h * a1, velocity + 0.5 * h * v1)
        a3, v3 = backwards(angle + 0.5 * h * a2, velocity + 0.5 * h * v2)
        a4, v4 = backwards(angle + h * a3, velocity + h * v3)
        angle = angle + h / 6.0 * (a1 + 2.0 * (a2 + a3) + a4)
        velocity = velocity + h / 6.0 * (v1 + 2.0 * (v2 + v3) + v4)
        now = _drawn_anew(nodes, angle, velocity)
        if k:
            np.maximum(curved, np.abs(now - 2.0 * latest + before), out=curved)
        least = np.minimum(least, now)
        before, latest = latest, now
    return _less_chord(least - curved)


def _drawn_anew(nodes: Curve, angle: Curve, velocity: Curve) -> Curve:
    """The curves through (angle, velocity), resampled at the nodes."""
    in_order = np.all(np.diff(angle, axis=-1) > 0) and np.all(angle[..., 0] + _TURN > angle[..., -1])
    if not (in_order and np.all(np.isfinite(velocity))):  # also rejects overflow
        raise NoSafeSet(
            "the limits leave no room for a velocity at every angle; the lease may be too long for the plant"
        )
    # np.interp with a period would sort each row; all are sorted except at the end of the turn.
    wanted, around = nodes % _TURN, angle % _TURN
    order = np.argsort(around, axis=-1, kind="stable")
    x, y = np.take_along_axis(around, order, -1), np.take_along_axis(velocity, order, -1)
    x = np.concatenate((x[..., -1:] - _TURN, x, x[..., :1] + _TURN), axis=-1)
    y = np.concatenate((y[..., -1:], y, y[..., :1]), axis=-1)
    rows = zip(x.reshape(-1, NODES + 2), y.reshape(-1, NODES + 2), strict=True)
    return np.array([np.interp(wanted, a, v) for a, v in rows]).reshape(velocity.shape)


def _less_chord(curve: Curve) -> Curve:
    """The curve lowered by its largest second difference nearby, so that its chords lie below the true curve."""
    second = np.abs(np.roll(curve, -1, axis=-1) - 2.0 * curve + np.roll(curve, 1, axis=-1))
    return curve - np.maximum(second, np.maximum(np.roll(second, 1, axis=-1), np.roll(second, -1, axis=-1)))
