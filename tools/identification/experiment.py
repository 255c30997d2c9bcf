"""Sequence of an identification experiment: gentle until sensors and signs are checked, then strong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from onrig.runtime.record import Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.rules import Ranges
from onrig.sim.identification.identify import connection_of, identify, significant_defects
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.recording import stretches
from onrig.sim.identification.result import result_of
from onrig.sim.plants import Plant
from onrig.sim.plants.excitation import Excitation
from onrig.sim.plants.integrate import SUBSTEPS
from onrig.sim.twin.main import twin_options
from onrig.tools.identification.driving import GENTLE
from onrig.tools.identification.refusal import conflicts_of, reversed_channels

_MIN_DRIVEN_S: Final = 8.0
"""Duration before the first fit; a result from less data is never narrow."""

Drive = Callable[[Sequence[Excitation], int], list[Step]]
"""Drives parts of an experiment; the second argument numbers the calls whose noise must differ."""


class Experiment(NamedTuple):
    """Subject and extent of an identification."""

    config: RunConfig
    plant: Plant
    """Initial guess."""
    ranges: Ranges
    until: float | None
    """Sufficient relative half-width of the plant's parameters; None for the full experiment."""

    @property
    def parts(self) -> list[Excitation]:
        """Full experiment."""
        return self.plant.excitations(self.config.rig, self.ranges)

    @property
    def brief_parts(self) -> list[Excitation]:
        """First excitations of an experiment that may end early."""
        return self.plant.brief_excitations(self.config.rig, self.ranges)

    @property
    def longest_s(self) -> float:
        """Maximum duration of the experiment."""
        parts = self.parts
        return sum(e.duration_s for e in (parts if self.until is None else [*self.brief_parts, *parts]))


def excite(experiment: Experiment, drive: Drive) -> tuple[list[Step], Identification | None]:
    """Excite gently, check sensors and signs, then excite strongly: all parts, or until the result is narrow.

    Returns the steps and the narrow result, if any.  Raises Implausible for a rig that stronger excitations would
    endanger.
    """
    parts = experiment.parts
    if experiment.until is None:
        steps = drive(parts[:GENTLE], 0)
        _check_signs(experiment, steps)
        return steps + drive(parts[GENTLE:], 0), None
    brief = experiment.brief_parts
    steps = drive(brief[:GENTLE], 0)
    driven_s = sum(e.duration_s for e in brief[:GENTLE])
    if not _check_signs(experiment, steps):
        steps += drive(parts[:GENTLE], 1)
        _check_signs(experiment, steps)
    for piece, part in enumerate((*brief[GENTLE:], *parts[GENTLE:]), 2):
        steps += drive([part], piece)
        driven_s += part.duration_s
        if driven_s >= _MIN_DRIVEN_S and (found := _result_if_narrow(experiment, steps, experiment.until)) is not None:
            return steps, found
    return steps, None


def fit_steps(config: RunConfig, plant: Plant, steps: Sequence[Step]) -> Identification:
    """Fit a plant to steps; raises Implausible, or ValueError for too few steps."""
    substeps = SUBSTEPS if config.device.twin is None else twin_options(config).substeps
    return identify(plant, config.rig, list(stretches(steps, config.rig, config.period_us)), substeps)


def _check_signs(experiment: Experiment, steps: Sequence[Step]) -> bool:
    """Return whether the signs follow from gentle excitations; raises Implausible for wrong sensors or signs."""
    config, plant = experiment.config, experiment.plant
    recorded = list(stretches(steps, config.rig, config.period_us))
    if problems := significant_defects(plant, config.rig, recorded):
        raise Implausible(problems)
    try:
        connection = connection_of(plant, config.rig, recorded)
    except ValueError:
        return False  # too short
    if problems := reversed_channels(connection, config.rig):
        raise Implausible(problems)
    return connection.certain


def _result_if_narrow(experiment: Experiment, steps: Sequence[Step], width: float) -> Identification | None:
    """Return a result with 95 % half-widths of the plant's parameters of at most ``width`` times their values, and with
    a plant that the shield can predict; None if the steps do not suffice."""
    config, plant = experiment.config, experiment.plant
    try:
        found = fit_steps(config, plant, steps)
    except ValueError:
        return None  # too short or not plausible yet; the complete experiment reports the reasons
    rows = zip(found.unknowns, found.free.tolist(), found.half_widths.tolist(), found.fit.coordinates, strict=True)
    for unknown, is_free, half_width, coordinate in rows:
        if unknown.name in plant.identifiable and unknown.name not in found.held:
            share = half_width if unknown.logarithmic else half_width / max(abs(coordinate), 1e-300)
            if not is_free or share > width:
                return None
    result = result_of(found, plant, config.rig, config.limits.predicted, "", config.limits.envelope)
    return None if conflicts_of(config, result).unpredictable else found
