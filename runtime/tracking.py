"""Targets of a task on a rig: their signals, the observations that follow them, and their values in a run's
episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import UNSET

from onrig.hw.rig import Rig, targets_of, with_targets
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Kind
from onrig.runtime.rewards import Distance
from onrig.runtime.targets import Values, draw_values, signal_of
from onrig.runtime.task import Task

_TARGET_ROLES: Final = {Role.PLANT_TRAIN: Role.TARGETS_TRAIN, Role.PLANT_EVAL: Role.TARGETS_EVAL}
PLANT_ROLES: Final = {Kind.TRAIN: Role.PLANT_TRAIN, Kind.EVAL: Role.PLANT_EVAL}
"""Role of the plant in each kind of episode; the episode's reset uses the seed of this role."""


def followers(task: Task) -> Mapping[str, str]:
    """Return the observation that follows each target, if any, as stated by the target or by a distance of the
    reward."""
    targets = task.targets or {}
    reward_followers = {
        term.target: term.observation
        for term in reversed((task.reward.terms or {}).values())
        if isinstance(term, Distance) and isinstance(term.target, str)
    }
    target_followers = {name: target.observation for name, target in targets.items() if target.observation is not UNSET}
    return {
        name: observation for name, observation in {**reward_followers, **target_followers}.items() if name in targets
    }


def tracking_rig(task: Task, rig: Rig) -> Rig:
    """Return the rig with the task's targets as additional signals."""
    targets, units, follower_of = task.targets or {}, {o.name: o.unit for o in rig.observations}, followers(task)
    return with_targets(
        rig, tuple(signal_of(name, t, units.get(follower_of.get(name, ""))) for name, t in targets.items())
    )


class EpisodeTargets:
    """Values of a task's targets in the episodes of a run; the latest episode is cached."""

    def __init__(self, task: Task, rig: Rig, period_us: int, steps: int) -> None:
        """``rig``: as returned by :func:`tracking_rig`; ``steps``: number of transitions per episode."""
        self._targets: Final = tuple((task.targets or {}).values())
        self._period_s, self._steps = period_us * 1e-6, steps
        self._middle: Final = np.array([[0.5 * (s.low + s.high) for s in targets_of(rig)]])
        self._last_values: tuple[tuple[int, Kind, int], Values] | None = None

    def values_for_role(self, seed: int, role: Role, episode: int) -> Values:
        """Return the values (steps + 1, q), in SI units, of q targets at the samples of an episode; ``role`` is its
        plant's."""
        return draw_values(
            self._targets, self._steps, self._period_s, lambda i: stream(seed, _TARGET_ROLES[role], episode, i)
        )

    def values_for_kind(self, seed: int, kind: Kind, episode: int) -> Values:
        """Return the values for an episode of this kind; for a reset, the middles (1, q) of the targets' ranges."""
        role = PLANT_ROLES.get(kind)
        if role is None:
            return self._middle
        key = (seed, kind, episode)
        if self._last_values is None or self._last_values[0] != key:
            self._last_values = key, self.values_for_role(seed, role, episode)
        return self._last_values[1]
