"""Conditions of a cell, derived from its configuration, so that cells of any grid can be compared.

What belongs to the strategy (retention, sampling, their exponents) stands apart from the conditions.  None says that a
condition means nothing for a cell and so keeps it from no comparison: the capacity of FULL, the kind of a synthetic
fraction of 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from onrig.learner.sampler_settings import SamplerSettings
from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.runtime.memory.strategy import Strategy, parse_strategy, parts_of_sampling, sampling_of
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.sim.twin.options import TwinOptions
from onrig.tools.experiments.spec import tells_of_sampling
from onrig.tools.experiments.store import Cell

Value = str | float | None

BASE_RATE_HZ: Final = 50.0
BASE_GAMMA: Final = 0.95
"""De Bruin et al. 2018, §6.4: other rates are set against these."""
AXES: Final = (
    "plant",
    "algorithm",
    "network",
    "rate",
    "discount",
    "kept",
    "noise",
    "synthetic",
    "fraction",
    "refresh",
    "capacity",
    "episodes",
)
"""Conditions in the order in which they are named; further ones of a grid follow."""
_PLACED: Final = frozenset(
    {
        *("config", "strategy", "alpha", "algorithm", "network", "hidden", "rate_hz", "gamma", "inertia"),
        *("noise", "sensor_noise", "actuator_noise", "synthetic_states", "synthetic_actions", "refresh", "episodes"),
        *("write_probability", "capacity", "capacity_bytes"),
    }
)
"""Axes of a grid, by their short names, that the strategy and these conditions tell of."""
_AT_BASE_RATE: Final = ("discount", "kept")


class Setting(NamedTuple):
    """Where a cell stands in the grid."""

    strategy: str
    """In the notation of the paper, with the exponent of the sampling where the grid has several:
    ``FIFO[PER(0.4)]``."""
    family: str
    """The same with α for the exponents: ``Expl(α)[PER]``."""
    retention: str
    sampling: str
    alpha: float | None
    """Exponent of the retention's rank law."""
    exponent: float | None
    """Of the sampling, where the grid has several."""
    conditions: Mapping[str, Value]


_T = TypeVar("_T")


def settings(cells: Sequence[Cell]) -> list[Setting]:
    """Place every cell; raises msgspec.ValidationError or ValueError for configurations of another version."""
    learners = [learner_settings(cell.config.learner) for cell in cells]
    strategies = [parse_strategy(cell.config.selection.strategy) for cell in cells]
    exponents = [_exponent(learner, strategy) for learner, strategy in zip(learners, strategies, strict=True)]
    conditions = [
        _conditions(cell.config, learner, strategy)
        for cell, learner, strategy in zip(cells, learners, strategies, strict=True)
    ]
    _free_base_rate(conditions)
    found = []
    for strategy, exponent, condition in zip(strategies, exponents, conditions, strict=True):
        name = _drawing(strategy)
        alike = {e for s, e in zip(strategies, exponents, strict=True) if _drawing(s) == name}
        found.append(_setting(strategy, name, exponent if len(alike) > 1 else None, condition))
    _tell_apart(cells, found)
    return found


def varying(found: Iterable[Setting]) -> list[str]:
    """Conditions that are not the same in all of them, in the order of naming."""
    return differing([setting.conditions for setting in found])


def common(found: Sequence[Setting]) -> str:
    """Name the conditions that are the same in all of them, the unremarkable ones left out."""
    several = varying(found)
    first = found[0].conditions
    plain = {"kept": "all kept", "discount": f"γ {BASE_GAMMA:g}", "noise": 0.0, "fraction": 0.0, "refresh": 1.0}
    axes = [
        axis
        for axis, value in first.items()
        if axis not in several and axis not in ("episodes", "capacity") and value != plain.get(axis)
    ]
    return in_words(axes, [first[axis] for axis in axes])


