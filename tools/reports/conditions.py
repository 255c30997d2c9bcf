"""Experimental conditions of a cell, derived from its configuration to make the cells of any grid comparable.

The strategy (retention, sampling and their exponents) is not a condition. A condition that does not apply to a cell,
such as the capacity of FULL or the kind of synthetic data at a fraction of 0, is None and matches any value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from onrig.learner.sampler_settings import SamplerSettings
from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.runtime.memory.strategy import Strategy, parse_sampling, parse_strategy, sampling_class
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.sim.twin.options import TwinOptions
from onrig.tools.experiments.spec import is_sampling_option
from onrig.tools.experiments.store import Cell

Value = str | float | None

BASE_RATE_HZ: Final = 50.0
BASE_GAMMA: Final = 0.95
"""Reference rate and discount for comparing control rates (de Bruin et al. 2018, §6.4)."""
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
"""Conditions in display order; further axes of a grid are appended."""
_COVERED_AXES: Final = frozenset(
    {
        *("config", "strategy", "alpha", "algorithm", "network", "hidden", "rate_hz", "gamma", "inertia"),
        *("noise", "sensor_noise", "actuator_noise", "synthetic_states", "synthetic_actions", "refresh", "episodes"),
        *("write_probability", "capacity", "capacity_bytes"),
    }
)
"""Short names of the grid axes that the strategy or these conditions already describe."""
_BASE_RATE_AXES: Final = ("discount", "kept")


class CellSetup(NamedTuple):
    """Strategy and conditions of a cell."""

    strategy: str
    """Strategy in the paper's notation, such as ``FIFO[PER(0.4)]``; the sampling exponent is included only if it varies
    in the grid."""
    family: str
    """Strategy without the values of its exponents, such as ``Expl(α)[PER]``."""
    retention: str
    sampling: str
    alpha: float | None
    """Rank exponent of the retention."""
    exponent: float | None
    """Sampling exponent; None if it does not vary in the grid."""
    conditions: Mapping[str, Value]


_T = TypeVar("_T")


def cell_setups(cells: Sequence[Cell]) -> list[CellSetup]:
    """Return the setup of each cell.

    Raises msgspec.ValidationError or ValueError if a configuration is from an incompatible version.
    """
    learners = [learner_settings(cell.config.learner) for cell in cells]
    strategies = [parse_strategy(cell.config.selection.strategy) for cell in cells]
    exponents = [_exponent(learner, strategy) for learner, strategy in zip(learners, strategies, strict=True)]
    conditions = [
        _conditions(cell.config, learner, strategy)
        for cell, learner, strategy in zip(cells, learners, strategies, strict=True)
    ]
    _relax_base_rate(conditions)
    settings = []
    for strategy, exponent, condition in zip(strategies, exponents, conditions, strict=True):
        name = _innermost_sampling(strategy)
        exponents_of_name = {e for s, e in zip(strategies, exponents, strict=True) if _innermost_sampling(s) == name}
        settings.append(_setting(strategy, name, exponent if len(exponents_of_name) > 1 else None, condition))
    _add_distinguishing_axes(cells, settings)
    return settings


def varying_conditions(settings: Iterable[CellSetup]) -> list[str]:
    """Return the conditions that differ between the settings, in display order."""
    return differing_axes([setting.conditions for setting in settings])


def describe_common(settings: Sequence[CellSetup]) -> str:
    """Describe the conditions that all settings share, omitting defaults, episodes and capacity."""
    varying_axes = varying_conditions(settings)
    first = settings[0].conditions
    default_values = {
        "kept": "all kept",
        "discount": f"γ {BASE_GAMMA:g}",
        "noise": 0.0,
        "fraction": 0.0,
        "refresh": 1.0,
    }
    axes = [
        axis
        for axis, value in first.items()
        if axis not in varying_axes and axis not in ("episodes", "capacity") and value != default_values.get(axis)
    ]
    return describe_conditions(axes, [first[axis] for axis in axes])


def differing_axes(conditions: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the axes with several values other than None; ``synthetic`` is included whenever ``fraction`` is."""
    values: dict[str, set[Value]] = {}
    for cell_conditions in conditions:
        for axis, value in cell_conditions.items():
            values.setdefault(axis, set()).add(value)
    varying_axes = {axis for axis, axis_values in values.items() if len(axis_values - {None}) > 1}
    if "fraction" in varying_axes:
        varying_axes.add("synthetic")
    return [axis for axis in values if axis in varying_axes]


