"""What ``onrig bench loop`` measures in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.runtime.run_config import RunConfig

CYCLICTEST: Final = "cyclictest"
ONRIG: Final = "onrig"
_LEASE_S: Final = 0.04
"""At least: so long may a command be in force that a stall of the machine does not end the episode."""

EVERYTHING: Final = (
    "exploration.near_envelope={from: 0.3, floor: 0.0}",
    "exploration.back_off={factor: 0.5, least: 0.1, clean_episodes: 5}",
    "exploration.quiet={every: 10, episodes: 1}",
    "exploration.budgets.episode={interventions: 1000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.hour={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "exploration.budgets.session={interventions: 100000000, trips: 1000000, energy_s: 1e9, wear_strokes: 1e9}",
    "learner.updates_per_episode=null",
    "learner.updates_per_transition=1.0",
)
"""What a tick can be made to do at all, with budgets that are counted and never spent, and a learner never at rest."""


class Subject(NamedTuple):
    """Whose turn a slice is."""

    name: str
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Slice(NamedTuple):
    """A stretch of time given to one subject."""

    subject: Subject
    seconds: float


def schedule(subjects: Sequence[Subject], seconds: float, slice_s: float) -> list[Slice]:
    """Give each subject ``seconds`` in equal slices of about ``slice_s``, in turns and every other time in reverse.

    So whatever the machine does in these minutes meets all alike, and a slow drift cancels.
    """
    rounds = max(1, round(seconds / slice_s))
    slices: list[Slice] = []
    for n in range(rounds):
        order = subjects if n % 2 == 0 else tuple(reversed(subjects))
        slices += [Slice(subject, seconds / rounds) for subject in order]
    return slices


def at_rate(config: RunConfig, rate_hz: float, slice_s: float) -> tuple[str, ...]:
    """Settings by which a configuration runs in real time at a rate, for longer than a slice."""
    settings = ["device.pace=realtime", f"rate_hz={rate_hz:g}", "evaluate_every=0"]
    settings.append(f"episodes={50 + round(4 * slice_s / config.task.episode_s)}")
    lease_s = max(_LEASE_S, config.rig.lease_periods / config.rate_hz)
    settings.append(f"rig.lease_periods={min(255, max(2, round(lease_s * rate_hz)))}")
    period_us = round(1e6 / rate_hz)
    predicted = config.limits.predicted
    if predicted is not None and predicted.late_us > period_us:
        settings.append(f"limits.predicted.late_us={period_us}")
    return tuple(settings)
