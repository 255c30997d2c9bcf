"""Checks of a configuration's twin: mismatches with the rig, the plant, and the plants of the shield's prediction."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from onrig.runtime.config.problem import Finding, NodePath, collect_findings, parse_path
from onrig.runtime.run_advice import unobserved_delay
from onrig.runtime.run_checks import MIN_RATE_HZ, reset_findings
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import PlantBox
from onrig.runtime.safety.sampled import SampledBox
from onrig.runtime.starts import middle_start, start_list
from onrig.sim.barrier.plants import uncertainty_deviations
from onrig.sim.plants.registry import uncovered_deviations
from onrig.sim.plants.trial import name_of, trial_problems
from onrig.sim.synthetic.model import model_problems
from onrig.sim.twin.options import (
    TwinOptions,
    exact_problems,
    twin_advice,
    twin_problems,
    uncovered_latency,
    uncovered_zeros,
)


def twin_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems with a twin, alone and in combination with other sections."""
    if config.device.twin is not None:
        twin = msgspec.convert(config.device.twin, TwinOptions)
        at_plant: NodePath = ("device", "twin", "plant")
        yield from collect_findings(lambda: _plant_findings(config, twin), name_of(twin.plant), at_plant)
        if config.selection.synthetic is not None:
            for message in (*model_problems(config.rig, twin.plant), *exact_problems(twin)):
                yield ("selection", "synthetic"), f"{message} at selection.synthetic"
        if config.rate_hz >= MIN_RATE_HZ and not twin.period_min_us <= config.period_us <= twin.period_max_us:
            yield (
                ("rate_hz",),
                f"{config.rate_hz:g} Hz is a period of {config.period_us} us, but the twin supports "
                f"{twin.period_min_us} to "
                f"{twin.period_max_us} us at rate_hz",
            )
        if not twin.reset and config.lockstep:
            reason = "in lockstep the twin must be able to reset itself: set it to true, or choose another device.pace"
            yield ("device", "twin", "reset"), f"{reason} at device.twin.reset"
        elif not twin.reset and config.task.reset is None:
            reason = "nothing returns this twin to the start of an episode: set it to true, or add a reset to the task"
            yield ("device", "twin", "reset"), f"{reason} at device.twin.reset"
        elif not twin.reset:
            yield from reset_findings(config)
        if config.rig.lease_periods > twin.lease_max:
            yield ("rig", "lease_periods"), f"the twin's longest lease is {twin.lease_max} at rig.lease_periods"


def _plant_findings(config: RunConfig, twin: TwinOptions) -> Iterator[Finding]:
    """Yield the mismatches between the twin and the rig, and the problems that a trial of the plant reveals."""
    rows = start_list(config.task.all_starts)
    problems = [problem for row in rows for problem in twin_problems(twin, config.rig, row)]
    if config.cameras and twin.plant.strokes((0.0,) * len(twin.plant.state_names)) is None:
        message = "no camera can see this plant, which has no strokes: remove the images from task.inputs"
        problems.append(("plant.kind", message))
    for path, message in dict.fromkeys(problems):
        yield ("device", "twin", *parse_path(path)), f"{message} at device.twin.{path}"
    if not problems and config.rate_hz >= MIN_RATE_HZ:
        start = middle_start(config.task.all_starts)
        problems_of_trial = trial_problems(twin.plant, config.rig, start, config.period_us * 1e-6, twin.substeps)
        for message in problems_of_trial:
            yield ("device", "twin", "plant"), f"{message} at device.twin.plant"


def coverage_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the ways in which the plants of the shield's prediction do not cover the configured twin."""
    plants = config.limits.predicted
    if config.device.twin is not None and plants is not None:
        yield from collect_findings(
            lambda: uncovered_findings(msgspec.convert(config.device.twin, TwinOptions), config, plants),
            "the twin's plant or its box",
            ("limits", "predicted"),
        )


def uncovered_findings(twin: TwinOptions, config: RunConfig, plants: PlantBox) -> Iterator[Finding]:
    """Yield the ways in which the plants of the shield's prediction do not cover a given twin."""
    for message in (*uncovered_zeros(twin, config.rig, plants), *uncovered_latency(twin, plants)):
        yield ("limits", "predicted"), f"{message} at limits.predicted"
    if isinstance(plants, SampledBox):
        for message in uncertainty_deviations(twin.plant, config, plants):
            yield ("limits", "predicted", "uncertainty"), f"{message} at limits.predicted.uncertainty"
        return
    for message in uncovered_deviations(twin.plant, plants, config.rig):
        remedy = "describe this plant there (as `onrig identify` does), or set null, at limits.predicted"
        yield ("limits", "predicted"), f"{message}: {remedy}"


def twin_warnings(config: RunConfig) -> Iterator[Finding]:
    """Yield warnings about twin settings that are likely mistakes, and about a delay that policies cannot observe."""
    if config.device.twin is None:
        return
    twin = msgspec.convert(config.device.twin, TwinOptions)
    ranges = config.limits.context(config.rig, config.period_us * 1e-6).ranges
    max_command = max(max(map(abs, bounds)) for bounds in ranges.values())
    for setting, message in twin_advice(twin, max_command, config.period_us):
        yield ("device", "twin", *parse_path(setting)), f"{message}, at device.twin.{setting}"
    delay_s = min(twin.latency_us, config.period_us) * 1e-6 + (twin.plant.delay_s or 0.0)
    if delay_problem := unobserved_delay(config, delay_s):
        setting = "latency_us" if twin.latency_us else "plant.delay_s"
        yield ("device", "twin", *parse_path(setting)), f"{delay_problem}, at device.twin.{setting}"
