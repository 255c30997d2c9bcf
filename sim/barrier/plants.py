"""Plants drawn from a configuration's stated uncertainty, with sensor errors and delays; checks of their tables."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig, with_targets
from onrig.runtime.registry import PLANTS, plugin_origin
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import error_bound, plant_delay_s_of
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.plants.integrate import Array
from onrig.sim.plants.plant import Plant
from onrig.sim.plants.registry import AnyPlant

_ROUNDING: Final = 1e-9
_MAX_RATE: Final = 0.1
"""Largest upper bound on the breach rate, from a table's test, at which the table may guard a run."""
_LOSS_PROBABILITIES: Final = (0.0, 0.1, 0.5)
"""Probabilities of losing a frame, one of which is drawn for each plant."""
_PATTERN_PERIODS: Final = 64
"""Periods after which a pattern of lost frames repeats."""


class _Described(msgspec.Struct):
    plant: AnyPlant


class Draw(NamedTuple):
    """k drawn plants, each with constant sensor errors, a constant delay and a pattern of lost frames."""

    parameters: dict[str, Array]
    """Values (k,) of each parameter, by name."""
    bias: Array
    """Error of each observation in the order of the plant's states, (n, k)."""
    late_s: Array
    """Delay from a sample to the effect of its command, (k,)."""
    plant_delay_s: Array
    """Part of ``late_s`` that passes after the device's output, (k,)."""
    initial_command: Array
    """Command in force before the first command of the simulation, (m, k)."""
    is_lost: NDArray[np.bool_]
    """Whether each period's frame is lost, (p, k): never for a full lease in a row, and repeated after p periods."""

    def select(self, lanes: NDArray[np.integer[Any]]) -> Draw:
        """Return the plants with these indices, which may repeat."""
        chosen_parameters = {name: values[lanes] for name, values in self.parameters.items()}
        delays = self.late_s[lanes], self.plant_delay_s[lanes]
        return Draw(
            chosen_parameters, self.bias[:, lanes], *delays, self.initial_command[:, lanes], self.is_lost[:, lanes]
        )


def sampled_box(config: RunConfig) -> SampledBox | None:
    """Return the plant box of a configuration if it is a sampled one, otherwise None."""
    box = config.limits.predicted
    return box if isinstance(box, SampledBox) else None


def nominal_plant(config: RunConfig, box: SampledBox) -> Plant:
    """Return the plant at the centre of the uncertainty: the box's or the twin's.  Raises ValueError without either."""
    description: Any = box.plant
    if box.plant is msgspec.UNSET:
        if config.device.twin is None:
            raise ValueError("a device on a port needs the plant that the table is computed for (plant)")
        description = config.device.twin["plant"]
    if not isinstance(description, Plant):
        description = _build_plant(description)
    plant: Plant = description
    return plant


def _build_plant(description: Any) -> Any:
    from onrig.runtime.config.registered import build_registered

    return build_registered(PLANTS, msgspec.to_builtins(description))


def plant_problems(config: RunConfig, box: SampledBox) -> Iterator[tuple[str, str]]:
    """Yield the reasons why a table cannot cover the plant, as (field under ``limits.predicted``, message) pairs."""
    try:
        plant = nominal_plant(config, box)
    except ValueError as error:
        yield "plant", str(error)
        return
    observed_names = {o.sensor or o.name for o in config.rig.observations}
    for name in plant.state_names:
        if name not in observed_names:
            yield "plant", f"no observation shows the plant's state '{name}', which the table needs"
    if len(observed_names) > len(plant.state_names):
        yield "plant", "an observation is not a state of the plant"
    if len(config.rig.actuators) != plant.n_actions:
        yield "plant", f"the plant takes {plant.n_actions} actions; the rig has {len(config.rig.actuators)} actuators"
    if "backlash" in box.uncertainty or plant.backlash:
        yield "uncertainty", "a table cannot cover backlash, because no state shows it"
    if "delay_s" in box.uncertainty:
        yield "uncertainty", "a table covers delays from 0 to plant_delay_us: set the largest delay there, not delay_s"
    if box.plant is not msgspec.UNSET and (message := uncovered_delay(plant, box)):
        yield "plant", f"the plant {message}"
    for name, ends in box.uncertainty.items():
        try:
            for end in ends:
                plant.varied({name: end})
        except KeyError:
            known_names = ", ".join(sorted({p.name for p in plant.parameters()}))
            yield "uncertainty", f"the plant has no parameter '{name}' (known: {known_names})"
        except ValueError as error:
            yield "uncertainty", str(error)


def uncovered_delay(plant: Plant, box: SampledBox) -> str | None:
    """Describe a plant's delay if it exceeds the delay that the table covers; return None otherwise."""
    delay_us, covered_us = 1e6 * (plant.delay_s or 0.0), 1e6 * plant_delay_s_of(box)
    if delay_us <= covered_us + _ROUNDING:
        return None
    return f"acts {delay_us:g} us after the device's output, but the table covers {covered_us:g} us (plant_delay_us)"


