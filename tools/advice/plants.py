"""Plants of a race, drawn from the uncertainty of the rig's parameters; pair k of every candidate uses plant k."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import PlantBox, separate_parameters
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.twin.options import TwinOptions
from onrig.tools.advice.race import RUNGS

N_PLANTS: Final = max(RUNGS)
"""Number of plants drawn for every race, independent of its budget."""
_IMPERFECTIONS: Final = ("dry_friction", "dead_band", "delay_s")
_NO_UNCERTAINTY_TEXT: Final = (
    "the plant's uncertainty is unknown: run `onrig identify CONFIG` and set identified: FILE, or set "
    "limits.predicted.spread"
)


class DrawnPlants(NamedTuple):
    """Plants and their origin."""

    values: dict[str, tuple[float, ...]]
    """Values of each varied parameter, by name."""
    source: str
    """How the values were drawn, in one line."""


def draw_plants(config: RunConfig, identification_path: Path | None) -> DrawnPlants:
    """Draw plants from the joint samples of an identification or, without one, uniformly from the plants that the
    shield covers. Raises Failure if neither exists or all plants would be equal.
    """
    if identification_path is not None:
        return _draw_from_identification(config, identification_path)
    box = config.limits.predicted
    if box is None:
        raise Failure(_NO_UNCERTAINTY_TEXT)
    intervals = _intervals(box)
    if not any(low < high for low, high in intervals.values()):
        raise Failure(f"the plants of limits.predicted are all equal: {_NO_UNCERTAINTY_TEXT}")
    rng = np.random.default_rng(0)
    values = {name: tuple(rng.uniform(low, high, N_PLANTS).tolist()) for name, (low, high) in intervals.items()}
    return DrawnPlants(
        values, "uniformly from the plants of limits.predicted, since the configuration has no identification"
    )


def _intervals(box: PlantBox) -> dict[str, tuple[float, float]]:
    if isinstance(box, SampledBox):
        return dict(box.uncertainty)
    spreads = {name: (value, box.spread) for name, value in box.nominal.items()} | separate_parameters(box)
    return {
        n: (v * (1.0 - spread), v * (1.0 + spread)) for n, (v, spread) in spreads.items() if spread or n in box.nominal
    }


def _draw_from_identification(config: RunConfig, path: Path) -> DrawnPlants:
    from onrig.tools.identification.recorded import missing_library

    if problem := missing_library():
        raise Failure(problem, ExitCode.PREFLIGHT)
    from onrig.sim.identification.result import read_result

    result, plant = read_result(path), msgspec.convert(config.device.twin, TwinOptions).plant
    columns = dict(zip([p.name for p in result.parameters], zip(*result.samples, strict=True), strict=True))
    drawn_names = (*plant.identifiable, *_IMPERFECTIONS)
    values = {name: tuple(column[:N_PLANTS]) for name, column in columns.items() if name in drawn_names}
    if not any(len(set(column)) > 1 for column in values.values()):
        raise Failure(f"the samples in '{path}' are all equal: identify the rig again (`onrig identify CONFIG`)")
    return DrawnPlants(values, f"from the joint samples of {path}")
