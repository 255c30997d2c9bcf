"""What is wrong with the sections ``probation`` and ``staleness``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from onrig.runtime.config.problem import NodePath
from onrig.runtime.explore.settings import NoExploration
from onrig.runtime.run_config import RunConfig

_MAX_DURATION_S: Final = 86_400.0
_MIN_SILENCE_S: Final = 1.0
"""A learner that works gives a sign of life several times a second, one that waits every 0.2 s."""


def policy_rule_findings(config: RunConfig) -> Iterator[tuple[NodePath, str]]:
    """List (path, message) for each value that is out of range or of no effect."""
    for (section, name), message in (*_probation(config), *_staleness(config)):
        yield (section, name), f"{message} at {section}.{name}"


def _probation(config: RunConfig) -> Iterator[tuple[tuple[str, str], str]]:
    rules = config.probation
    if rules is None:
        return
    if not 0 < rules.duration_s <= _MAX_DURATION_S:
        message = f"expected more than 0, at most {_MAX_DURATION_S:g}, got {rules.duration_s:g}"
        yield ("probation", "duration_s"), f"{message} (null instead of the section turns it off)"
    if not 0 < rules.slow_share <= 1:
        yield ("probation", "slow_share"), f"expected more than 0, at most 1, got {rules.slow_share:g}"
    if rules.slow_ticks < 1:
        yield ("probation", "slow_ticks"), f"expected at least 1, got {rules.slow_ticks}"
    if not 0 <= rules.excess_fallback < math.inf:
        yield ("probation", "excess_fallback"), f"expected 0 or more, got {rules.excess_fallback:g}"


def _staleness(config: RunConfig) -> Iterator[tuple[tuple[str, str], str]]:
    rules = config.staleness
    if not _MIN_SILENCE_S <= rules.after_s < math.inf:
        yield ("staleness", "after_s"), f"expected at least {_MIN_SILENCE_S:g}, got {rules.after_s:g}"
    if not 0 <= rules.factor <= 1:
        yield ("staleness", "factor"), f"expected 0 to 1, got {rules.factor:g}"
    if rules.then == "lower" and isinstance(config.exploration, NoExploration):
        yield ("staleness", "then"), "there is no exploration to lower"