def uncertainty_deviations(plant: Plant, config: RunConfig, box: SampledBox) -> Iterator[str]:
    """Describe the parameters of a twin's plant that lie outside the configured uncertainty."""
    nominal = {p.name: float(p.value) for p in nominal_plant(config, box).parameters()}
    if message := uncovered_delay(plant, box):
        yield f"the twin's plant {message}"
    for p in plant.parameters():
        if p.name == "delay_s":
            continue
        low, high = box.uncertainty.get(p.name, (nominal.get(p.name, 0.0), nominal.get(p.name, 0.0)))
        slack = _ROUNDING * max(abs(low), abs(high))
        if not low - slack <= p.value <= high + slack:
            yield f"the twin's plant has {p.name} {p.value:.6g}, but the table covers {low:.6g} to {high:.6g}"


def observation_indices(rig: Rig, plant: Plant) -> tuple[int, ...]:
    """Return, for each of the plant's states, the index of its observation."""
    names = [o.sensor or o.name for o in rig.observations]
    return tuple(names.index(name) for name in plant.state_names)


def draw_plants(
    config: RunConfig, box: SampledBox, k: int, rng: np.random.Generator, *, includes_corners: bool
) -> Draw:
    """Draw k plants uniformly from the uncertainty; with ``includes_corners``, its corners come first, up to k of them.

    Errors and delays are drawn uniformly within their bounds; those of corner plants are at a bound.
    """
    plant, rig = nominal_plant(config, box), config.rig
    ends = [*box.uncertainty.values()]
    points = rng.uniform(-1.0, 1.0, (len(ends), k))
    is_corner = np.zeros(k, bool)
    if includes_corners and ends:
        all_corners = np.array([*itertools.islice(itertools.product((-1.0, 1.0), repeat=len(ends)), k)]).T
        points[:, : all_corners.shape[1]] = all_corners
        is_corner[: all_corners.shape[1]] = True
    parameters = {
        name: 0.5 * (low + high) + 0.5 * (high - low) * point
        for (name, (low, high)), point in zip(box.uncertainty.items(), points, strict=True)
    }
    bounds = np.array([error_bound(box, rig, rig.observations[at].name) for at in observation_indices(rig, plant)])
    error_fractions = rng.uniform(-1.0, 1.0, (len(bounds), k))
    error_fractions = np.where(is_corner, np.sign(error_fractions), error_fractions)
    max_plant_delay_s = plant_delay_s_of(box)
    late_s = (box.late_us * 1e-6 - max_plant_delay_s) * np.where(is_corner, 1.0, rng.uniform(0.0, 1.0, k))
    ranges = config.limits.context(rig, config.period_us * 1e-6).ranges
    initial_command = np.stack([rng.choice(ranges[a.name], k) for a in rig.actuators])
    is_lost = _draw_losses(k, rig.lease_periods, rng)
    plant_delay_s = np.zeros(k)
    if max_plant_delay_s:
        plant_delay_s = max_plant_delay_s * np.where(is_corner, 1.0, rng.uniform(0.0, 1.0, k))
    return Draw(
        parameters, bounds[:, None] * error_fractions, late_s + plant_delay_s, plant_delay_s, initial_command, is_lost
    )


def _draw_losses(k: int, lease: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw patterns of lost frames (p, k)."""
    is_lost = rng.random((_PATTERN_PERIODS, k)) < rng.choice(_LOSS_PROBABILITIES, k)
    for i in range(_PATTERN_PERIODS):
        is_lost[i] &= ~is_lost[max(0, i - lease + 1) : i].all(axis=0) if i >= lease - 1 else True
    is_lost[0] = False
    return np.asarray(is_lost)


def made_for(config: RunConfig, box: SampledBox) -> dict[str, str]:
    """Return a digest of each part of a configuration that its table depends on, by name."""
    limits = msgspec.to_builtins(msgspec.structs.replace(config.limits, predicted=None))
    limits.pop("on_withdrawn", None)
    plant = nominal_plant(config, box)
    delays = [] if box.plant_delay_us is msgspec.UNSET else [box.plant_delay_us]
    origin = plugin_origin(PLANTS, str(plant.__struct_config__.tag))
    code = [] if origin is None else [origin.sha256]
    parts = {
        "rig": with_targets(config.rig, ()),
        "task": [config.task.name, config.task.episode_s],
        "rate": config.period_us,
        "limits": [limits, box.range, box.nodes, box.horizon_s, box.late_us, box.sensor_error, *delays],
        "plant": [plant, sorted(box.uncertainty.items()), *code],
    }
    return {name: _digest(part) for name, part in parts.items()}


def _digest(part: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(part, order="deterministic")).hexdigest()[:16]


def table_problems(config: RunConfig, box: SampledBox) -> Iterator[tuple[str, str]]:
    """Yield (field under ``limits.predicted``, message) for a table that is missing, untested or out of date."""
    try:
        header = box.barrier().header
    except ValueError as error:
        yield "table", str(error)
        return
    expected_digests = made_for(config, box)
    changed_parts = [name for name in expected_digests if header.made_for.get(name) != expected_digests[name]]
    if changed_parts:
        mismatch = f"'{box.table}' was computed for a different {', '.join(changed_parts)}"
        yield "table", f"{mismatch}: compute it again with `onrig safety CONFIG --barrier`"
    elif header.tested is None:
        yield "table", f"'{box.table}' was not tested: compute it again with `onrig safety CONFIG --barrier`"
    elif header.tested.rate > _MAX_RATE:
        counts = f"{header.tested.breaches} of {header.tested.plants} hostile episodes breached '{box.table}'"
        remedy = "test more episodes (--tests), widen the envelope, or state less uncertainty"
        yield "table", f"{counts}: at most {_MAX_RATE:.0%} is accepted, at the test's confidence; {remedy}"
