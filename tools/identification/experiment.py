"""Sequence of an identification experiment: gentle excitations to check sensors and signs, followed by strong ones."""

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
from onrig.tools.identification.driving import N_GENTLE_EXCITATIONS
from onrig.tools.identification.refusal import find_conflicts, reversed_channels

_MIN_DRIVEN_S: Final = 8.0
"""Time for which the plant is driven before the first fit, because less data never give narrow intervals."""

ExcitationDriver = Callable[[Sequence[Excitation], int], list[Step]]
"""Function that drives part of an experiment; its second argument numbers the parts, so that their noise differs."""


class Experiment(NamedTuple):
    """Subject and duration of an identification experiment."""

    config: RunConfig
    plant: Plant
    """Initial guess."""
    ranges: Ranges
    until: float | None
    """Sufficient relative half-width of the plant's parameters; None for the full experiment."""

    @property
    def excitations(self) -> list[Excitation]:
        """Excitations of the full experiment."""
        return self.plant.excitations(self.config.rig, self.ranges)

    @property
    def brief_excitations(self) -> list[Excitation]:
        """Initial excitations of an experiment that may end early."""
        return self.plant.brief_excitations(self.config.rig, self.ranges)

    @property
    def longest_s(self) -> float:
        """Maximum duration of the experiment."""
        excitations = self.excitations
        return sum(
            e.duration_s for e in (excitations if self.until is None else [*self.brief_excitations, *excitations])
        )


def excite(experiment: Experiment, drive: ExcitationDriver) -> tuple[list[Step], Identification | None]:
    """Excite gently, check sensors and signs, then excite strongly until the intervals are narrow or the sequence ends.

    Returns the steps and, if the intervals became narrow, the result. Raises Implausible if stronger excitations would
    endanger the rig.
    """
    excitations = experiment.excitations
    if experiment.until is None:
        steps = drive(excitations[:N_GENTLE_EXCITATIONS], 0)
        _check_signs(experiment, steps)
        return steps + drive(excitations[N_GENTLE_EXCITATIONS:], 0), None
    brief_excitations = experiment.brief_excitations
    steps = drive(brief_excitations[:N_GENTLE_EXCITATIONS], 0)
    driven_s = sum(e.duration_s for e in brief_excitations[:N_GENTLE_EXCITATIONS])
    if not _check_signs(experiment, steps):
        steps += drive(excitations[:N_GENTLE_EXCITATIONS], 1)
        _check_signs(experiment, steps)
    for piece, excitation in enumerate(
        (*brief_excitations[N_GENTLE_EXCITATIONS:], *excitations[N_GENTLE_EXCITATIONS:]), 2
    ):
        steps += drive([excitation], piece)
        driven_s += excitation.duration_s
        if (
            driven_s >= _MIN_DRIVEN_S
            and (narrow_result := _result_if_narrow(experiment, steps, experiment.until)) is not None
        ):
            return steps, narrow_result
    return steps, None


def fit_steps(
    config: RunConfig, plant: Plant, steps: Sequence[Step], report: Callable[[float], None] = lambda done: None
) -> Identification:
    """Fit a plant to steps. Raises Implausible, or ValueError if there are too few steps."""
    substeps = SUBSTEPS if config.device.twin is None else twin_options(config).substeps
    return identify(plant, config.rig, list(stretches(steps, config.rig, config.period_us)), substeps, report)


def _check_signs(experiment: Experiment, steps: Sequence[Step]) -> bool:
    """Return whether these gentle excitations suffice to determine the signs.

    Raises Implausible if sensors or signs are wrong.
    """
    config, plant = experiment.config, experiment.plant
    recorded_stretches = list(stretches(steps, config.rig, config.period_us))
    if problems := significant_defects(plant, config.rig, recorded_stretches):
        raise Implausible(problems)
    try:
        connection = connection_of(plant, config.rig, recorded_stretches)
    except ValueError:
        return False  # too short
    if problems := reversed_channels(connection, config.rig):
        raise Implausible(problems)
    return connection.is_certain


def _result_if_narrow(experiment: Experiment, steps: Sequence[Step], width: float) -> Identification | None:
    """Return the result if its intervals are narrow enough and the shield can predict the plant; otherwise None.

    The 95 % half-widths must be at most ``width`` times the plant's parameters.
    """
    config, plant = experiment.config, experiment.plant
    try:
        identification = fit_steps(config, plant, steps)
    except ValueError:
        return None  # too few steps, or not plausible yet; the full experiment reports the reasons
    rows = zip(
        identification.unknowns,
        identification.is_free.tolist(),
        identification.half_widths.tolist(),
        identification.fit.coordinates,
        strict=True,
    )
    for unknown, is_free, half_width, coordinate in rows:
        if unknown.name in plant.identifiable and unknown.name not in identification.held:
            relative_half_width = half_width if unknown.is_logarithmic else half_width / max(abs(coordinate), 1e-300)
            if not is_free or relative_half_width > width:
                return None
    result = result_of(identification, plant, config.rig, config.limits.predicted, "", config.limits.envelope)
    return None if find_conflicts(config, result).unpredictable else identification
