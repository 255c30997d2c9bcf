"""Amplitude schedules: piecewise linear over episodes, steps or seconds, for each actuator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from onrig.runtime.explore.settings import Budgets, Exploration, NoExploration, ParameterNoise, Points, Quiet, Scheduled


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise-linear interpolation through (x, y) points in ascending x, constant outside."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def schedules(amplitude: Points | dict[str, Points], actuators: Sequence[str]) -> tuple[Points, ...]:
    """Return the schedule of each actuator, in order; raises KeyError for one that a mapping leaves out."""
    if isinstance(amplitude, dict):
        return tuple(amplitude[name] for name in actuators)
    return (amplitude,) * len(actuators)


def amplitudes(exploration: Scheduled, actuators: Sequence[str], x: float) -> tuple[float, ...]:
    """Return the scheduled amplitude of each actuator at ``x`` in the schedule's own unit."""
    return tuple(interpolate(points, x) for points in schedules(exploration.amplitude, actuators))


def is_quiet(quiet: Quiet | None, episode: int) -> bool:
    """Tell whether training episode ``episode`` (from 1) is one without noise."""
    return quiet is not None and (episode - 1) % quiet.every >= quiet.every - quiet.episodes


def noisy_episodes(quiet: Quiet | None, episodes: int) -> int:
    """Count the first ``episodes`` training episodes that have noise; schedules over steps advance in them alone."""
    if quiet is None:
        return episodes
    whole, rest = divmod(episodes, quiet.every)
    return whole * (quiet.every - quiet.episodes) + min(rest, quiet.every - quiet.episodes)


def follows_episode_alone(exploration: Exploration) -> bool:
    """Tell whether the noise of an episode follows from its number and the seed: no gate, no schedule over steps.

    Whoever draws it again elsewhere (synthetic experiences, trials on plants) relies on that.
    """
    budgeted = exploration.budgets != Budgets(warn=exploration.budgets.warn)
    if isinstance(exploration, NoExploration | ParameterNoise):
        return not budgeted and isinstance(exploration, NoExploration)
    gated = exploration.near_envelope is not None or exploration.back_off is not None
    return exploration.over == "episodes" and not gated and not budgeted