def group_by_axes(
    items: Sequence[tuple[Mapping[str, Value], _T]], axes: Sequence[str]
) -> dict[tuple[Value, ...], list[_T]]:
    """Group items by their values on ``axes``; an item with the value None joins every compatible group."""
    keys = [tuple(conditions.get(axis) for axis in axes) for conditions, _ in items]
    groups: list[tuple[Value, ...]] = []
    for key in sorted(dict.fromkeys(keys), key=lambda k: sum(v is None for v in k)):
        if not any(_compatible(key, group) for group in groups) or None not in key:
            groups.append(key)
    groups.sort(key=lambda group: next(i for i, key in enumerate(keys) if _compatible(key, group)))
    return {
        group: [item for key, (_, item) in zip(keys, items, strict=True) if _compatible(key, group)] for group in groups
    }


def describe_conditions(axes: Sequence[str], key: Sequence[Value]) -> str:
    """Describe a group's conditions."""
    values = dict(zip(axes, key, strict=True))
    fraction, kind = values.get("fraction"), values.get("synthetic")
    texts = []
    for axis, value in values.items():
        if value is None or (axis == "synthetic" and isinstance(fraction, float)):
            continue
        if axis == "fraction" and isinstance(value, float):
            texts.append(f"{value:.0%} synthetic {kind or ''}".rstrip() if value else "nothing synthetic")
        else:
            texts.append(_describe_condition(axis, value))
    return ", ".join(texts)


def _describe_condition(axis: str, value: str | float) -> str:
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


def _compatible(key: tuple[Value, ...], group: tuple[Value, ...]) -> bool:
    return all(a is None or a == b for a, b in zip(key, group, strict=True))


def _innermost_sampling(strategy: Strategy) -> str:
    *_, part = parse_sampling(strategy.sampling).nested
    return part.name


def _exponent(learner: LearnerSettings, strategy: Strategy) -> float | None:
    sampling = sampling_class(_innermost_sampling(strategy))
    assert issubclass(sampling, SamplerSettings)
    return learner.sampler_section(sampling).exponent(learner)


def _setting(strategy: Strategy, name: str, exponent: float | None, conditions: Mapping[str, Value]) -> CellSetup:
    retention, sampling = strategy.retention, strategy.sampling
    alpha = "" if strategy.alpha is None else f"({strategy.alpha:g})"
    sampling_text = sampling if exponent is None else sampling.replace(name, f"{name}({exponent:g})", 1)
    family = retention + ("(α)" if alpha else "") + f"[{sampling}]"
    return CellSetup(
        f"{retention}{alpha}[{sampling_text}]", family, retention, sampling, strategy.alpha, exponent, conditions
    )


def _conditions(config: RunConfig, learner: LearnerSettings, strategy: Strategy) -> dict[str, Value]:
    selection, algorithm_config = config.selection, learner.algorithm_config
    synthetic = selection.synthetic
    states, actions = (synthetic.states, synthetic.actions) if synthetic else (0.0, 0.0)
    fraction = states + actions
    sensor, actuator, inertia = _twin_conditions(config)
    keeps_everything = strategy.keeper.keeps_all and selection.capacity is None and selection.capacity_bytes is None
    kind = "states and actions" if states and actions else "states" if states else "actions"
    values: dict[str, Value] = {
        "plant": config.rig.name + (f" ({inertia})" if inertia else ""),
        "algorithm": learner.algorithm.upper(),
        "network": algorithm_config.size,
        "rate": float(config.rate_hz),
        "discount": _describe_discount(algorithm_config.gamma, config.rate_hz),
        "kept": _describe_kept_fraction(selection.write_probability, config.rate_hz),
        "noise": _noise_condition(sensor, actuator),
        "synthetic": kind if fraction else None,
        "fraction": round(fraction, 9),
        "refresh": float(synthetic.refresh) if synthetic and fraction else None,
        "capacity": None if keeps_everything else float(capacity_of(config)),
        "episodes": float(config.episodes),
    }
    return {axis: values[axis] for axis in AXES}