def differing(conditions: Sequence[Mapping[str, Value]]) -> list[str]:
    """Axes with several values, None apart; the kind of a synthetic fraction goes with the fraction."""
    values: dict[str, set[Value]] = {}
    for one in conditions:
        for axis, value in one.items():
            values.setdefault(axis, set()).add(value)
    several = {axis for axis, there in values.items() if len(there - {None}) > 1}
    if "fraction" in several:
        several.add("synthetic")
    return [axis for axis in values if axis in several]


def grouped(items: Sequence[tuple[Mapping[str, Value], _T]], axes: Sequence[str]) -> dict[tuple[Value, ...], list[_T]]:
    """Items by their values on ``axes``; one with a None joins every group that it does not contradict."""
    keys = [tuple(conditions.get(axis) for axis in axes) for conditions, _ in items]
    groups: list[tuple[Value, ...]] = []
    for key in sorted(dict.fromkeys(keys), key=lambda k: sum(v is None for v in k)):
        if not any(_agree(key, group) for group in groups) or None not in key:
            groups.append(key)
    groups.sort(key=lambda group: next(i for i, key in enumerate(keys) if _agree(key, group)))
    return {group: [item for key, (_, item) in zip(keys, items, strict=True) if _agree(key, group)] for group in groups}


def in_words(axes: Sequence[str], key: Sequence[Value]) -> str:
    """Name the conditions of a group."""
    values = dict(zip(axes, key, strict=True))
    fraction, kind = values.get("fraction"), values.get("synthetic")
    words = []
    for axis, value in values.items():
        if value is None or (axis == "synthetic" and isinstance(fraction, float)):
            continue
        if axis == "fraction" and isinstance(value, float):
            words.append(f"{value:.0%} synthetic {kind or ''}".rstrip() if value else "nothing synthetic")
        else:
            words.append(_word(axis, value))
    return ", ".join(words)


def _word(axis: str, value: str | float) -> str:
    number = f"{value:,.6g}".replace(",", "\u2009") if isinstance(value, float) else value
    match axis:
        case "rate":
            return f"{number} Hz"
        case "noise":
            return f"σ = {number}"
        case "capacity":
            return f"capacity {number}"
        case "episodes":
            return f"{number} episodes"
        case "network":
            return f"{number} network"
        case "synthetic":
            return f"synthetic {number}"
        case "refresh":
            return f"refreshed with probability {number}"
        case "plant" | "algorithm" | "discount" | "kept":
            return number
    return f"{axis} {number}"


def _agree(key: tuple[Value, ...], group: tuple[Value, ...]) -> bool:
    return all(a is None or a == b for a, b in zip(key, group, strict=True))


def _drawing(strategy: Strategy) -> str:
    """Name of the sampling that draws, within another one where there is one."""
    *_, part = parts_of_sampling(strategy.sampling).each
    return part.name


def _exponent(learner: LearnerSettings, strategy: Strategy) -> float | None:
    sampling = sampling_of(_drawing(strategy))
    assert issubclass(sampling, SamplerSettings)
    return learner.of_sampler(sampling).exponent(learner)


def _setting(strategy: Strategy, name: str, exponent: float | None, conditions: Mapping[str, Value]) -> Setting:
    retention, sampling = strategy.retention, strategy.sampling
    kept = "" if strategy.alpha is None else f"({strategy.alpha:g})"
    drawn = sampling if exponent is None else sampling.replace(name, f"{name}({exponent:g})", 1)
    family = retention + ("(α)" if kept else "") + f"[{sampling}]"
    return Setting(f"{retention}{kept}[{drawn}]", family, retention, sampling, strategy.alpha, exponent, conditions)


