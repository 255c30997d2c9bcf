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
from onrig.sim.identification.model import LAG_PREFIX, SCALE_PREFIX, Unknown
from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.plausibility import MIN_CORRELATION, residuals_of
from onrig.sim.identification.sensor_errors import sensor_errors
from onrig.sim.identification.uncertainty import half_widths
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import NOISE_PREFIX, ZERO_PREFIX, sensor_half_range

SAMPLES: Final = 200
SHIELD_CONFIDENCE: Final = 0.999
"""Confidence level of the intervals covered by the shield."""
_MIN_SPREAD: Final = 0.05
"""Minimum spread: a plant changes with temperature and wear."""
_MIN_SPREAD_SEPARATE: Final = 0.01
"""Minimum spread of the geometric parameters, the ones that are not lumped."""
_CLOSE_CORRELATION: Final = 0.95
_VAGUE_FACTOR: Final = 0.5
IMPERFECTIONS: Final = ("dry_friction", "dead_band", "delay_s")
_HEADER: Final = "# Written by `onrig identify`; {} (docs/identification.md).\n"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter with the bounds of its 95 % interval."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    logarithmic: bool
    """Whether the covariance refers to the parameter's logarithm."""


class SensorNoise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Standard deviation of a sensor's error (SI), rounding included, with its 95 % interval."""

    std: float
    low: float
    high: float
    alone: float
    """Standard deviation without rounding to counts; 0 if rounding hides it."""


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scale of a sensor or actuator on the wire."""

    unit: str
    resolution: float
    """SI units per count."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of `identified.yaml`."""

    rig: str
    channels: dict[str, Channel] = {}
    """Every sensor and actuator; empty in results of earlier versions."""
    source: str
    """Origin of the signals."""
    twin: dict[str, Any]
    """Overrides for ``device.twin``."""
    predicted: dict[str, Any]
    """Overrides for ``limits.predicted``."""
    parameters: tuple[Parameter, ...]
    noise: dict[str, SensorNoise]
    signs: dict[str, int]
    """Sign of each sensor and actuator: +1, or -1 if reversed."""
    not_known: tuple[str, ...]
    """Parameters that these signals cannot identify, with reasons."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of ``parameters``, in their order; ``logarithmic`` ones enter with their logarithm."""
    samples: tuple[tuple[float, ...], ...]
    """Samples of ``parameters``, in their order."""


def result_of(
    identification: Identification,
    plant: Plant,
    rig: Rig,
    box: PlantBox | None,
    source: str,
    envelopes: Mapping[str, Envelope] = MappingProxyType({}),
) -> Result:
    """Return the result of an identification.

    ``plant`` is the initial guess, ``box`` the shield's current plant box, and ``envelopes`` are the shield's
    envelopes, by observation.
    """
    widths = identification.half_widths
    parameters = tuple(
        _parameter(u, c, w)
        for u, c, w in zip(identification.unknowns, identification.fit.coordinates, widths, strict=True)
    )
    noise = {}
    for i, sensor in enumerate(rig.sensors):
        std, factor = float(identification.noise.total[i]), math.exp(1.96 * float(identification.noise.spread[i]))
        noise[sensor.name] = SensorNoise(std, std / factor, std * factor, float(identification.noise.alone[i]))
    signs = identification.connection.signs
    channels = {c.name: Channel(c.unit, c.resolution) for c in rig.channels}
    return Result(
        rig=rig.name,
        channels=channels,
        source=source,
        twin=_twin(identification, parameters, plant, rig),
        predicted=_predicted_section(identification, plant, rig, box, envelopes),
        parameters=parameters,
        noise=noise,
        signs=dict(zip(channels, (*signs.sensors, *signs.actuators), strict=True)),
        not_known=tuple(_undetermined(identification, parameters, noise, plant)),
        covariance=tuple(map(tuple, identification.joint.covariance.tolist())),
        samples=tuple(map(tuple, _samples(identification).tolist())),
    )


