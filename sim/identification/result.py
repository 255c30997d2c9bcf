"""Result file: parameters for the twin, the spread for the shield, and the joint uncertainty."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from onrig.hw.rig import Rig
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import load_document
from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.files import replace_file
from onrig.runtime.safety.plant_box import PlantBox, separate_parameter_fields
from onrig.runtime.safety.rules import Envelope
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.identification.model import LAG, SCALE, Unknown
from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.plausibility import MIN_CORRELATION, residuals_of
from onrig.sim.identification.sensor_errors import sensor_errors
from onrig.sim.identification.uncertainty import half_widths
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import NOISE, ZERO, sensor_half_range

SAMPLES: Final = 200
SHIELD_CONFIDENCE: Final = 0.999
"""Confidence level of the intervals covered by the shield."""
_MIN_SPREAD: Final = 0.05
"""Minimum spread: a plant changes with temperature and wear."""
_MIN_SPREAD_SEPARATE: Final = 0.01
"""Minimum spread of parameters other than the lumped ones, which are geometric."""
_CLOSE_CORRELATION: Final = 0.95
_VAGUE_FACTOR: Final = 0.5
IMPERFECTIONS: Final = ("dry_friction", "dead_band", "delay_s")
_HEAD: Final = "# Written by `onrig identify`; {} (docs/identification.md).\n"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter with the bounds of its 95 % interval."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    logarithmic: bool
    """Whether the covariance refers to its logarithm."""


class SensorNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Standard deviation of a sensor's error (SI), rounding included, with its 95 % interval."""

    std: float
    low: float
    high: float
    alone: float
    """Standard deviation without rounding to counts; 0 if rounding hides it."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of `identified.yaml`."""

    rig: str
    source: str
    """Origin of the signals."""
    twin: dict[str, Any]
    """Overrides of ``device.twin``."""
    predicted: dict[str, Any]
    """Overrides of ``limits.predicted``."""
    parameters: tuple[Parameter, ...]
    noise: dict[str, SensorNoise]
    signs: dict[str, int]
    """Sign of each sensor and actuator: +1, or -1 if reversed."""
    not_known: tuple[str, ...]
    """Parameters that these signals cannot identify, with reasons."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the parameters in their order; of the logarithm if ``logarithmic``."""
    samples: tuple[tuple[float, ...], ...]
    """Samples of the parameters in their order."""


def result_of(
    identified: Identification,
    plant: Plant,
    rig: Rig,
    box: PlantBox | None,
    source: str,
    envelope: Mapping[str, Envelope] = MappingProxyType({}),
) -> Result:
    """Result of an identification; ``plant`` is the initial guess, ``box`` the shield's current plant box.

    ``envelope`` is the shield's, by observation.
    """
    widths = identified.half_widths
    parameters = tuple(
        _parameter(u, c, w) for u, c, w in zip(identified.unknowns, identified.fit.coordinates, widths, strict=True)
    )
    noise = {}
    for i, sensor in enumerate(rig.sensors):
        std, factor = float(identified.noise.total[i]), math.exp(1.96 * float(identified.noise.spread[i]))
        noise[sensor.name] = SensorNoise(std, std / factor, std * factor, float(identified.noise.alone[i]))
    signs, channels = identified.connection.signs, [*(s.name for s in rig.sensors), *(a.name for a in rig.actuators)]
    return Result(
        rig=rig.name,
        source=source,
        twin=_twin(identified, parameters, plant, rig),
        predicted=_predicted(identified, plant, rig, box, envelope),
        parameters=parameters,
        noise=noise,
        signs=dict(zip(channels, (*signs.sensors, *signs.actuators), strict=True)),
        not_known=tuple(_undetermined(identified, parameters, noise, plant)),
        covariance=tuple(map(tuple, identified.joint.covariance.tolist())),
        samples=tuple(map(tuple, _samples(identified).tolist())),
    )


def _parameter(unknown: Unknown, coordinate: float, width: float) -> Parameter:
    low, high = sorted(
        float(np.clip(unknown.value(c), unknown.low, unknown.high)) for c in (coordinate - width, coordinate + width)
    )
    return Parameter(unknown.name, unknown.unit, float(unknown.value(coordinate)), low, high, unknown.logarithmic)


def _twin(identified: Identification, parameters: tuple[Parameter, ...], plant: Plant, rig: Rig) -> dict[str, Any]:
    """Plant, noise and zeros; insignificant imperfections are omitted."""
    kept = {
        p.name: p.value
        for p in parameters
        if p.name in plant.identifiable or p.name in _significant_imperfections(identified)
    }
    zeros = {p.name.removeprefix(ZERO): p.value for p in parameters if _has_zero(p)}
    fitted_names = {u.name for u, is_free in zip(identified.unknowns, identified.free.tolist(), strict=True) if is_free}
    without_imperfections = msgspec.structs.replace(
        plant, **dict.fromkeys(fitted_names.intersection(IMPERFECTIONS), msgspec.UNSET)
    )
    section: dict[str, Any] = {"plant": msgspec.to_builtins(without_imperfections.with_identifiable(kept))}
    section["sensor_noise"] = {
        sensor.name: std / half
        for sensor, std in zip(rig.sensors, identified.noise.alone.tolist(), strict=True)
        if (half := sensor_half_range(rig, sensor.name))
    }
    return {**section, "sensor_zero": zeros} if zeros else section


