"""Loads a run's configuration with the sections that ``sim`` and ``learner`` own, for the verbs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from learner.settings import LearnerSettings, rig_problems, settings_problems
from runtime.config.checks import MIN_RATE_HZ, Finding
from runtime.config.document import ConfigError, NodePath
from runtime.config.problem import path_steps
from runtime.config.resolve import capacity_of, load_run
from runtime.config.schema import RunConfig
from runtime.exit_codes import ExitCode
from sim.synthetic.model import model_problems
from sim.twin.options import TwinOptions, twin_problems
from tools.covered import uncovered

_SECTIONS: Final[dict[NodePath, type]] = {("device", "twin"): TwinOptions, ("learner",): LearnerSettings}


def load(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load and check everything; raises ConfigError with every problem."""
    return load_run(name, overrides, _SECTIONS, _findings)


def load_for_rig(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load what a rig is to run: all of `load`, and what only trials on plants can do is refused."""
    return load_run(name, overrides, _SECTIONS, _rig_findings)


def explain(error: ConfigError) -> int:
    """Print the problems of a configuration, one per line; returns the exit code that goes with them."""
    sys.stderr.write(f"{error}\n")
    return ExitCode.CONFIGURATION


def complain(verb: str, message: str, code: int = ExitCode.CONFIGURATION) -> int:
    """Print one line on what is wrong with a command (and stands in no file); returns the exit code."""
    sys.stderr.write(f"onrig {verb}: {message}\n")
    return code


def _findings(config: RunConfig) -> Iterator[Finding]:
    learner = msgspec.convert(config.learner, LearnerSettings)
    for at, message in settings_problems(learner, lockstep=config.lockstep):
        yield ("learner", *path_steps(at)), f"{message} at {'.'.join(('learner', at)) if at else 'learner'}"
    batch, capacity = learner.batch, _capacity(config)
    if 0 < capacity < batch:
        message = f"a memory of {capacity} experiences gives no batch of {batch} at learner.{learner.algorithm}.batch"
        yield ("learner", learner.algorithm, "batch"), message
    if config.device.twin is not None:
        twin = msgspec.convert(config.device.twin, TwinOptions)
        for at, message in twin_problems(twin, config.rig, config.task.start):
            yield ("device", "twin", *path_steps(at)), f"{message} at device.twin.{at}"
        if config.selection.synthetic is not None:
            for message in model_problems(config.rig, twin.plant):
                yield ("selection", "synthetic"), f"{message} at selection.synthetic"
        if config.rate_hz >= MIN_RATE_HZ and not twin.period_min_us <= config.period_us <= twin.period_max_us:
            yield (
                ("rate_hz",),
                f"{config.rate_hz:g} Hz is a period of {config.period_us} us, the twin does {twin.period_min_us} to "
                f"{twin.period_max_us} us at rate_hz",
            )
        if not twin.reset and config.lockstep:
            reason = "in lockstep the twin must be able to put itself back: leave it true, or take another device.pace"
            yield ("device", "twin", "reset"), f"{reason} at device.twin.reset"
        elif not twin.reset and config.task.reset is None:
            reason = "nothing brings this twin to the start of an episode: leave it true, or give the task a reset"
            yield ("device", "twin", "reset"), f"{reason} at device.twin.reset"
        if config.rig.lease_periods > twin.lease_max:
            yield ("rig", "lease_periods"), f"the twin's longest lease is {twin.lease_max} at rig.lease_periods"


def _rig_findings(config: RunConfig) -> Iterator[Finding]:
    yield from _findings(config)
    for at, message in rig_problems(msgspec.convert(config.learner, LearnerSettings)):
        yield ("learner", *path_steps(at)), f"{message} at learner.{at}"
    plants = config.limits.predicted
    if config.device.twin is not None and plants is not None:
        for message in uncovered(msgspec.convert(config.device.twin, TwinOptions).plant, plants):
            remedy = "state the plants it is one of, or null, at limits.predicted"
            yield ("limits", "predicted"), f"{message}: {remedy}"


def _capacity(config: RunConfig) -> int:
    """Capacity of the memory; 0 where that cannot be told, which is a finding of its own."""
    try:
        return capacity_of(config)
    except (ValueError, OverflowError):
        return 0