def _parameter(unknown: Unknown, coordinate: float, width: float) -> Parameter:
    low, high = sorted(
        float(np.clip(unknown.value(c), unknown.low, unknown.high)) for c in (coordinate - width, coordinate + width)
    )
    return Parameter(unknown.name, unknown.unit, float(unknown.value(coordinate)), low, high, unknown.is_logarithmic)


def _twin(identification: Identification, parameters: tuple[Parameter, ...], plant: Plant, rig: Rig) -> dict[str, Any]:
    """Return the section with plant, noise and zeros, without insignificant imperfections."""
    kept_values = {
        p.name: p.value
        for p in parameters
        if p.name in plant.identifiable or p.name in _significant_imperfections(identification)
    }
    zeros = {p.name.removeprefix(ZERO_PREFIX): p.value for p in parameters if _has_zero(p)}
    fitted_names = {
        u.name for u, is_free in zip(identification.unknowns, identification.is_free.tolist(), strict=True) if is_free
    }
    without_imperfections = msgspec.structs.replace(
        plant, **dict.fromkeys(fitted_names.intersection(IMPERFECTIONS), msgspec.UNSET)
    )
    section: dict[str, Any] = {"plant": msgspec.to_builtins(without_imperfections.with_identifiable(kept_values))}
    section["sensor_noise"] = {
        sensor.name: std / half_range
        for sensor, std in zip(rig.sensors, identification.noise.alone.tolist(), strict=True)
        if (half_range := sensor_half_range(rig, sensor.name))
    }
    return {**section, "sensor_zero": zeros} if zeros else section


def _has_zero(parameter: Parameter) -> bool:
    """Whether the parameter is a sensor's zero that differs significantly from 0."""
    return parameter.name.startswith(ZERO_PREFIX) and parameter.low * parameter.high > 0


def _significant_imperfections(identification: Identification) -> set[str]:
    low = identification.fit.coordinates - half_widths(identification.joint, SHIELD_CONFIDENCE)
    return {
        u.name
        for u, lower_bound in zip(identification.unknowns, low, strict=True)
        if u.name in IMPERFECTIONS and lower_bound > 0
    }


def _predicted_section(
    identification: Identification, plant: Plant, rig: Rig, box: PlantBox | None, envelopes: Mapping[str, Envelope]
) -> dict[str, Any]:
    """Return the section with the plants to cover, the longest delay, and the errors of inaccurate sensors."""
    shield_widths, significant_names = (
        half_widths(identification.joint, SHIELD_CONFIDENCE),
        _significant_imperfections(identification),
    )
    upper_bounds = {
        u.name: float(c + w)
        for u, c, w in zip(identification.unknowns, identification.fit.coordinates, shield_widths, strict=True)
    }
    section: dict[str, Any]
    if isinstance(box, SampledBox):
        uncertain_names = (plant.identifiable.keys() - plant.lumped.keys()) | (significant_names - {"delay_s"})
        section = {"uncertainty": identified_intervals(identification, shield_widths, uncertain_names, box)}
    else:
        section = _lumped_parameters(identification, shield_widths, plant, box)
        if "dead_band" in significant_names and (box is None or hasattr(box, "dead_band")):
            section["dead_band"] = upper_bounds["dead_band"]
    if "delay_s" in significant_names:
        delay_us = math.ceil(1e4 * upper_bounds["delay_s"]) * 100
        section["late_us"] = (0 if box is None else box.late_us) + delay_us
        if hasattr(box, "plant_delay_us"):
            section["plant_delay_us"] = delay_us
    errors = {} if box is None else sensor_errors(identification, shield_widths, plant, rig, box, envelopes)
    return section | ({"sensor_error": errors} if errors else {})


