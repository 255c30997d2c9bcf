"""What is wrong with a configuration whose types are right: everything that two values together decide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onrig.hw.rig import rig_problems
from onrig.runtime.config.exploration_checks import exploration_findings
from onrig.runtime.config.policy_rule_checks import policy_rule_findings
from onrig.runtime.config.problem import Finding, path_steps
from onrig.runtime.config.resolve import is_file
from onrig.runtime.link.settings import link_findings
from onrig.runtime.log.settings import log_findings
from onrig.runtime.replay.memory.strategy import Strategy, capacity_within, parse_strategy
from onrig.runtime.replay.settings import Weighted
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.safety.limits import limit_findings
from onrig.runtime.task import episode_steps, task_problems

MIN_RATE_HZ: Final = 0.1
MAX_RATE_HZ: Final = 10_000.0
_MAX_NOISE: Final = 10_000_000
"""Steps of one episode times actuators: its noise is drawn at once."""
MIN_CHECKPOINT_S: Final = 0.1
"""Shorter ones would do little else than wait for the disk."""
MAX_CHECKPOINT_S: Final = 3600.0
_MAX_FADE_S: Final = 10.0
MOST_CAPACITY: Final = 0xFFFFFFFF
"""Slots are numbered in 32 bits (``onrig.runtime.replay.memory.storage``)."""


def findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for each value that does not fit the others."""
    for at, message in rig_problems(config.rig):
        yield ("rig", *path_steps(at)), f"{message} at {'.'.join(('rig', at)) if at else 'rig'}"
    for at, message in task_problems(config.task, config.rig):
        yield ("task", *path_steps(at)), f"{message} at task.{at}"
    if not (math.isfinite(config.rate_hz) and MIN_RATE_HZ <= config.rate_hz <= MAX_RATE_HZ):
        yield ("rate_hz",), f"expected {MIN_RATE_HZ:g} to {MAX_RATE_HZ:g}, got {config.rate_hz:g} at rate_hz"
    elif config.task.episode_s > 0 and not _steps(config):
        yield (
            ("task", "episode_s"),
            f"{config.task.episode_s:g} s at {config.rate_hz:g} Hz make no episode of 1 to {_most_steps(config)} steps "
            "at task.episode_s",
        )
    if config.episodes < 1:
        yield ("episodes",), f"expected at least 1, got {config.episodes} at episodes"
    if not 0 <= config.seed < 1 << 63:
        yield ("seed",), f"expected 0 to 2^63 - 1, got {config.seed} at seed"
    if config.evaluate_every < 0:
        yield ("evaluate_every",), f"expected 0 (never) or more, got {config.evaluate_every} at evaluate_every"
    if config.barrier_timeout_s <= 0:
        yield ("barrier_timeout_s",), "expected a positive number at barrier_timeout_s"
    if not MIN_CHECKPOINT_S <= config.checkpoint_s <= MAX_CHECKPOINT_S:
        yield (
            ("checkpoint_s",),
            f"expected {MIN_CHECKPOINT_S:g} to {MAX_CHECKPOINT_S:g}, got {config.checkpoint_s:g} at checkpoint_s",
        )
    if config.policy is not None and not is_file(Path(config.policy)):
        yield ("policy",), f"there is no file '{config.policy}' at policy"
    yield from _device_findings(config)
    yield from _supervision_findings(config)
    yield from link_findings(config.link)
    yield from log_findings(config.log)
    yield from policy_rule_findings(config)
    yield from _selection_findings(config)
    yield from exploration_findings(config)
    yield from limit_findings(config)


def _steps(config: RunConfig) -> int:
    """Transitions in an episode; 0 where rate and length give no sensible number."""
    product = config.task.episode_s * config.rate_hz
    return episode_steps(config.task, config.rate_hz) if 0 < product <= _most_steps(config) else 0


def _most_steps(config: RunConfig) -> int:
    return _MAX_NOISE // max(1, len(config.rig.actuators))


def _device_findings(config: RunConfig) -> Iterator[Finding]:
    device = config.device
    if (device.twin is None) == (device.port is None):
        yield ("device",), "expected exactly one of 'twin' and 'port' at device"
    if isinstance(device.pace, Scaled) and not 0.01 <= device.pace.scaled <= 1000:
        yield ("device", "pace", "scaled"), "expected 0.01 to 1000 at device.pace.scaled"
    if isinstance(config.realtime.cpu, int) and config.realtime.cpu < 0:
        yield ("realtime", "cpu"), "expected the number of a CPU, 'auto' or null at realtime.cpu"
    if not 0 <= config.realtime.priority <= 98:
        yield ("realtime", "priority"), "expected 0 (ordinary scheduling) to 98 at realtime.priority"


def _supervision_findings(config: RunConfig) -> Iterator[Finding]:
    fade_s, wait_s = config.supervision.fade_s, config.supervision.resume_timeout_s
    if not 0 <= fade_s <= _MAX_FADE_S:
        yield ("supervision", "fade_s"), f"expected 0 to {_MAX_FADE_S:g}, got {fade_s:g} at supervision.fade_s"
    if not (0 <= wait_s < math.inf):
        yield (
            ("supervision", "resume_timeout_s"),
            f"expected 0 (do not wait) or more, got {wait_s:g} at supervision.resume_timeout_s",
        )


