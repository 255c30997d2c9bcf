"""Coverage study: random twins are identified, and the results are compared with the true values.

The lumped parameters (within 30 % of the configuration's), sensor noise, zero errors, dry friction and dead band are
random, and the delay is 10 ms. In half of the recordings, the actuators are reversed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import lockstep_session
from onrig.sim.identification.identify import identify, significant_defects
from onrig.sim.identification.outcome import Identification, Implausible
from onrig.sim.identification.recording import Stretch, stretches
from onrig.sim.identification.result import result_of
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import ZERO_PREFIX, TwinOptions, sensor_half_range
from onrig.tools.identification.driving import N_GENTLE_EXCITATIONS, drive, ranges_of
from onrig.tools.identification.refusal import find_conflicts
from onrig.tools.terminal import align

SPREAD: Final = 0.3
NOISE: Final = (0.001, 0.005)
"""Range of each sensor's noise, in normalised units; the noise is log-uniformly distributed."""
ZERO_FRACTION: Final = 0.02
"""Largest zero error, in normalised units."""
FRICTION: Final = (0.015, 0.05)
"""Range of the dry friction, in normalised units of the velocity per second."""
DEAD_BAND: Final = (0.01, 0.05)
"""Range of the dead band, as a share of an actuator's range from its safe output."""
DELAY_S: Final = 0.01


class Outcome(NamedTuple):
    """Result for one twin: each unknown's true value, estimate and half-width of its interval.

    These are in the coordinate in which the unknown was estimated.
    """

    names: tuple[str, ...]
    truth: Array
    estimate: Array
    half_width: Array
    relative: Array
    """Half-width as a share of the true value; NaN for zero errors."""
    signs_correct: bool
    excluded_windows: int
    conflicts: tuple[str, ...] = ()
    """Settings to change before a run can use the result."""


class RefusedTwin(NamedTuple):
    """Twin whose identification was wrongly refused, with the problems reported."""

    problems: tuple[str, ...]


def draw_twin(options: TwinOptions, config: RunConfig, rng: np.random.Generator) -> TwinOptions:
    """Draw the options of a random twin."""
    rig, plant = config.rig, options.plant
    half_ranges = {s.name: sensor_half_range(rig, s.name) or 1.0 for s in rig.sensors}
    reach = min(max(abs(a.low - a.safe), abs(a.high - a.safe)) for a in rig.actuators)
    lumped_values = {name: value * (1.0 + rng.uniform(-SPREAD, SPREAD)) for name, value in plant.identifiable.items()}
    random_plant = plant.with_identifiable(lumped_values).varied(
        {
            "dry_friction": rng.uniform(*FRICTION) * half_ranges.get(plant.state_names[-1], 1.0),
            "dead_band": rng.uniform(*DEAD_BAND) * reach,
            "delay_s": DELAY_S,
        }
    )
    zeros = {
        n: rng.uniform(-ZERO_FRACTION, ZERO_FRACTION) * h for n, h in half_ranges.items() if n != plant.state_names[-1]
    }
    noise = {s.name: float(np.exp(rng.uniform(*np.log(NOISE)))) for s in rig.sensors}
    return msgspec.structs.replace(options, plant=random_plant, sensor_zero=zeros, sensor_noise=noise)


def run_twin(config: RunConfig, seed: int, index: int) -> Outcome | RefusedTwin:
    """Identify one random twin and compare the result with the true values."""
    rng = np.random.default_rng((seed, index))
    nominal = twin_options(config).plant
    twin = draw_twin(twin_options(config), config, rng)
    device = msgspec.structs.replace(config.device, twin=msgspec.to_builtins(twin))
    session = lockstep_session(msgspec.structs.replace(config, device=device))
    excitations = nominal.excitations(config.rig, ranges_of(config, 1.0))
    steps = drive(config, session, excitations, seed=int(rng.integers(2**63)))
    recorded_stretches = list(stretches(steps, config.rig, config.period_us))
    n_gentle_steps = round(sum(e.duration_s for e in excitations[:N_GENTLE_EXCITATIONS]) * config.rate_hz)
    if problems := significant_defects(
        nominal, config.rig, list(stretches(steps[:n_gentle_steps], config.rig, config.period_us))
    ):
        return RefusedTwin(tuple(problems))
    is_bipolar = [a.low < a.safe < a.high for a in config.rig.actuators]
    is_inverted = rng.random() < 0.5 and any(is_bipolar)
    signs = tuple(-1 if is_inverted and bipolar_output else 1 for bipolar_output in is_bipolar)
    try:
        identification = identify(
            nominal, config.rig, [reverse_actuators(s, signs) for s in recorded_stretches], twin.substeps
        )
    except Implausible as error:
        return RefusedTwin(error.problems)
    conflicts = find_conflicts(
        config,
        result_of(identification, nominal, config.rig, config.limits.predicted, "a study", config.limits.envelope),
    )
    if conflicts.unpredictable:
        return RefusedTwin(tuple(conflicts.unpredictable))
    sensor_signs_correct = identification.connection.signs.sensors == (1,) * len(config.rig.sensors)
    twin_outcome = outcome(
        identification,
        twin,
        config,
        signs_correct=sensor_signs_correct and identification.connection.signs.actuators == signs,
    )
    return twin_outcome._replace(conflicts=tuple(conflicts.settings))


