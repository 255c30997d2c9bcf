"""Initial rig, task and run of a plant without a template, derived from its names, units, limits and reachable
states."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from onrig.hw.messages import NAME_BYTES
from onrig.runtime import registry
from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.files import read_file
from onrig.sim.plants.integrate import step
from onrig.sim.plants.plant import Plant

_PERIOD_S: Final = 0.02
_N_TRIALS: Final = (24, 100)
"""Number of plants, and number of periods with random actions, from which the states' ranges are estimated."""
_QUANTILE: Final = 0.9
"""Share of the simulated values that an estimated range covers; below 1, since an unstable plant diverges."""
_MIN_COUNTS: Final = 1e4
"""Minimum number of sensor counts over a range."""


class NoTemplate(ValueError):
    """No initial files can be written for a plant; the message is one line for the user."""


class Signal(NamedTuple):
    """A state or an action of a plant, as a signal of the rig."""

    name: str
    unit: str
    low: float
    high: float
    is_angle: bool = False
    """Whether the signal is an unlimited angle."""

    @property
    def resolution(self) -> str:
        """Largest power of ten that resolves the range into enough counts."""
        return f"{10.0 ** math.floor(math.log10((self.high - self.low) / _MIN_COUNTS)):.1e}"

    @property
    def weight(self) -> float:
        """Weight of a distance in the reward, rounded up so that half the range costs at least 1."""
        return _round_up(2.0 / (self.high - self.low))


def template_of(kind: str) -> Path | None:
    """Return the template folder that a plant names, or None if it names none."""
    plant = _plant_class(kind)
    return Path(str(sys.modules[plant.__module__].__file__)).parent / plant.template if plant.template else None


def generate_files(kind: str) -> dict[str, str]:
    """Generate the initial files of a registered plant with its default parameters, by file name. Raises NoTemplate if
    a parameter has no default or the plant's code fails.
    """
    plant = _plant_class(kind)
    required_names = [f.encode_name for f in msgspec.structs.fields(plant) if f.required]
    if required_names:
        raise NoTemplate(f"the plant '{kind}' has no default for {', '.join(required_names)}: use --plant blank")
    try:
        return _files(plant(), {"kind": kind})
    except Exception as error:  # raised by third-party code
        raise NoTemplate(f"the plant '{kind}': {registry.describe_exception(error)}") from None


