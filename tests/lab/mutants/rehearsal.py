"""Dry run of a configuration: builds in this process everything that a run builds, and checks for non-finite values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from onrig.learner.settings import learner_settings
from onrig.runtime.control.episode import Fade
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.memory.strategy import build_keeper, parse_strategy, required_bytes
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.replay.learners.admission_terms import admission_limits, required_contract, standard_probes
from onrig.runtime.run_config import RunConfig, capacity_of, layout_of, record_layout
from onrig.runtime.safety.shield import Shield
from onrig.runtime.scoring import normalized
from onrig.runtime.shm.frame_log import frame_log_bytes
from onrig.runtime.starts import middle_start
from onrig.runtime.task import compile_reward, compile_termination
from onrig.sim.plants.integrate import step
from onrig.sim.synthetic.model import PlantModel
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions

_MAX_SLOTS: Final = 1000
"""Number of slots of the trial memory; the size of the full one is computed."""
_PERIODS: Final = 50
_MAX_STEPS: Final = 2000
"""Maximum number of integration steps of the plant."""
_SINGLE: Final = float(np.finfo(np.float32).max)
"""Records and memories store single precision."""


def rehearse(config: RunConfig) -> str | None:
    """Return the first non-finite value in all that is built, or None.  Raises the same errors as a run."""
    for name, value in _built(config):
        if not _is_sound(value):
            return f"{name} is {value}"
    return None


def _built(config: RunConfig) -> Iterator[tuple[str, float]]:
    yield from _control(config)
    yield from _replay(config)
    if config.device.twin is not None:
        yield from _twin(config)


def _control(config: RunConfig) -> Iterator[tuple[str, float]]:
    rig, task, period_s = config.rig, config.task, config.period_us * 1e-6
    shield = Shield(config.limits, rig, period_s)
    reward, terminated = compile_reward(task, rig), compile_termination(task, rig)
    lows, highs = [o.low for o in rig.signals], [o.high for o in rig.signals]
    middle = [0.5 * (low + high) for low, high in zip(lows, highs, strict=True)]
    safe = tuple(a.safe for a in rig.actuators)
    actions = [tuple(a.low for a in rig.actuators), tuple(a.high for a in rig.actuators), safe]
    for observation in (lows, middle, highs):
        terminated(observation)
        for action in actions:
            shield.reset()
            verdict = shield.decide(observation, action, safe)
            yield "the shield's margin", verdict.margin
            yield "the shield's amount", verdict.amount
            yield from (("the shield's command", value) for value in verdict.action)
            r = reward(observation, action)
            yield "a reward", r
            score = normalized(task, r, 1)
            if score is not None:
                yield "a normalised reward", score
    yield from (("a number of the shield", value) for value in _numbers(shield))
    if task.reset is not None:
        driver = task.reset.driver(middle_start(task.all_starts), rig)
        driver.begin(2)
        yield from (("a reset's command", value) for value in driver.drive(middle, 0.0))
    explorer = Explorer(config)
    yield from (("a number of the exploration", value) for value in _numbers(explorer))
    Fade(config.supervision.fade_s, config.rate_hz, safe)
    probation_limits(config)
    yield "the period on the wall clock", float(config.wall_period_ns)
    yield "the tape's size", float(frame_log_bytes(config.rate_hz))
    record_layout(config)


def _replay(config: RunConfig) -> Iterator[tuple[str, float]]:
    selection = config.selection
    strategy, capacity = parse_strategy(selection.strategy), capacity_of(config)
    is_thinned = selection.write_probability < 1
    yield "the memory's size", required_bytes(strategy, capacity, layout_of(config), is_thinned=is_thinned)
    keeper = build_keeper(
        strategy, min(capacity, _MAX_SLOTS), np.random.default_rng(0), write_probability=selection.write_probability
    )
    yield from (("a number of the keeper", value) for value in _numbers(keeper))
    wanted = required_contract(config.rig, config.rate_hz, stochastic=config.stochastic, signals=config.signals)
    yield from (("a probe", float(value)) for value in standard_probes(wanted, config.seed).ravel())
    yield "the budget of a policy", float(admission_limits(config).latency_budget_us)
    learner_settings(config.learner)


def _twin(config: RunConfig) -> Iterator[tuple[str, float]]:
    options = msgspec.convert(config.device.twin, TwinOptions)
    rig, plant, period_s = config.rig, options.plant, config.period_us * 1e-6
    TwinDevice(rig, options, config.task.all_starts, time_scale=0.0)
    for action in (tuple(a.low for a in rig.actuators), tuple(a.high for a in rig.actuators)):
        state = tuple(middle_start(config.task.all_starts)[name] for name in plant.state_names)
        for _ in range(min(_PERIODS, max(1, _MAX_STEPS // options.substeps))):
            state = step(plant, state, action, period_s, options.substeps)
        yield from (("the plant's state", value) for value in state)
    if config.selection.synthetic is not None:
        model = PlantModel(rig, config.task, plant, period_s, options.substeps)
        outcome = model(np.zeros((1, len(rig.signals)), np.float32), np.zeros((1, len(rig.actuators)), np.float32))
        yield from (("a synthetic state", float(value)) for value in outcome.next_observation.ravel())


def _numbers(built: object, seen: set[int] | None = None) -> Iterator[float]:
    """Yield every float within an object, recursively, except infinities, which mean "no bound"."""
    seen = set() if seen is None else seen
    if isinstance(built, float):
        if not math.isinf(built):
            yield built
        return
    if id(built) in seen or isinstance(built, str | bytes | int | type):
        return
    seen.add(id(built))
    if isinstance(built, np.ndarray):
        if built.dtype.kind == "f":
            yield from (math.nan for _ in range(int(np.isnan(built).any())))
    elif isinstance(built, dict):
        for value in built.values():
            yield from _numbers(value, seen)
    elif hasattr(built, "typecode"):  # array.array
        yield from (math.nan for _ in range(int(any(value != value for value in built))))  # type: ignore[attr-defined]
    elif isinstance(built, list | tuple):
        for value in built:
            yield from _numbers(value, seen)
    elif type(built).__module__.startswith("onrig.runtime."):
        names = [*getattr(built, "__dict__", ()), *getattr(type(built), "__slots__", ())]
        for name in names:
            yield from _numbers(getattr(built, name, None), seen)


def _is_sound(value: float) -> bool:
    return -_SINGLE <= value <= _SINGLE
