"""Amplitude of the noise: schedules per actuator, and attenuating factors in [0, 1]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.runtime.explore.settings import (
    BackOff,
    Budgets,
    Exploration,
    NearEnvelope,
    ParameterNoise,
    Points,
    Quiet,
    ScheduledNoise,
)


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between (x, y) points in ascending x; the result is constant outside them."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def schedules(amplitude: Points | dict[str, Points], actuators: Sequence[str]) -> tuple[Points, ...]:
    """Return the schedule of each actuator, in order; raises KeyError if a mapping lacks one."""
    if isinstance(amplitude, dict):
        return tuple(amplitude[name] for name in actuators)
    return (amplitude,) * len(actuators)


def amplitudes(exploration: ScheduledNoise, actuators: Sequence[str], x: float) -> tuple[float, ...]:
    """Return the scheduled amplitude of each actuator at ``x``, in the unit of the schedule."""
    return tuple(interpolate(points, x) for points in schedules(exploration.amplitude, actuators))


def min_amplitude(exploration: ScheduledNoise) -> float:
    """Return the smallest amplitude of any schedule; 1 without points."""
    amplitude = exploration.amplitude
    all_points = amplitude.values() if isinstance(amplitude, dict) else (amplitude,)
    return min((value for points in all_points for _, value in points), default=1.0)


def is_quiet(quiet: Quiet | None, episode: int) -> bool:
    """Return whether training episode ``episode`` (from 1) has no noise."""
    return quiet is not None and (episode - 1) % quiet.every >= quiet.every - quiet.episodes


def noisy_episodes(quiet: Quiet | None, episodes: int) -> int:
    """Count the noisy episodes among the first ``episodes`` training episodes; only these advance a schedule over
    steps."""
    if quiet is None:
        return episodes
    n_cycles, remainder = divmod(episodes, quiet.every)
    return n_cycles * (quiet.every - quiet.episodes) + min(remainder, quiet.every - quiet.episodes)


def depends_on_episode_only(exploration: Exploration) -> bool:
    """Return whether an episode's noise depends only on its number and the seed: no gate, no schedule over steps.

    Synthetic experiences and trials on plants require this, because they redraw the noise.
    """
    has_budgets = exploration.budgets != Budgets(warn=exploration.budgets.warn)
    if not isinstance(exploration, ScheduledNoise) or isinstance(exploration, ParameterNoise):
        return not has_budgets and not isinstance(exploration, ParameterNoise)
    has_gates = exploration.near_envelope is not None or exploration.back_off is not None
    return exploration.over == "episodes" and not has_gates and not has_budgets


class BackOffState(NamedTuple):
    """Back-off level of the amplitude, and the number of consecutive clean episodes."""

    level: int = 0
    clean: int = 0


def attenuation(settings: NearEnvelope, margin: float) -> float:
    """Return the factor at the shield's ``margin``: 1 from ``settings.start`` on, ``settings.floor`` at 0 and for
    NaN."""
    if margin >= settings.start:
        return 1.0
    if not margin > 0.0:
        return settings.floor
    return settings.floor + (1.0 - settings.floor) * margin / settings.start


def back_off_factor(back_off: BackOff, state: BackOffState) -> float:
    """Return the factor of a back-off level."""
    return max(back_off.factor**state.level, back_off.least) if state.level else 1.0


def back_off_once(back_off: BackOff, state: BackOffState) -> BackOffState:
    """Back off one level, unless the factor is already ``least``, because further levels would only delay the
    recovery."""
    is_at_minimum = back_off.factor**state.level <= back_off.least
    return BackOffState(state.level + (not is_at_minimum), 0)


def count_clean_episode(back_off: BackOff, state: BackOffState) -> BackOffState:
    """Count a clean episode, and step back one level once ``clean_episodes`` in a row have been clean."""
    if not state.level:
        return state
    if state.clean + 1 < back_off.clean_episodes:
        return BackOffState(state.level, state.clean + 1)
    return BackOffState(state.level - 1, 0)


class AmplitudeBackOff:
    """Back-off of a run's amplitude, driven by its trips and clean episodes."""

    def __init__(self, settings: BackOff | None) -> None:
        """Without ``settings`` the factor remains 1."""
        self._settings: Final = settings
        self.state = BackOffState()
        self._has_tripped = False

    @property
    def factor(self) -> float:
        """Factor on the amplitude; 1 without recent trips."""
        return 1.0 if self._settings is None else back_off_factor(self._settings, self.state)

    def begin_episode(self) -> None:
        """Start an episode, which is clean until it trips."""
        self._has_tripped = False

    def trip(self) -> bool:
        """Back off after a trip; return False if back-off is disabled."""
        self._has_tripped = True
        if self._settings is None:
            return False
        self.state = back_off_once(self._settings, self.state)
        return True

    def end_noisy_episode(self) -> None:
        """End a noisy training episode, and count it if it was clean."""
        if self._settings is not None and not self._has_tripped:
            self.state = count_clean_episode(self._settings, self.state)


def budget_factor(consumption: float, limit: float, warn: float) -> float:
    """Return the factor of a budget: 1 while at most ``warn`` of it is used, then linear to 0 when it is spent."""
    if not consumption < limit:  # NaN counts as spent
        return 0.0
    if consumption <= warn * limit:
        return 1.0
    return (limit - consumption) / (limit - warn * limit)