def _lumped_parameters(
    identification: Identification, shield_widths: Array, plant: Plant, box: PlantBox | None
) -> dict[str, Any]:
    """Return the nominal values and spread of the lumped parameters, and those of the box's other parameters."""
    lumped_indices = [i for i, u in enumerate(identification.unknowns) if u.name in plant.lumped]
    model_errors = [r.model_error for r in residuals_of(identification) if r.correlation > MIN_CORRELATION]
    spread = max([_MIN_SPREAD, *model_errors, *(math.expm1(shield_widths[i]) for i in lumped_indices)])
    if box is not None and not all(
        identification.is_free[i] for i in lumped_indices
    ):  # undetermined parameters keep the box's uncertainty
        spread = max(spread, box.spread)
    section: dict[str, Any] = {
        identification.unknowns[i].name: float(identification.unknowns[i].value(identification.fit.coordinates[i]))
        for i in lumped_indices
    }
    section["spread"] = math.ceil(100.0 * spread) / 100.0
    return section | ({} if box is None else _separate_parameters(identification, shield_widths, box))


def identified_intervals(
    identification: Identification, shield_widths: Array, uncertain_names: Collection[str], box: SampledBox
) -> dict[str, list[float]]:
    """Return the intervals of a sampled barrier's parameters: identified for those of ``uncertain_names`` that the
    signals determine, otherwise the box's.

    An identified interval is at least as wide as the minimum spread, because a plant changes with temperature and wear.
    """
    intervals = {name: [*ends] for name, ends in box.uncertainty.items()}
    coordinates, free_flags = identification.fit.coordinates, identification.is_free.tolist()
    for u, c, w, is_free in zip(identification.unknowns, coordinates, shield_widths, free_flags, strict=True):
        if is_free and u.name in uncertain_names:
            value, *ends = (float(u.value(coordinate)) for coordinate in (c, c - w, c + w))
            reach = max(_MIN_SPREAD * abs(value), *(abs(end - value) for end in ends))
            intervals[u.name] = [max(value - reach, u.low), min(value + reach, u.high)]
    return intervals


def _separate_parameters(identification: Identification, shield_widths: Array, box: PlantBox) -> dict[str, float]:
    """Return the nominal values and spreads of the parameters other than the lumped ones."""
    section, fields = {}, separate_parameter_fields(box)
    for u, c, w, is_free in zip(
        identification.unknowns,
        identification.fit.coordinates,
        shield_widths,
        identification.is_free.tolist(),
        strict=True,
    ):
        if u.name in fields and is_free:
            value, *ends = (float(u.value(coordinate)) for coordinate in (c, c - w, c + w))
            nominal, spread = fields[u.name]
            section[nominal] = value
            section[spread] = max(
                _MIN_SPREAD_SEPARATE, math.ceil(1e3 * max(abs(end / value - 1.0) for end in ends)) / 1e3
            )
    return section


def _samples(identification: Identification) -> Array:
    """Draw samples (SAMPLES, p) of the joint distribution, clipped to the bounds."""
    rng = np.random.default_rng(0)
    coordinates = rng.multivariate_normal(
        identification.fit.coordinates, identification.joint.covariance, SAMPLES, method="eigh"
    )
    columns = [np.clip(u.value(coordinates[:, i]), u.low, u.high) for i, u in enumerate(identification.unknowns)]
    return np.stack(columns, axis=1)


