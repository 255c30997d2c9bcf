"""Loads a run's configuration with the sections that ``sim`` and ``learner`` own, for the verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from onrig.learner.settings import LearnerSettings
from onrig.runtime.config.problem import ConfigError, NodePath, Problem
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_checks import guard_warnings
from onrig.runtime.run_config import Port, RunConfig
from onrig.runtime.run_loading import Rules, load_run
from onrig.sim.twin.options import TwinOptions
from onrig.tools.config_findings import learner_findings, plant_findings, rig_findings

_SECTIONS: Final[dict[NodePath, type]] = {("device", "twin"): TwinOptions, ("learner",): LearnerSettings}


def load(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load and check everything that plants and trials need; raises ConfigError with every problem."""
    return load_run(name, overrides, _SECTIONS, Rules(refuse=plant_findings))


def load_for_rig(
    name: str,
    overrides: Sequence[str] = (),
    *,
    port: str | None = None,
    heed: Callable[[Problem], None] = lambda problem: None,
) -> RunConfig:
    """Load what a rig is to run: all of `load`, and whatever `onrig run` would refuse is refused.

    ``port``: of the device that takes the place of the configuration's own; ``heed`` takes the warnings about a sound
    configuration.  Raises ConfigError.
    """
    rules = Rules(rig_findings, guard_warnings, heed, lambda config: config if port is None else on_port(config, port))
    return load_run(name, overrides, _SECTIONS, rules)


def load_for_learner(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load what a learner that runs elsewhere learns by: its section counts whatever ``local_learner`` says."""
    return load_run(name, overrides, _SECTIONS, Rules(refuse=learner_findings))


def on_port(config: RunConfig, path: str) -> RunConfig:
    """The configuration with the device behind a port instead of a twin of our own; its pace stays."""
    port = config.device.port
    port = Port(path=path) if port is None else msgspec.structs.replace(port, path=path)
    return msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, port=port, twin=None))


def tell(problem: Problem) -> None:
    """Print a warning about a configuration where its problems are printed."""
    sys.stderr.write(f"{problem}\n")


def explain(error: ConfigError) -> int:
    """Print the problems of a configuration, one per line; returns the exit code that goes with them."""
    sys.stderr.write(f"{error}\n")
    return ExitCode.CONFIGURATION
