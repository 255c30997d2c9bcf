"""Configuration of a pretraining: a rig's run in lockstep, on a twin that draws a new plant in each episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from onrig.runtime.exit_codes import Failure
from onrig.runtime.explore.settings import Budgets, Points, ScheduledNoise
from onrig.runtime.link.endpoint import Link
from onrig.runtime.process_settings import Log
from onrig.runtime.run_config import Device, RunConfig
from onrig.runtime.task import episode_steps
from onrig.sim.identification.result import Result, twin_samples
from onrig.sim.twin.options import TwinOptions, sampled_options
from onrig.tools.pretrained import N_HELD_OUT_PLANTS
from onrig.tools.twin_findings import uncovered_findings

_PIECE_STEPS: Final = 5000
"""Approximate number of steps in a piece, large compared with the start-up time of the processes (a few
hundred steps).
"""
_MIN_COVERED_SAMPLES: Final = 100
"""Minimum number of samples within the shield's box."""

Columns = dict[str, tuple[float, ...]]


class DrawnSamples(NamedTuple):
    """Samples for training and for evaluation, by parameter (as in ``device.twin.samples``)."""

    training_samples: Columns
    held_out: Columns
    n_uncovered: int
    """Number of dropped samples that the shield does not cover."""


def split_samples(result: Result, config: RunConfig, file: str) -> DrawnSamples:
    """Split the samples of an identification into training and held-out ones. Raises Failure if they are unusable."""
    if len(result.samples) < _MIN_COVERED_SAMPLES:
        remedy = "identify the rig again (onrig identify)"
        raise Failure(
            f"{file} contains {len(result.samples)} samples, but at least {_MIN_COVERED_SAMPLES} are needed: {remedy}"
        )
    columns = twin_samples(result)
    options = msgspec.convert(result.twin, TwinOptions)
    identified_names = [p.name for p in result.parameters if p.name in options.plant.identifiable]
    constant_names = [name for name in identified_names if min(columns[name]) == max(columns[name])]
    if lumped_names := [name for name in constant_names if name in options.plant.lumped] or (
        constant_names if constant_names == identified_names else []
    ):
        reason = f"{', '.join(lumped_names)} was not identified: all samples are equal"
        raise Failure(f"{file}: {reason}: identify again with more motion (--effort)")
    twin_with_samples = msgspec.structs.replace(options, samples=columns)
    rows = [i for i in range(len(result.samples)) if _is_covered(sampled_options(twin_with_samples, i), config)]
    if len(rows) < _MIN_COVERED_SAMPLES:
        n_samples = len(result.samples)
        reason = (
            f"the shield covers {len(rows)} of the {n_samples} plants, but at least {_MIN_COVERED_SAMPLES} are needed"
        )
        raise Failure(f"{file}: {reason}: identify again with more motion, or widen limits.predicted")
    held_out, training_samples = (
        {name: tuple(column[i] for i in chunk) for name, column in columns.items()}
        for chunk in (rows[:N_HELD_OUT_PLANTS], rows[N_HELD_OUT_PLANTS:])
    )
    return DrawnSamples(training_samples, held_out, len(result.samples) - len(rows))


def _is_covered(options: TwinOptions, config: RunConfig) -> bool:
    box = config.limits.predicted
    return box is None or not any(uncovered_findings(options, config, box))


def pretraining_config(config: RunConfig, result: Result, samples: Columns, episodes: int) -> RunConfig:
    """Return the configuration of the first piece, with the limits, task, noise and learner of the rig.  Budgets (which
    limit a rig's wear), connections and log are removed; evaluations take place between pieces.
    """
    exploration = msgspec.structs.replace(config.exploration, budgets=Budgets())
    return msgspec.structs.replace(
        config,
        device=Device(twin=twin_of(config, result, samples), pace="lockstep"),
        episodes=episodes,
        evaluate_every=0,
        exploration=exploration,
        local_learner=True,
        link=Link(),
        log=Log(mcap=False),
        checkpoint_s=3600.0,
    )


def twin_of(config: RunConfig, result: Result, samples: Mapping[str, Any]) -> dict[str, object]:
    """Return the options of a twin that draws its plant from the samples."""
    section = {**(config.device.twin or {}), **result.twin, "samples": samples, "reset": True}
    twin: dict[str, object] = msgspec.to_builtins(msgspec.convert(section, TwinOptions))
    # A round trip through JSON turns tuples into lists, as in a configuration that was loaded from a file.
    return msgspec.json.decode(msgspec.json.encode(twin), type=dict[str, object])


def exploration_end_episode(config: RunConfig) -> float:
    """Return the training episode from which on the exploration's amplitude is nearly constant, if all episodes have
    full length.
    """
    exploration = config.exploration
    if not isinstance(exploration, ScheduledNoise):
        return 0.0
    amplitude = exploration.amplitude
    schedules = list(amplitude.values()) if isinstance(amplitude, dict) else [amplitude]
    steps = episode_steps(config.task, config.rate_hz)
    unit_episodes = {"episodes": 1.0, "steps": 1.0 / steps, "seconds": config.rate_hz / steps}[exploration.over]
    return unit_episodes * max(map(_last_change, schedules))


def _last_change(points: Points) -> float:
    """Return the abscissa from which on the amplitude differs from its last value by at most a tenth of its maximum."""
    tolerance = 0.1 * max(amplitude for _, amplitude in points)
    last_amplitude = points[-1][1]
    different = [k for k, (_, amplitude) in enumerate(points) if abs(amplitude - last_amplitude) > tolerance]
    return points[different[-1] + 1][0] if different else points[0][0]


def piece_episodes(config: RunConfig) -> int:
    """Return the number of training episodes between evaluations."""
    return max(1, round(_PIECE_STEPS / episode_steps(config.task, config.rate_hz)))