def _noise_condition(sensors: float | dict[str, float], actuators: float) -> Value:
    """Return the noise of sensors and actuators, as one number if both are equal."""
    if sensors == actuators:
        return float(actuators)
    sensor_text = (
        f"{sensors:g}" if not isinstance(sensors, dict) else ", ".join(f"{n} {s:.2g}" for n, s in sensors.items())
    )
    return f"{sensor_text} (sensors), {actuators:g} (actuators)"


def _twin_conditions(config: RunConfig) -> tuple[float | dict[str, float], float, str]:
    """Return sensor noise, actuator noise, and the inertia to display: empty for the paper's, and for ``-hw`` rigs."""
    if config.device.twin is None:
        return 0.0, 0.0, ""
    twin = msgspec.convert(config.device.twin, TwinOptions)
    inertia = getattr(twin.plant, "inertia", "paper")
    text = "" if inertia == "paper" or config.rig.name.endswith("-hw") else f"{inertia} inertia"
    return twin.sensor_noise, twin.actuator_noise, text


def _describe_discount(gamma: float, rate_hz: float) -> str:
    """Return the label of the discount.

    "γ corrected" denotes gamma^(base rate / rate), which keeps the horizon in seconds (de Bruin et al. 2018, §6.4).
    """
    if not math.isclose(rate_hz, BASE_RATE_HZ) and math.isclose(
        gamma, BASE_GAMMA ** (BASE_RATE_HZ / rate_hz), abs_tol=2e-4
    ):
        return "γ corrected"
    return f"γ {gamma:g}"


def _describe_kept_fraction(write_probability: float, rate_hz: float) -> str:
    if write_probability == 1:
        return "all kept"
    if math.isclose(write_probability * rate_hz, BASE_RATE_HZ, rel_tol=1e-3):
        return "[DE]"
    return f"{write_probability:.3g} kept"


def _relax_base_rate(conditions: Sequence[dict[str, Value]]) -> None:
    """Set ``discount`` and ``kept`` to None in the cells at the base rate if the grid also has other rates.

    Only an axis that has the same value in all of these cells is changed. At the base rate, no experience is dropped
    and no discount is corrected, so the cells belong to both variants.
    """
    base_conditions = [c for c in conditions if c["rate"] == BASE_RATE_HZ]
    if len(base_conditions) == len(conditions):
        return
    for axis in _BASE_RATE_AXES:
        if len({c[axis] for c in base_conditions}) == 1:
            for c in base_conditions:
                c[axis] = None


def _add_distinguishing_axes(cells: Sequence[Cell], settings: list[CellSetup]) -> None:
    """Add further grid axes to the conditions where cells would otherwise look identical or differ only in strategy."""
    known_axes = [axis for axis in AXES if all(setting.conditions[axis] is not None for setting in settings)]
    for axis in dict.fromkeys(key for cell in cells for key in cell.label):
        values_by_setting: dict[tuple[object, ...], set[str | float | int | None]] = {}
        for cell, setting in zip(cells, settings, strict=True):
            key: tuple[object, ...] = tuple(setting.conditions[a] for a in known_axes)
            if axis.rpartition(".")[2] in _COVERED_AXES or is_sampling_option(axis):
                key = (setting.strategy, *sorted(setting.conditions.items()))
            values_by_setting.setdefault(key, set()).add(cell.label.get(axis))
        if any(len(values) > 1 for values in values_by_setting.values()):
            for i, cell in enumerate(cells):
                value = cell.label.get(axis)
                number = float(value) if isinstance(value, int | float) else value
                settings[i] = settings[i]._replace(conditions={**settings[i].conditions, axis: number})