def _undetermined(
    identification: Identification, parameters: tuple[Parameter, ...], noise: dict[str, SensorNoise], plant: Plant
) -> Iterator[str]:
    if identification.connection.is_mirrored:
        yield (
            "All signs at once: this plant is symmetric, so reversing all channels gives the same signals. "
            "Turn the rig by hand to see in which direction its sensor counts."
        )
    elif not identification.connection.is_certain:
        yield "Signs: other signs explain the signals nearly as well; more excitation is needed."
    for p, is_free in zip(parameters, identification.is_free.tolist(), strict=True):
        if p.name in identification.held:
            partners = ", ".join(identification.held[p.name])
            yield f"{p.name}: indistinguishable from {partners}; kept at {p.value:.6g}."
        elif not is_free:
            yield f"{p.name}: the recorded signals do not depend on it; kept at {p.value:.6g}."
        elif p.name in IMPERFECTIONS and p.name not in _significant_imperfections(identification):
            upper_bound = f"{p.high:.3g} {p.unit}".rstrip()
            yield f"{p.name}: not significantly different from 0; at most {upper_bound}. The twin omits it."
        elif p.name in (*plant.identifiable, *IMPERFECTIONS) and p.high - p.low > 2 * _VAGUE_FACTOR * abs(p.value):
            yield f"{p.name}: between {p.low:.3g} and {p.high:.3g} {p.unit}; the excitation is insufficient."
    for name in plant.identifiable:
        if name not in [p.name for p in parameters]:
            yield f"{name}: 0 in the configuration; set an initial value."
    scale = np.sqrt(np.diag(identification.joint.covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = identification.joint.covariance / np.outer(scale, scale)
    for i, j in np.argwhere(np.triu(np.abs(correlation) > _CLOSE_CORRELATION, 1)):
        names = f"{parameters[i].name} and {parameters[j].name}"
        yield f"{names} separately (correlation {correlation[i, j]:+.3f}): always sample both together."
    for name, sensor in noise.items():
        if not sensor.alone:
            yield f"The noise of {name}: hidden by rounding to counts, well below {sensor.std:.3g}."
    lumped_names = set(plant.lumped)
    if lumped_names:
        dependent_names = [
            p.name for p in plant.parameters() if p.name not in IMPERFECTIONS and p.name not in plant.separable
        ]
        yield (
            f"{', '.join(dependent_names)} individually: motion depends only on {', '.join(plant.lumped)}; the twin's "
            "values are one choice that satisfies this."
        )


def write_result(result: Result, path: Path, refusals: Sequence[str] = ()) -> None:
    """Write a result file, with ``refusals`` as reasons why its configuration cannot use it.  Raises OSError."""
    usage = "; ".join(refusals) or "use it in a run as `identified: FILE`"
    replace_file(path, (_HEADER.format(usage) + dump_yaml(msgspec.to_builtins(result))).encode())


def read_result(path: Path) -> Result:
    """Read a result file.  Raises ConfigError with every problem."""
    return convert(load_document(path), (), Result)


def drawn_plants(result: Result, plant: Plant) -> Plant:
    """Return the samples of the joint distribution as one plant, without delay, whose parameters are arrays over the
    samples."""
    columns = np.array(result.samples).T
    values = dict(zip([p.name for p in result.parameters], columns, strict=True))
    plant_values = {n: v for n, v in values.items() if n in plant.identifiable or n in ("dry_friction", "dead_band")}
    return plant.with_identifiable(plant_values)


def twin_samples(result: Result) -> dict[str, tuple[float, ...]]:
    """Return the columns of ``device.twin.samples``: parameters, imperfections, and zeros and noise of the sensors.

    Imperfections and zeros that are not significant are omitted, as in the twin; dry friction, which only dissipates
    energy, is kept.  The noise is drawn from its interval (log-normal), independently of the other columns.
    """
    plant, zeros = result.twin["plant"], result.twin.get("sensor_zero", {})
    absent_names = {n for n in ("dead_band", "delay_s") if n not in plant}
    columns = dict(zip([p.name for p in result.parameters], zip(*result.samples, strict=True), strict=True))
    kept_columns = {
        name: column
        for name, column in columns.items()
        if name not in absent_names
        and not name.startswith((SCALE_PREFIX, LAG_PREFIX))
        and not (name.startswith(ZERO_PREFIX) and name.removeprefix(ZERO_PREFIX) not in zeros)
    }
    rng = np.random.default_rng(1)
    for sensor, std in result.twin["sensor_noise"].items():
        noise = result.noise[sensor]
        draws = std * (noise.high / noise.std) ** (rng.standard_normal(len(result.samples)) / 1.96)
        kept_columns[NOISE_PREFIX + sensor] = tuple(draws.tolist())
    return kept_columns
