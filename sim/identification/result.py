"""Result file: parameters for the twin, the spread for the shield, and the joint uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from onrig.hw.rig import Rig
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import load_document
from onrig.runtime.config.yaml_nodes import dump
from onrig.runtime.safety.plant_box import PlantBox, apart_fields
from onrig.runtime.safety.rules import Envelope
from onrig.sim.identification.model import ZERO, Unknown
from onrig.sim.identification.outcome import Identified
from onrig.sim.identification.plausibility import CORRELATION, residuals_of
from onrig.sim.identification.sensor_errors import sensor_errors
from onrig.sim.identification.uncertainty import half_widths
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.options import sensor_half_range

SAMPLES: Final = 200
SHIELDED: Final = 0.999
"""Confidence level of the intervals covered by the shield."""
_MIN_SPREAD: Final = 0.05
"""Minimum spread: a plant changes with temperature and wear."""
_LEAST_APART: Final = 0.01
"""Minimum spread of parameters other than the lumped ones, which are geometric."""
_CLOSE: Final = 0.95
_VAGUE: Final = 0.5
_IMPERFECTIONS: Final = ("dry_friction", "dead_band", "delay_s")
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
    found: Identified,
    plant: Plant,
    rig: Rig,
    box: PlantBox | None,
    source: str,
    envelope: Mapping[str, Envelope] = MappingProxyType({}),
) -> Result:
    """Result of an identification; ``plant`` is the initial guess, ``box`` the shield's current plant box.

    ``envelope`` is the shield's, by observation.
    """
    widths = found.half_widths
    parameters = tuple(
        _parameter(u, c, w) for u, c, w in zip(found.unknowns, found.fit.coordinates, widths, strict=True)
    )
    noise = {}
    for i, sensor in enumerate(rig.sensors):
        std, factor = float(found.noise.total[i]), math.exp(1.96 * float(found.noise.spread[i]))
        noise[sensor.name] = SensorNoise(std, std / factor, std * factor, float(found.noise.alone[i]))
    signs, channels = found.connection.signs, [*(s.name for s in rig.sensors), *(a.name for a in rig.actuators)]
    return Result(
        rig=rig.name,
        source=source,
        twin=_twin(found, parameters, plant, rig),
        predicted=_predicted(found, plant, rig, box, envelope),
        parameters=parameters,
        noise=noise,
        signs=dict(zip(channels, (*signs.sensors, *signs.actuators), strict=True)),
        not_known=tuple(_undetermined(found, parameters, noise, plant)),
        covariance=tuple(map(tuple, found.joint.covariance.tolist())),
        samples=tuple(map(tuple, _samples(found).tolist())),
    )


def _parameter(unknown: Unknown, coordinate: float, width: float) -> Parameter:
    low, high = sorted(
        float(np.clip(unknown.value(c), unknown.low, unknown.high)) for c in (coordinate - width, coordinate + width)
    )
    return Parameter(unknown.name, unknown.unit, float(unknown.value(coordinate)), low, high, unknown.logarithmic)


def _twin(found: Identified, parameters: tuple[Parameter, ...], plant: Plant, rig: Rig) -> dict[str, Any]:
    """Plant, noise and zeros, without insignificant imperfections."""
    lasting = {p.name: p.value for p in parameters if p.name in plant.identifiable or p.name in _certain(found)}
    zeros = {p.name.removeprefix(ZERO): p.value for p in parameters if _is_off(p)}
    judged = {u.name for u, known in zip(found.unknowns, found.free.tolist(), strict=True) if known}
    bare = msgspec.structs.replace(plant, **dict.fromkeys(judged.intersection(_IMPERFECTIONS), msgspec.UNSET))
    section: dict[str, Any] = {"plant": msgspec.to_builtins(bare.with_identifiable(lasting))}
    section["sensor_noise"] = {
        sensor.name: std / half
        for sensor, std in zip(rig.sensors, found.noise.alone.tolist(), strict=True)
        if (half := sensor_half_range(rig, sensor.name))
    }
    return {**section, "sensor_zero": zeros} if zeros else section


def _is_off(parameter: Parameter) -> bool:
    """Whether a sensor's zero is significant."""
    return parameter.name.startswith(ZERO) and parameter.low * parameter.high > 0


def _certain(found: Identified) -> set[str]:
    low = found.fit.coordinates - half_widths(found.joint, SHIELDED)
    return {u.name for u, least in zip(found.unknowns, low, strict=True) if u.name in _IMPERFECTIONS and least > 0}