def _has_zero(parameter: Parameter) -> bool:
    """Whether the parameter is a sensor's zero that differs significantly from 0."""
    return parameter.name.startswith(ZERO) and parameter.low * parameter.high > 0


def _significant_imperfections(identified: Identification) -> set[str]:
    low = identified.fit.coordinates - half_widths(identified.joint, SHIELD_CONFIDENCE)
    return {
        u.name
        for u, lower_bound in zip(identified.unknowns, low, strict=True)
        if u.name in IMPERFECTIONS and lower_bound > 0
    }


def _predicted(
    identified: Identification, plant: Plant, rig: Rig, box: PlantBox | None, envelope: Mapping[str, Envelope]
) -> dict[str, Any]:
    """Plants to cover, the longest delay, and errors of inaccurate sensors."""
    wide, significant = half_widths(identified.joint, SHIELD_CONFIDENCE), _significant_imperfections(identified)
    upper_bounds = {
        u.name: float(c + w) for u, c, w in zip(identified.unknowns, identified.fit.coordinates, wide, strict=True)
    }
    section: dict[str, Any]
    if isinstance(box, SampledBox):
        uncertain = (plant.identifiable.keys() - plant.lumped.keys()) | (significant - {"delay_s"})
        section = {"uncertainty": identified_intervals(identified, wide, uncertain, box)}
    else:
        section = _lumped_parameters(identified, wide, plant, box)
        if "dead_band" in significant and (box is None or hasattr(box, "dead_band")):
            section["dead_band"] = upper_bounds["dead_band"]
    if "delay_s" in significant:
        delay_us = math.ceil(1e4 * upper_bounds["delay_s"]) * 100
        section["late_us"] = (0 if box is None else box.late_us) + delay_us
        if hasattr(box, "plant_delay_us"):
            section["plant_delay_us"] = delay_us
    errors = {} if box is None else sensor_errors(identified, wide, plant, rig, box, envelope)
    return section | ({"sensor_error": errors} if errors else {})


def _lumped_parameters(identified: Identification, wide: Array, plant: Plant, box: PlantBox | None) -> dict[str, Any]:
    """Nominal values of the lumped parameters and their spread, and those of the other parameters of a box."""
    lumped = [i for i, u in enumerate(identified.unknowns) if u.name in plant.lumped]
    model_errors = [r.model_error for r in residuals_of(identified) if r.correlation > MIN_CORRELATION]
    spread = max([_MIN_SPREAD, *model_errors, *(math.expm1(wide[i]) for i in lumped)])
    if box is not None and not all(
        identified.free[i] for i in lumped
    ):  # undetermined parameters keep the box's uncertainty
        spread = max(spread, box.spread)
    section: dict[str, Any] = {
        identified.unknowns[i].name: float(identified.unknowns[i].value(identified.fit.coordinates[i])) for i in lumped
    }
    section["spread"] = math.ceil(100.0 * spread) / 100.0
    return section | ({} if box is None else _separate_parameters(identified, wide, box))


def identified_intervals(
    identified: Identification, wide: Array, uncertain: Collection[str], box: SampledBox
) -> dict[str, list[float]]:
    """Intervals of the ``uncertain`` parameters for a sampled barrier: identified if determined, else the box's.

    None is narrower than the minimum spread, because a plant changes with temperature and wear.
    """
    intervals = {name: [*ends] for name, ends in box.uncertainty.items()}
    coordinates, free = identified.fit.coordinates, identified.free.tolist()
    for u, c, w, is_free in zip(identified.unknowns, coordinates, wide, free, strict=True):
        if is_free and u.name in uncertain:
            value, *ends = (float(u.value(coordinate)) for coordinate in (c, c - w, c + w))
            reach = max(_MIN_SPREAD * abs(value), *(abs(end - value) for end in ends))
            intervals[u.name] = [max(value - reach, u.low), min(value + reach, u.high)]
    return intervals


def _separate_parameters(identified: Identification, wide: Array, box: PlantBox) -> dict[str, float]:
    """Nominal values and spreads of the parameters other than the lumped ones."""
    section, fields = {}, separate_parameter_fields(box)
    for u, c, w, is_free in zip(
        identified.unknowns, identified.fit.coordinates, wide, identified.free.tolist(), strict=True
    ):
        if u.name in fields and is_free:
            value, *ends = (float(u.value(coordinate)) for coordinate in (c, c - w, c + w))
            nominal, spread = fields[u.name]
            section[nominal] = value
            section[spread] = max(
                _MIN_SPREAD_SEPARATE, math.ceil(1e3 * max(abs(end / value - 1.0) for end in ends)) / 1e3
            )
    return section


