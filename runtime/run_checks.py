"""Cross checks of a configuration: constraints between individually valid sections."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Final

from msgspec import UNSET

from onrig.hw.rig import cameras_of, rig_problems
from onrig.runtime.config.problem import Finding, describe_unknown_name, parse_path
from onrig.runtime.explore.checks import exploration_findings
from onrig.runtime.explore.schedule import depends_on_episode_only, min_amplitude
from onrig.runtime.explore.settings import EpsilonGreedy, NoExploration, OwnNoise, ParameterNoise
from onrig.runtime.lease import MAX_LEASE_S, describe_lease, driver_findings
from onrig.runtime.link.endpoint import link_findings
from onrig.runtime.memory.settings import selection_findings
from onrig.runtime.reset.schema import Draw
from onrig.runtime.rewards import uses_previous_action
from onrig.runtime.run_advice import probable_mistakes
from onrig.runtime.run_config import RunConfig, layout_of
from onrig.runtime.safety.limits import compile_prediction, limit_findings
from onrig.runtime.safety.plant_box import covers_all
from onrig.runtime.starts import are_starts_random, extreme_starts
from onrig.runtime.task import episode_steps
from onrig.runtime.task_checks import task_problems

Corners = Sequence[tuple[str, Mapping[str, float]]]
"""Start states at the ends of their intervals, each with its path in the task."""
MIN_RATE_HZ: Final = 0.1
MAX_RATE_HZ: Final = 10_000.0
_SAME_POSITION_TOLERANCE_M: Final = 1e-6
_MAX_NOISE_VALUES: Final = 10_000_000
"""Limit on steps per episode times actuators, because an episode's noise is held in memory."""


def findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for each conflicting value."""
    for location, message in rig_problems(config.rig):
        yield ("rig", *parse_path(location)), f"{message} at {'.'.join(('rig', location)) if location else 'rig'}"
    for location, message in task_problems(config.task, config.rig):
        yield ("task", *parse_path(location)), f"{message} at task.{location}"
    steps = _steps(config)
    if not MIN_RATE_HZ <= config.rate_hz <= MAX_RATE_HZ:
        yield ("rate_hz",), f"expected {MIN_RATE_HZ:g} to {MAX_RATE_HZ:g}, got {config.rate_hz:g} at rate_hz"
    elif not steps:
        yield (
            ("task", "episode_s"),
            f"expected an episode of 1 to {_max_steps(config)} steps, got {config.task.episode_s:g} s "
            f"at {config.rate_hz:g} Hz at task.episode_s",
        )
    device = config.device
    if [device.twin is None, device.port is None, device.transport is UNSET, device.driver is UNSET].count(False) != 1:
        yield ("device",), "expected exactly one of 'twin', 'port', 'transport' and 'driver' at device"
    yield from driver_findings(config)
    yield from _camera_findings(config)
    yield from _trainer_findings(config)
    if config.staleness.then == "lower" and isinstance(config.exploration, NoExploration):
        yield ("staleness", "then"), "'lower' needs an exploration process at staleness.then"
    yield from link_findings(config.link)
    yield from selection_findings(config.selection, layout_of(config), run_length=config.episodes * steps)
    yield from exploration_findings(config.exploration, config.rig, steps=steps, rate_hz=config.rate_hz)
    yield from _synthetic_findings(config)
    if getattr(config.exploration, "near_envelope", None) is not None and not config.limits.envelope:
        location = "exploration.near_envelope"
        yield parse_path(location), f"limits.envelope is required as well, at {location}"
    if config.rate_hz >= MIN_RATE_HZ and (lease_s := config.rig.lease_periods / config.rate_hz) > MAX_LEASE_S:
        yield (
            ("rig", "lease_periods"),
            f"the device would hold the last command of a dead host for {lease_s:g} s; the maximum is "
            f"{MAX_LEASE_S:g} s, at rig.lease_periods",
        )
    limit_problems = [*limit_findings(config)]
    yield from limit_problems or _start_findings(config)


def _camera_findings(config: RunConfig) -> Iterator[Finding]:
    """Report cameras without a source of images, sources without a camera, and sources configured alongside a twin."""
    device, path = config.device, ("device", "cameras")
    sources = {} if device.cameras is UNSET else device.cameras
    if device.twin is not None:
        if device.cameras is not UNSET:
            yield path, "the twin renders the images of its cameras: remove this, or the twin, at device.cameras"
        return
    names = [camera.name for camera in cameras_of(config.rig)]
    unknown_names = [name for name in sources if name not in names]
    for name in unknown_names:
        message = describe_unknown_name(f"rig '{config.rig.name}'", "camera", name, names)
        yield (*path, name), f"{message} at device.cameras"
    for camera in config.cameras:
        if camera.name not in sources and not unknown_names:
            message = f"the task uses camera '{camera.name}': add its source, such as"
            yield path, f"{message} {{{camera.name}: {{kind: opencv, source: 0}}}}, at device.cameras"
    if sources and device.pace != "realtime":
        yield ("device", "pace"), "a camera sends images in real time: expected realtime, at device.pace"


def _trainer_findings(config: RunConfig) -> Iterator[Finding]:
    """Report settings that conflict with an acting trainer, which explores, learns and evaluates on its own."""
    if config.actor is UNSET:
        return
    required_values = {
        "exploration": ("{process: none}", isinstance(config.exploration, NoExploration)),
        "local_learner": ("false", not config.local_learner),
        "evaluate_every": ("0", config.evaluate_every == 0),
        "policy": ("null", config.policy is None),
    }
    for name, (value, is_met) in required_values.items():
        if not is_met:
            yield (name,), f"a trainer acts: set {value} at {name}"


def _start_findings(config: RunConfig) -> Iterator[Finding]:
    """Report starts and resets that the limits do not allow; the limits must be valid."""
    limits, reset = config.limits, config.task.reset
    corners = [*extreme_starts(config.task.all_starts)]
    yield from dict.fromkeys(_envelope_findings(config, corners))
    yield from dict.fromkeys(_moving_start_findings(config, corners))
    magnets = getattr(limits.predicted, "magnets", {})
    for name, position in reset.coils.items() if isinstance(reset, Draw) else ():
        if name in magnets and not isclose(position, magnets[name], abs_tol=_SAME_POSITION_TOLERANCE_M):
            message = f"{name} is at {magnets[name]:g} m in limits.predicted, but at {position:g} m here"
            yield ("task", "reset", "coils", name), f"{message}, at task.reset.coils.{name}"


def _envelope_findings(config: RunConfig, corners: Corners) -> Iterator[Finding]:
    reset = config.task.reset
    for (path, start), (name, e) in itertools.product(corners, config.limits.envelope.items()):
        position = start.get(name)
        reach = 0.0 if reset is None else reset.within.get(name, 0.0)
        if position is not None and not e.low <= position <= e.high:
            message = (
                f"the start {position:g} lies outside the envelope, [{e.low:g}, {e.high:g}]: every episode "
                "would begin in the fallback"
            )
            yield parse_path(f"task.{path}.{name}"), f"{message}, at task.{path}.{name}"
        elif position is not None and not (e.low <= position - reach and position + reach <= e.high):
            message = (
                f"the tolerance of {reach:g} around the start reaches beyond the envelope, [{e.low:g}, {e.high:g}]"
            )
            yield ("task", "reset", "within", name), f"{message}, at task.reset.within.{name}"


def _moving_start_findings(config: RunConfig, corners: Corners) -> Iterator[Finding]:
    """Report starts outside the prediction's safe set. If the envelope bounds a velocity, a start at rest is always
    inside, so that no tables are computed for it."""
    box, rig = config.limits.predicted, config.rig
    names = [o.name for o in rig.observations]
    candidates = [] if box is None else [c for c in corners if c[1].get(box.velocity) or covers_all(box)]
    moving_starts = [c for c in candidates if all(n in c[1] for n in names)]
    try:
        prediction = compile_prediction(config.limits, rig, config.period_us * 1e-6) if moving_starts else None
    except ValueError:  # a table is missing, which the plants' checks report
        return
    if box is None or prediction is None:
        return
    for path, start in moving_starts:
        excess, _ = prediction.evaluate([start[name] for name in names], [a.safe for a in rig.actuators])
        if excess > 0:
            if covers_all(box):
                message = "from this start even the safe output may leave an envelope"
                yield parse_path(f"task.{path}"), f"{message}: start nearer to its middle, at task.{path}"
                continue
            message = f"at {start[box.velocity]:g} even the safe output may leave the envelope"
            location = f"task.{path}.{box.velocity}"
            yield parse_path(location), f"{message}: start slower, at {location}"


def _steps(config: RunConfig) -> int:
    """Return the number of transitions in an episode; 0 if the rate and the length do not give a valid number."""
    product = config.task.episode_s * config.rate_hz
    return episode_steps(config.task, config.rate_hz) if 0 < product <= _max_steps(config) else 0


def _max_steps(config: RunConfig) -> int:
    return _MAX_NOISE_VALUES // max(1, len(config.rig.actuators))


def _synthetic_findings(config: RunConfig) -> Iterator[Finding]:
    synthetic = config.selection.synthetic
    if synthetic is None:
        return
    if config.device.twin is None:
        yield (
            ("selection", "synthetic"),
            "synthetic experiences need a twin, whose plant computes them; this device is on "
            f"{config.device.address} at selection.synthetic",
        )
    if config.input_names:
        yield (
            ("selection", "synthetic"),
            "synthetic experiences use the rig's observations, not task.inputs: remove one of the two, at "
            "selection.synthetic",
        )
    if config.task.targets:
        yield (
            ("selection", "synthetic"),
            "synthetic experiences have no next target, because targets are not part of the state: remove them, or "
            "task.targets, at selection.synthetic",
        )
    if uses_previous_action(config.task.reward.terms, config.rig):
        yield (
            ("selection", "synthetic"),
            "synthetic experiences have no previous action, on which the reward depends: remove them, or the terms "
            "that use it, at selection.synthetic",
        )
    if isinstance(config.exploration, OwnNoise):
        yield (
            ("selection", "synthetic"),
            "synthetic experiences were not drawn by the stochastic policy: remove them, or choose another "
            "exploration.process, at selection.synthetic",
        )
    elif isinstance(config.exploration, EpsilonGreedy):
        yield (
            ("selection", "synthetic"),
            "synthetic experiences need noise that is added to actions: remove them, or choose another "
            "exploration.process, at selection.synthetic",
        )
    elif isinstance(config.exploration, ParameterNoise):
        yield (
            ("selection", "synthetic"),
            "synthetic experiences need noise that does not depend on the policy: remove them, or choose another "
            "exploration.process, at selection.synthetic",
        )
    elif synthetic.states > 0 and not depends_on_episode_only(config.exploration):
        yield (
            ("exploration",),
            "selection.synthetic.states needs exploration that depends on the episode's number alone: expected noise "
            "on actions, scheduled over episodes, without gates and budgets, at exploration",
        )


def guard_findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for missing safeguards of a rig on a port."""
    limits = config.limits
    is_unguarded = limits.unguarded is True
    if is_unguarded and limits.envelope:
        yield ("limits", "unguarded"), "remove this, because the limits have an envelope, at limits.unguarded"
    if _may_be_hardware(config) and not limits.envelope and not is_unguarded:
        yield (
            ("limits", "envelope"),
            f"{_describe_missing_envelope(config)}: give an observation bounds and a fallback that keeps them, or "
            "confirm with limits.unguarded: true that only the device's own limits protect it, at limits.envelope",
        )
    if _may_be_hardware(config):
        yield from reset_findings(config)