def _selection_findings(config: RunConfig) -> Iterator[Finding]:
    yield from _synthetic_findings(config)
    selection = config.selection
    intervened = selection.intervened
    if isinstance(intervened, Weighted) and not 0 <= intervened.weight <= 1:
        at = "selection.intervened.weight"
        yield path_steps(at), f"expected 0 to 1, got {intervened.weight:g} at {at}"
    if not 0 < selection.write_probability <= 1:
        yield (
            ("selection", "write_probability"),
            f"expected more than 0, at most 1, got {selection.write_probability:g} at selection.write_probability",
        )
    capacity, budget = selection.capacity, selection.capacity_bytes
    if capacity is not None and budget is not None:
        yield ("selection", "capacity_bytes"), "expected one of 'capacity' and 'capacity_bytes' at selection"
        return
    if capacity is not None and capacity < 1:
        yield ("selection", "capacity"), f"expected at least 1, got {capacity} at selection.capacity"
        return
    try:
        strategy = parse_strategy(selection.strategy)
    except ValueError as error:
        yield ("selection", "strategy"), f"{error} at selection.strategy"
        return
    needed = config.episodes * _steps(config)
    if budget is not None:
        yield from _budget_findings(config, strategy, budget, needed)
        return
    if capacity is not None and capacity > MOST_CAPACITY:
        yield ("selection", "capacity"), f"expected at most {MOST_CAPACITY}, got {capacity} at selection.capacity"
    if strategy.retention == "FULL" and capacity is None and needed > MOST_CAPACITY:
        yield (
            ("selection", "strategy"),
            f"FULL keeps all of the run's {needed} experiences, which are more than {MOST_CAPACITY} "
            "at selection.strategy",
        )
    if strategy.retention == "FULL" and capacity is not None and capacity < needed:
        yield (
            ("selection", "capacity"),
            f"FULL keeps all of the run's {needed} experiences, {capacity} are too few at selection.capacity",
        )


def _budget_findings(config: RunConfig, strategy: Strategy, budget: int, needed: int) -> Iterator[Finding]:
    at = ("selection", "capacity_bytes")
    try:
        thinned = config.selection.write_probability < 1
        fit = capacity_within(strategy, budget, len(config.rig.signals), len(config.rig.actuators), thinned=thinned)
    except ValueError as error:
        yield at, f"{error} at selection.capacity_bytes"
        return
    if strategy.retention == "FULL" and fit < needed:
        yield (
            at,
            f"FULL keeps all of the run's {needed} experiences, {budget} bytes hold only {fit} "
            "at selection.capacity_bytes",
        )
    elif fit > MOST_CAPACITY and strategy.retention != "FULL":
        message = f"{budget} bytes hold {fit} experiences, there may be {MOST_CAPACITY} at selection.capacity_bytes"
        yield at, message


def _synthetic_findings(config: RunConfig) -> Iterator[Finding]:
    synthetic = config.selection.synthetic
    if synthetic is None:
        return
    if config.device.port is not None:
        yield (
            ("selection", "synthetic"),
            "synthetic experiences are computed with a twin's plant, the device here is on a port "
            "at selection.synthetic",
        )
    for name in ("states", "actions", "refresh"):
        value = getattr(synthetic, name)
        if not 0 <= value <= 1:
            yield ("selection", "synthetic", name), f"expected 0 to 1, got {value:g} at selection.synthetic.{name}"
    if synthetic.states + synthetic.actions > 1:
        yield (
            ("selection", "synthetic"),
            f"expected states and actions of at most 1 together, got {synthetic.states:g} and {synthetic.actions:g} "
            "at selection.synthetic",
        )


def guard_findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for guards that a rig on a port must not be without."""
    limits = config.limits
    unguarded = limits.unguarded is True
    if unguarded and limits.envelope:
        yield ("limits", "unguarded"), "there is an envelope: leave this out at limits.unguarded"
    if _is_matter(config) and not limits.envelope and not unguarded:
        yield (
            ("limits", "envelope"),
            f"{_subject(config)}: give an observation its bounds and a fallback that keeps them, or "
            "accept that only the device's own limits guard it, with limits.unguarded: true, at limits.envelope",
        )


def guard_warnings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for guards that are missing where that is allowed; the configuration is sound."""
    if not config.limits.envelope:
        after = (
            "" if _is_matter(config) else "; a rig on a port is refused without, unless it has limits.unguarded: true"
        )
        yield ("limits", "envelope"), f"{_subject(config)}{after}, at limits.envelope"
    if _is_matter(config) and config.task.reset is None:
        yield (
            ("task", "reset"),
            "nothing here brings the rig back to its start: only a device that does so by itself (RESET in its hello) "
            "will be accepted, at task.reset",
        )


def _is_matter(config: RunConfig) -> bool:
    """Whether a port may lead to hardware: what is scaled or in lockstep is a twin behind it."""
    return config.device.port is not None and config.device.pace == "realtime"


def _subject(config: RunConfig) -> str:
    port = config.device.port
    what = "this twin" if port is None else f"the rig on {port.path}"
    ends = "" if config.task.terminate else ", nor does its episode end early"
    return f"{what} has no envelope: whatever its state does, no fallback acts{ends}"