def _samples(identified: Identification) -> Array:
    """Samples (SAMPLES, p) of the joint distribution, clipped to the bounds."""
    rng = np.random.default_rng(0)
    coordinates = rng.multivariate_normal(
        identified.fit.coordinates, identified.joint.covariance, SAMPLES, method="eigh"
    )
    columns = [np.clip(u.value(coordinates[:, i]), u.low, u.high) for i, u in enumerate(identified.unknowns)]
    return np.stack(columns, axis=1)


def _undetermined(
    identified: Identification, parameters: tuple[Parameter, ...], noise: dict[str, SensorNoise], plant: Plant
) -> Iterator[str]:
    if identified.connection.mirrored:
        yield (
            "All signs at once: this plant is symmetric, so reversing all channels gives the same signals. "
            "Turn the rig by hand to see in which direction its sensor counts."
        )
    elif not identified.connection.certain:
        yield "Signs: other signs explain the signals nearly as well; more excitation is needed."
    for p, is_free in zip(parameters, identified.free.tolist(), strict=True):
        if p.name in identified.held:
            yield f"{p.name}: indistinguishable from {', '.join(identified.held[p.name])}; it remains {p.value:.6g}."
        elif not is_free:
            yield f"{p.name}: the recorded signals do not depend on it; it remains {p.value:.6g}."
        elif p.name in IMPERFECTIONS and p.name not in _significant_imperfections(identified):
            upper_bound = f"{p.high:.3g} {p.unit}".rstrip()
            yield f"{p.name}: not significantly different from 0; at most {upper_bound}. The twin omits it."
        elif p.name in (*plant.identifiable, *IMPERFECTIONS) and p.high - p.low > 2 * _VAGUE_FACTOR * abs(p.value):
            yield f"{p.name}: between {p.low:.3g} and {p.high:.3g} {p.unit}; the excitation is insufficient."
    for name in plant.identifiable:
        if name not in [p.name for p in parameters]:
            yield f"{name}: it is 0 in the configuration; give an initial value."
    scale = np.sqrt(np.diag(identified.joint.covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = identified.joint.covariance / np.outer(scale, scale)
    for i, j in np.argwhere(np.triu(np.abs(correlation) > _CLOSE_CORRELATION, 1)):
        first, second = parameters[i].name, parameters[j].name
        yield f"{first} and {second} separately (correlation {correlation[i, j]:+.3f}): always sample both together."
    for name, sensor in noise.items():
        if not sensor.alone:
            yield f"The noise of {name}: hidden by rounding to counts, well below {sensor.std:.3g}."
    lumped = set(plant.lumped)
    if lumped:
        alike = [p.name for p in plant.parameters() if p.name not in IMPERFECTIONS and p.name not in plant.separable]
        yield (
            f"{', '.join(alike)} individually: motion depends only on {', '.join(plant.lumped)}; the twin's values are "
            "one choice that satisfies this."
        )


def write_result(result: Result, path: Path, refusals: Sequence[str] = ()) -> None:
    """Write a result file; ``refusals``: reasons why its configuration cannot use it.  Raises OSError."""
    usage = "; ".join(refusals) or "use it in a run as `identified: FILE`"
    replace_file(path, (_HEAD.format(usage) + dump_yaml(msgspec.to_builtins(result))).encode())


def read_result(path: Path) -> Result:
    """Read a result file; raises ConfigError with every problem."""
    return convert(load_document(path), (), Result)


def drawn_plants(result: Result, plant: Plant) -> Plant:
    """Samples of the joint distribution as one plant whose parameters are arrays over the samples, without delay."""
    columns = np.array(result.samples).T
    values = dict(zip([p.name for p in result.parameters], columns, strict=True))
    inside = {n: v for n, v in values.items() if n in plant.identifiable or n in ("dry_friction", "dead_band")}
    return plant.with_identifiable(inside)


def twin_samples(result: Result) -> dict[str, tuple[float, ...]]:
    """Columns of ``device.twin.samples``: parameters, imperfections, and zeros and noise of the sensors.

    Imperfections and zeros that are not significant are omitted, as in the twin; dry friction, which only dissipates,
    is kept.  The noise is drawn from its interval (log-normal), independently of the rest.
    """
    plant, zeros = result.twin["plant"], result.twin.get("sensor_zero", {})
    absent = {n for n in ("dead_band", "delay_s") if n not in plant}
    columns = dict(zip([p.name for p in result.parameters], zip(*result.samples, strict=True), strict=True))
    kept = {
        name: column
        for name, column in columns.items()
        if name not in absent
        and not name.startswith((SCALE, LAG))
        and not (name.startswith(ZERO) and name.removeprefix(ZERO) not in zeros)
    }
    rng = np.random.default_rng(1)
    for sensor, std in result.twin["sensor_noise"].items():
        found = result.noise[sensor]
        draws = std * (found.high / found.std) ** (rng.standard_normal(len(result.samples)) / 1.96)
        kept[NOISE + sensor] = tuple(draws.tolist())
    return kept