def reset_findings(config: RunConfig) -> Iterator[Finding]:
    """Report a reset controller that cannot reach random starts, for devices that cannot reset themselves."""
    reset = config.task.reset
    if reset is not None and not reset.reaches_any_start and are_starts_random(config.task.all_starts):
        message = f"'{reset.__struct_config__.tag}' drives to the rig's rest position, not to a random start"
        yield ("task", "reset", "kind"), f"{message}: give numbers, or another reset, at task.reset.kind"


def warnings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for probably unintended settings of a valid configuration, such as missing safeguards."""
    yield from _guard_warnings(config)
    yield from probable_mistakes(config)
    if config.device.line is not None and not _may_be_hardware(config):
        yield (
            ("device", "pace"),
            "only a twin supports this pace on a port; hardware needs real time "
            "(--set device.pace=realtime), at device.pace",
        )
    exploration = config.exploration
    if isinstance(exploration, OwnNoise) and min_amplitude(exploration) < 1.0:
        message = "the policy's own noise is reduced, so its actions are off-policy and learning is slow"
        yield (
            ("exploration", "amplitude"),
            f"{message}: remove it (--set 'exploration={{process: own}}'), at exploration.amplitude",
        )


def _guard_warnings(config: RunConfig) -> Iterator[Finding]:
    if not config.limits.envelope:
        requirement = (
            "" if _may_be_hardware(config) else "; a rig on a port requires one, unless limits.unguarded is true"
        )
        yield ("limits", "envelope"), f"{_describe_missing_envelope(config)}{requirement}, at limits.envelope"
    if config.device.attended is True:
        yield ("device", "attended"), f"{describe_lease(config)}, at device.attended"
    if _may_be_hardware(config) and config.task.reset is None:
        yield (
            ("task", "reset"),
            "without a reset controller only a device that can reset itself is accepted (RESET in its hello), "
            "at task.reset",
        )


def _may_be_hardware(config: RunConfig) -> bool:
    """Return whether the device may be real hardware; only a twin runs scaled or in lockstep on a port."""
    return config.device.twin is None and config.device.pace == "realtime"


def _describe_missing_envelope(config: RunConfig) -> str:
    device = config.device
    description = "this twin" if device.twin is not None else f"the rig on {device.address}"
    ends = "" if config.task.may_terminate else ", and its episodes never end early"
    return f"{description} has no envelope: no fallback acts on its state{ends}"