def mujoco_model_files(model: Path) -> dict[str, str]:
    """Generate the initial files of a MuJoCo model, by file name. The model itself is included unless it reads other
    files. Raises NoTemplate if the model cannot be used.
    """
    from onrig.sim.plants.mujoco import Mujoco

    try:
        plant = Mujoco(model=str(model))
        names = _plain_names([*plant.state_names, *plant.action_names])
        plant = Mujoco(model=str(model), names=names)
        wrapped_names = tuple(s.name for s in _states(plant) if s.is_angle)
        text = read_file(model, MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        raise NoTemplate(f"{model}: {error}") from None
    is_self_contained = not re.search(r"<include\b|\bfile *=", text)
    section: dict[str, object] = {"kind": "mujoco", "model": model.name if is_self_contained else str(model.resolve())}
    section |= {key: value for key, value in (("names", names), ("wrap", list(wrapped_names))) if value}
    files = _files(Mujoco(model=str(model), names=names, wrap=wrapped_names), section)
    return {**files, **({model.name: text} if is_self_contained else {})}


def _plant_class(kind: str) -> type[Plant]:
    try:
        plant: type[Plant] = registry.load(registry.PLANTS, kind)
    except ValueError as error:
        raise NoTemplate(str(error)) from None
    return plant


def _plain_names(names: Sequence[str]) -> dict[str, str]:
    """Return replacements for names that are too long for a frame or contain special characters, by original name."""
    replacements: dict[str, str] = {}
    for name in names:
        plain_name = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "x"
        if len(plain_name) > NAME_BYTES:
            stem, velocity, _ = plain_name.partition("_velocity")
            plain_name = stem[: NAME_BYTES - 4] + "_vel" if velocity else plain_name[:NAME_BYTES]
        taken_names = [
            *replacements.values(),
            *(other for other in names if other not in replacements and other != name),
        ]
        n = 1
        while plain_name in taken_names:
            n += 1
            plain_name = f"{plain_name[: NAME_BYTES - len(str(n))]}{n}"
        if plain_name != name:
            replacements[name] = plain_name
    return replacements


def _states(plant: Plant) -> list[Signal]:
    """Return a plant's states with their units and ranges. Ranges that the plant does not define are estimated from
    trials with random actions.
    """
    units, spans, signals = plant.units, plant.spans, []
    magnitudes = _state_magnitudes(plant)
    for i, name in enumerate(plant.state_names):
        unit = units.get(name, "1")
        is_angle = unit == "rad" and name not in spans and i not in plant.velocities_at
        low, high = (-math.pi, math.pi) if is_angle else spans.get(name, (-magnitudes[i], magnitudes[i]))
        signals.append(Signal(name, unit, low, high, is_angle))
    return signals


def _actions(plant: Plant) -> list[Signal]:
    names = plant.action_names or tuple([f"action_{i + 1}" for i in range(plant.n_actions)])
    return [Signal(name, plant.units.get(name, "1"), *plant.spans.get(name, (-1.0, 1.0))) for name in names]


def _state_magnitudes(plant: Plant) -> list[float]:
    """Return the magnitude that a share `_QUANTILE` of each state's values does not exceed under random actions,
    rounded up.
    """
    n, periods = _N_TRIALS if plant.batched else (_N_TRIALS[0] // 4, _N_TRIALS[1] // 2)
    rng, start = np.random.default_rng(0), _start(plant)
    states = tuple([np.full(n, start[name]) for name in plant.state_names])
    samples = []
    with np.errstate(all="ignore"):
        for k in range(periods):
            if k % 5 == 0:
                actions = tuple([rng.uniform(a.low, a.high, n) for a in _actions(plant)])
            states = step(plant, states, actions, _PERIOD_S)
            samples.append(np.abs(np.stack(states)))
    values = np.concatenate(samples, axis=1)
    quantiles = [np.quantile(row[np.isfinite(row)], _QUANTILE) if np.isfinite(row).any() else 1.0 for row in values]
    return [_round_up(float(x)) if 1e-6 < x < 1e6 else 1.0 for x in quantiles]


def _start(plant: Plant) -> dict[str, float]:
    """Return the start state: 0, or the middle of a range that does not contain 0."""
    midpoints = {name: 0.0 if low <= 0.0 <= high else 0.5 * (low + high) for name, (low, high) in plant.spans.items()}
    return {name: midpoints.get(name, 0.0) for name in plant.state_names}


def _round_up(x: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(x))
    return float(f"{next(m for m in (1, 2, 5, 10) if m * power >= x * (1 - 1e-9)) * power:.3g}")


_RIG: Final = Template("""\
# Generated from the plant '$kind': units, ranges and resolutions are guesses; replace them with your device's.
name: $kind
sensors:
$sensors
actuators:
$actuators
observations:
$observations
lease_periods: 5
safe_output: driven
""")
_TASK: Final = Template("""\
# Generated: keep '$first' at the target below. Replace it with your rig's task; docs/your-rig.md lists the terms.
name: hold-$first
episode_s: 5.0
start: $start
${inputs}reward:
  terms:
    near: {kind: distance, observation: $first, target: $target, weight: $near}
    calm: {kind: distance, observation: $velocity, target: 0.0, weight: $calm}
    effort: {kind: effort, actuator: $actuator, weight: $effort}
""")
_RUN: Final = Template("""\
# Generated: the plant '$kind' learns to keep '$first' at a target, on its twin.
rig: rig.yaml
task: task.yaml
device:
  twin: {plant: $plant}
  pace: lockstep
rate_hz: 50
episodes: 200
evaluate_every: 5
selection: {strategy: "FIFO[Uniform]", capacity: 50000}
learner:
  algorithm: td3
  td3: {hidden: [64, 64], batch: 64, gamma: 0.97, tau: 0.01, delay: 2, target_noise: 0.05, reward_scale: 0.1}
  updates_per_episode: 200
exploration:
  process: ou
  amplitude: [[1, 1.0], [100, 0.1]]
limits:
  envelope: {$velocity: {low: $slowest, high: $fastest}}   # beyond it the fallback acts
  fallback: {kind: safe}
""")
_ABOUT: Final = Template("""\
# $kind

Files for the plant `$kind`, generated from its states ($states) and actions ($actions). They pass `onrig check` and
run; units, ranges and the task are guesses. `rig.yaml` describes the hardware on the bench, `task.yaml` its task,
`run.yaml` the learning and its limits. Run the commands from this folder.

## On its twin

```sh
onrig check run.yaml --explain
onrig run run.yaml --set episodes=20
onrig run run.yaml --web
```

`onrig settings --of run.yaml device.twin.plant` lists the plant's parameters.
""")
_BENCH: Final = Template("""\
gentle: "$gentle"
gentle_words: a tenth of the range of $actuator
tenth: "--set 'limits.range={$ranges}' --set task.episode_s=2"
""")


def _files(plant: Plant, section: Mapping[str, object]) -> dict[str, str]:
    """Generate the files of a template from a plant's states and actions."""
    states, actions = _states(plant), _actions(plant)
    velocity = states[plant.velocities_at[-1]]
    first_state = next((s for i, s in enumerate(states) if i not in plant.velocities_at), states[0])
    start, actuator = _start(plant), actions[0]
    values: dict[str, Any] = {
        "kind": section["kind"],
        "states": ", ".join(f"`{s.name}`" for s in states),
        "actions": ", ".join(f"`{a.name}`" for a in actions),
        "sensors": "\n".join(
            f"  - {{name: {s.name}, unit: {_yaml_word(s.unit)}, resolution: {s.resolution}{', wrap: true' * s.is_angle}"
            f"{'' if s.is_angle else f', low: {10 * s.low:g}, high: {10 * s.high:g}'}}}"
            for s in states
        ),
        "actuators": "\n".join(
            f"  - {{name: {a.name}, unit: {_yaml_word(a.unit)}, resolution: {a.resolution}, low: {a.low:g}, "
            f"high: {a.high:g}, safe: {_safe_output(a):g}}}"
            for a in actions
        ),
        "observations": "\n".join(
            f"  - {{name: {s.name}, unit: {_yaml_word(s.unit)}, low: {s.low!r}, high: {s.high!r}}}" for s in states
        ),
        "plant": json.dumps(section),
        "start": "{" + ", ".join(f"{name}: {value:g}" for name, value in start.items()) + "}",
        "inputs": _inputs(states),
        "first": first_state.name,
        "target": f"{start[first_state.name]:g}",
        "near": f"{first_state.weight:g}",
        "velocity": velocity.name,
        "calm": f"{0.1 * velocity.weight:g}",
        "slowest": f"{2 * velocity.low:g}",
        "fastest": f"{2 * velocity.high:g}",
        "actuator": actuator.name,
        "effort": f"{0.01 * actuator.weight:g}",
        "gentle": f"{_gentle_output(actuator):g}",
        "ranges": ", ".join(
            f"{a.name}: [{_output_towards(a, a.low):g}, {_output_towards(a, a.high):g}]" for a in actions
        ),
    }
    templates = {"rig.yaml": _RIG, "task.yaml": _TASK, "run.yaml": _RUN, "README.md": _ABOUT, "bench.yaml": _BENCH}
    return {file: text.substitute(values) for file, text in templates.items()}


def _inputs(states: Sequence[Signal]) -> str:
    """Return the section that replaces unlimited angles with cosine and sine, or an empty text if there are none."""
    if not any(s.is_angle for s in states):
        return ""
    forms = [(s.name, form) for s in states for form in (("cos", "sin") if s.is_angle else ("value",))]
    return "inputs:\n" + "".join(f"  - {{observation: {name}, form: {form}}}\n" for name, form in forms)


def _yaml_word(unit: str) -> str:
    return f'"{unit}"' if unit == "1" else unit


def _safe_output(a: Signal) -> float:
    return min(max(0.0, a.low), a.high)


def _output_towards(a: Signal, end: float) -> float:
    """Return the value a tenth of the way from the safe output to a limit."""
    return _safe_output(a) + 0.1 * (end - _safe_output(a))


def _gentle_output(a: Signal) -> float:
    return _output_towards(a, a.high if a.high > _safe_output(a) else a.low)