def reverse_actuators(stretch: Stretch, signs: Sequence[int]) -> Stretch:
    """Multiply each actuator's recorded outputs by its sign."""
    factors = np.array(signs, np.float64)
    return stretch._replace(u_start=stretch.u_start * factors, u_end=stretch.u_end * factors)


def true_values(twin: TwinOptions, plant: Plant) -> dict[str, float]:
    """Return the true values of the unknowns, keyed by name."""
    imperfections = {n: float(getattr(plant, n) or 0.0) for n in ("dry_friction", "dead_band", "delay_s")}
    return {**plant.identifiable, **imperfections, **{ZERO_PREFIX + n: z for n, z in (twin.sensor_zero or {}).items()}}


def outcome(identification: Identification, twin: TwinOptions, config: RunConfig, *, signs_correct: bool) -> Outcome:
    """Compare a result with the true values; a sensor's noise is named ``noise_NAME``.

    Zero errors of velocity sensors are not compared, because they are estimated only if the signals suggest them.
    """
    values = true_values(twin, twin.plant)
    indices = [i for i, u in enumerate(identification.unknowns) if u.name in values]
    unknowns, half_widths = [identification.unknowns[i] for i in indices], identification.half_widths[indices]
    truth = np.array([u.coordinate(values[u.name]) for u in unknowns])
    relative = [
        np.nan if u.name.startswith(ZERO_PREFIX) else h if u.is_logarithmic else h / max(abs(t), 1e-300)
        for u, t, h in zip(unknowns, truth, half_widths, strict=True)
    ]
    sigma = [twin.noise_of(s.name) * (sensor_half_range(config.rig, s.name) or 0.0) for s in config.rig.sensors]
    total = [np.hypot(s, c.resolution / np.sqrt(12.0)) for s, c in zip(sigma, config.rig.sensors, strict=True)]
    spread = 1.96 * identification.noise.spread
    return Outcome(
        (*(u.name for u in unknowns), *(f"noise_{s.name}" for s in config.rig.sensors)),
        np.concatenate([truth, np.log(total)]),
        np.concatenate([identification.fit.coordinates[indices], np.log(identification.noise.total)]),
        np.concatenate([half_widths, spread]),
        np.concatenate([relative, spread]),
        signs_correct,
        identification.excluded_windows,
    )


def run_study(config: RunConfig, twins: int, seed: int) -> Iterator[Outcome | RefusedTwin]:
    """Yield the outcomes for random twins."""
    for index in range(twins):
        yield run_twin(config, seed, index)


def summary(results: Sequence[Outcome | RefusedTwin]) -> str:
    """Return a table of the intervals' coverage and median half-width, followed by the refusals."""
    outcomes = [o for o in results if isinstance(o, Outcome)]
    refusals = [o.problems for o in results if isinstance(o, RefusedTwin)]
    limits = [o.conflicts for o in outcomes if o.conflicts]
    lines = [f"refused: {len(refusals)} of {len(results)}", *(f"  {'; '.join(problems)}" for problems in refusals)]
    lines += [f"need other settings: {len(limits)}", *(f"  {'; '.join(problems)}" for problems in limits)]
    if not outcomes:
        return "\n".join(lines)
    names = outcomes[0].names
    covered = np.array([np.abs(o.estimate - o.truth) <= o.half_width for o in outcomes])
    median = np.median([o.relative for o in outcomes], axis=0)
    rows = [("parameter", "coverage", "median half-width")]
    rows += [
        (name, f"{coverage:.1%}", "" if np.isnan(width) else f"{width:.2%}")
        for name, coverage, width in zip(names, covered.mean(axis=0), median, strict=True)
    ]
    rows.append((f"all, {len(outcomes)} twins", f"{covered.mean():.1%}", ""))
    correct = sum(o.signs_correct for o in outcomes)
    return "\n".join([align(rows), f"signs correct: {correct} of {len(outcomes)}", *lines])