def _conditions(config: RunConfig, learner: LearnerSettings, strategy: Strategy) -> dict[str, Value]:
    selection, selected = config.selection, learner.selected
    synthetic = selection.synthetic
    states, actions = (synthetic.states, synthetic.actions) if synthetic else (0.0, 0.0)
    fraction = states + actions
    sensor, actuator, inertia = _of_twin(config)
    whole = strategy.keeper.keeps_all and selection.capacity is None and selection.capacity_bytes is None
    kind = "states and actions" if states and actions else "states" if states else "actions"
    values: dict[str, Value] = {
        "plant": config.rig.name + (f" ({inertia})" if inertia else ""),
        "algorithm": learner.algorithm.upper(),
        "network": selected.size,
        "rate": float(config.rate_hz),
        "discount": _discount(selected.gamma, config.rate_hz),
        "kept": _kept(selection.write_probability, config.rate_hz),
        "noise": _noise(sensor, actuator),
        "synthetic": kind if fraction else None,
        "fraction": round(fraction, 9),
        "refresh": float(synthetic.refresh) if synthetic and fraction else None,
        "capacity": None if whole else float(capacity_of(config)),
        "episodes": float(config.episodes),
    }
    return {axis: values[axis] for axis in AXES}


def _noise(sensors: float | dict[str, float], actuators: float) -> Value:
    """Noise of both, as one number where they are equal."""
    if sensors == actuators:
        return float(actuators)
    told = f"{sensors:g}" if not isinstance(sensors, dict) else ", ".join(f"{n} {s:.2g}" for n, s in sensors.items())
    return f"{told} (sensors), {actuators:g} (actuators)"


def _of_twin(config: RunConfig) -> tuple[float | dict[str, float], float, str]:
    """Noise of sensors and actuators, and the preset of the inertia where it is not the paper's."""
    if config.device.twin is None:
        return 0.0, 0.0, ""
    twin = msgspec.convert(config.device.twin, TwinOptions)
    inertia = getattr(twin.plant, "inertia", "paper")
    text = "" if inertia == "paper" or config.rig.name.endswith("-hw") else f"{inertia} inertia"
    return twin.sensor_noise, twin.actuator_noise, text


def _discount(gamma: float, rate_hz: float) -> str:
    """De Bruin et al. 2018, §6.4: the same horizon in seconds is gamma^(base rate / rate)."""
    if not math.isclose(rate_hz, BASE_RATE_HZ) and math.isclose(
        gamma, BASE_GAMMA ** (BASE_RATE_HZ / rate_hz), abs_tol=2e-4
    ):
        return "γ corrected"
    return f"γ {gamma:g}"


def _kept(write_probability: float, rate_hz: float) -> str:
    if write_probability == 1:
        return "all kept"
    if math.isclose(write_probability * rate_hz, BASE_RATE_HZ, rel_tol=1e-3):
        return "[DE]"
    return f"{write_probability:.3g} kept"


def _free_base_rate(conditions: Sequence[dict[str, Value]]) -> None:
    """At the base rate nothing is dropped or corrected: such a cell stands for both ways of going on from it."""
    base = [c for c in conditions if c["rate"] == BASE_RATE_HZ]
    if len(base) == len(conditions):
        return
    for axis in _AT_BASE_RATE:
        if len({c[axis] for c in base}) == 1:
            for c in base:
                c[axis] = None


def _tell_apart(cells: Sequence[Cell], found: list[Setting]) -> None:
    """Add the axes of a grid that nothing here knows of, where cells would seem to differ in their strategy alone, or
    in nothing."""
    certain = [axis for axis in AXES if all(setting.conditions[axis] is not None for setting in found)]
    for axis in dict.fromkeys(key for cell in cells for key in cell.label):
        seen: dict[tuple[object, ...], set[str | float | int | None]] = {}
        for cell, setting in zip(cells, found, strict=True):
            same: tuple[object, ...] = tuple(setting.conditions[a] for a in certain)
            if axis.rpartition(".")[2] in _PLACED or tells_of_sampling(axis):
                same = (setting.strategy, *sorted(setting.conditions.items()))
            seen.setdefault(same, set()).add(cell.label.get(axis))
        if any(len(values) > 1 for values in seen.values()):
            for i, cell in enumerate(cells):
                value = cell.label.get(axis)
                plain = float(value) if isinstance(value, int | float) else value
                found[i] = found[i]._replace(conditions={**found[i].conditions, axis: plain})
