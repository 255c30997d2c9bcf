"""What multiplies the scheduled amplitude: factors in [0, 1], each a pure function."""

from __future__ import annotations

from typing import NamedTuple

from onrig.runtime.explore.settings import BackOff, NearEnvelope


class Retreat(NamedTuple):
    """How far the amplitude has been taken back, and how many clean episodes in a row speak for a return."""

    level: int = 0
    clean: int = 0


def attenuation(near: NearEnvelope, margin: float) -> float:
    """Return the factor at the shield's ``margin``: 1 from ``near.start`` on, ``near.floor`` at 0 and for NaN."""
    if margin >= near.start:
        return 1.0
    if not margin > 0.0:
        return near.floor
    return near.floor + (1.0 - near.floor) * margin / near.start


def retreat_factor(back_off: BackOff, retreat: Retreat) -> float:
    """Return the factor that belongs to a retreat."""
    return max(back_off.factor**retreat.level, back_off.least) if retreat.level else 1.0


def after_trip(back_off: BackOff, retreat: Retreat) -> Retreat:
    """One level further, and no further than where ``least`` is reached: the way back is as long as the way there."""
    at_least = back_off.factor**retreat.level <= back_off.least
    return Retreat(retreat.level + (not at_least), 0)


def after_clean_episode(back_off: BackOff, retreat: Retreat) -> Retreat:
    """One level back when this was the last of ``clean_episodes`` in a row."""
    if not retreat.level:
        return retreat
    if retreat.clean + 1 < back_off.clean_episodes:
        return Retreat(retreat.level, retreat.clean + 1)
    return Retreat(retreat.level - 1, 0)


def room(used: float, limit: float, warn: float) -> float:
    """Return the factor of a budget: 1 while at most ``warn`` of it is used, linear to 0 where it is spent."""
    if not used < limit:  # NaN is spent
        return 0.0
    if used <= warn * limit:
        return 1.0
    return (limit - used) / (limit - warn * limit)