def _predicted(
    found: Identified, plant: Plant, rig: Rig, box: PlantBox | None, envelope: Mapping[str, Envelope]
) -> dict[str, Any]:
    """Lumped parameters, their spread, the largest dead band, the longest delay, and errors of inaccurate sensors."""
    wide = half_widths(found.joint, SHIELDED)
    lumped = [i for i, u in enumerate(found.unknowns) if u.name in plant.lumped]
    missed = [r.model_error for r in residuals_of(found) if r.correlation > CORRELATION]
    spread = max([_MIN_SPREAD, *missed, *(math.expm1(wide[i]) for i in lumped)])
    if box is not None and not all(found.free[i] for i in lumped):  # undetermined parameters keep their uncertainty
        spread = max(spread, box.spread)
    section: dict[str, Any] = {
        found.unknowns[i].name: float(found.unknowns[i].value(found.fit.coordinates[i])) for i in lumped
    }
    section["spread"] = math.ceil(100.0 * spread) / 100.0
    section |= {} if box is None else _apart(found, wide, box)
    certain = _certain(found)
    most = {u.name: float(c + w) for u, c, w in zip(found.unknowns, found.fit.coordinates, wide, strict=True)}
    if "dead_band" in certain and (box is None or hasattr(box, "dead_band")):
        section["dead_band"] = most["dead_band"]
    if "delay_s" in certain:
        section["late_us"] = (0 if box is None else box.late_us) + math.ceil(1e4 * most["delay_s"]) * 100
    errors = {} if box is None else sensor_errors(found, wide, plant, rig, box, envelope)
    return section | ({"sensor_error": errors} if errors else {})


def _apart(found: Identified, wide: Array, box: PlantBox) -> dict[str, float]:
    """Nominal values and spreads of the parameters other than the lumped ones."""
    section, fields = {}, apart_fields(box)
    for u, c, w, known in zip(found.unknowns, found.fit.coordinates, wide, found.free.tolist(), strict=True):
        if u.name in fields and known:
            value, *ends = (float(u.value(at)) for at in (c, c - w, c + w))
            nominal, spread = fields[u.name]
            section[nominal] = value
            section[spread] = max(_LEAST_APART, math.ceil(1e3 * max(abs(end / value - 1.0) for end in ends)) / 1e3)
    return section


def _samples(found: Identified) -> Array:
    """Samples (SAMPLES, p) of the joint distribution, clipped to the bounds."""
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_normal(found.fit.coordinates, found.joint.covariance, SAMPLES, method="eigh")
    columns = [np.clip(u.value(drawn[:, i]), u.low, u.high) for i, u in enumerate(found.unknowns)]
    return np.stack(columns, axis=1)


def _undetermined(
    found: Identified, parameters: tuple[Parameter, ...], noise: dict[str, SensorNoise], plant: Plant
) -> Iterator[str]:
    if found.connection.mirrored:
        yield (
            "All signs at once: this plant is symmetric, so reversing all channels gives the same signals. "
            "Turn the rig by hand to see in which direction its sensor counts."
        )
    elif not found.connection.known:
        yield "Signs: other signs explain the signals nearly as well; more excitation is needed."
    for p, known in zip(parameters, found.free.tolist(), strict=True):
        if p.name in found.held:
            yield f"{p.name}: indistinguishable from {', '.join(found.held[p.name])}; it remains {p.value:.6g}."
        elif not known:
            yield f"{p.name}: the recorded signals do not depend on it; it remains {p.value:.6g}."
        elif p.name in _IMPERFECTIONS and p.name not in _certain(found):
            most = f"{p.high:.3g} {p.unit}".rstrip()
            yield f"{p.name}: not significantly different from 0; at most {most}. The twin omits it."
        elif p.name in (*plant.identifiable, *_IMPERFECTIONS) and p.high - p.low > 2 * _VAGUE * abs(p.value):
            yield f"{p.name}: between {p.low:.3g} and {p.high:.3g} {p.unit}; the excitation is insufficient."
    for name in plant.identifiable:
        if name not in [p.name for p in parameters]:
            yield f"{name}: it is 0 in the configuration; give an initial value."
    scale = np.sqrt(np.diag(found.joint.covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = found.joint.covariance / np.outer(scale, scale)
    for i, j in np.argwhere(np.triu(np.abs(correlation) > _CLOSE, 1)):
        one, other = parameters[i].name, parameters[j].name
        yield f"{one} and {other} separately (correlation {correlation[i, j]:+.3f}): always sample both together."
    for name, sensor in noise.items():
        if not sensor.alone:
            yield f"The noise of {name}: hidden by rounding to counts, well below {sensor.std:.3g}."
    lumped = set(plant.lumped)
    if lumped:
        alike = [p.name for p in plant.parameters() if p.name not in _IMPERFECTIONS and p.name not in plant.separable]
        yield (
            f"{', '.join(alike)} individually: motion depends only on {', '.join(plant.lumped)}; the twin's values are "
            "one choice that satisfies this."
        )


def write_result(result: Result, path: Path, refusals: Sequence[str] = ()) -> None:
    """Write a result file; ``refusals``: reasons why its configuration cannot use it.  Raises OSError."""
    usage = "; ".join(refusals) or "use it in a run as `identified: FILE`"
    path.write_text(_HEAD.format(usage) + dump(msgspec.to_builtins(result)), encoding="utf-8")


def read_result(path: Path) -> Result:
    """Read a result file; raises ConfigError with every problem."""
    return convert(load_document(path), (), Result)


def drawn_plants(result: Result, plant: Plant) -> Plant:
    """Samples of the joint distribution as one plant whose parameters are arrays over the samples, without delay."""
    columns = np.array(result.samples).T
    values = dict(zip([p.name for p in result.parameters], columns, strict=True))
    inside = {n: v for n, v in values.items() if n in plant.identifiable or n in ("dry_friction", "dead_band")}
    return plant.with_identifiable(inside)
