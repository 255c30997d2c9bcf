"""Registered plants, and whether a plant box covers a plant.

A plant is registered under its kind (``onrig.runtime.registry``); the shield's counterpart is described in
``onrig.runtime.safety.plant_box``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.registered import registered
from onrig.runtime.safety.plant_box import PlantBox, dead_band_of, plant_delay_s_of
from onrig.sim.plants.plant import Plant

_ROUNDING: Final = 1e-9

if TYPE_CHECKING:
    AnyPlant = Plant
else:
    AnyPlant = Annotated[Any, registered(registry.PLANTS)]
"""Type of ``plant:``, by its ``kind``."""


def plant_type_for(box: PlantBox) -> type[Plant]:
    """Return the plant of a box's family.  Raises ValueError if none is registered."""
    kind = str(type(box).__struct_config__.tag)  # type: ignore[attr-defined]
    if kind not in registry.names(registry.PLANTS):
        raise ValueError(f"no plant of kind '{kind}' to simulate")
    plant: type[Plant] = registry.load(registry.PLANTS, kind)
    return plant


def uncovered_deviations(plant: Plant, box: PlantBox, rig: Rig) -> Iterator[str]:
    """Describe how a twin's plant deviates from the family that the shield covers; empty if it is covered.

    Dry friction only dissipates energy, so it is covered.
    """
    actual = plant.lumped
    for name, nominal in box.nominal.items():
        if name not in actual:
            yield f"the twin's plant has no {name}, so the shield does not cover it"
        elif abs(actual[name] - nominal) > (box.spread + _ROUNDING) * nominal:
            low, high = nominal * (1.0 - box.spread), nominal * (1.0 + box.spread)
            yield f"the twin's plant has {name} {actual[name]:.6g}, but the shield covers {low:.6g} to {high:.6g}"
    yield from plant.box_deviations(box, rig)
    dead_band = dead_band_of(box)
    if plant.dead_band and plant.dead_band > dead_band:
        yield f"the twin's plant has a dead band of {plant.dead_band:g}, but the shield covers {dead_band:g}"
    if plant.backlash:
        yield f"the twin's plant has a backlash of {plant.backlash:g}, but the shield covers none"
    max_output = max((max(-a.low, a.high) for a in rig.actuators), default=0.0)
    if plant.saturation is not msgspec.UNSET and plant.saturation < max_output:
        yield f"the twin's plant saturates at {plant.saturation:g}, but the shield assumes actions up to {max_output:g}"
    delay_us = (plant.delay_s or 0.0) * 1e6
    if delay_us > box.late_us:
        yield f"the twin's plant acts {delay_us:g} us late, but the shield covers {box.late_us} us (late_us)"
    elif hasattr(box, "plant_delay_us") and delay_us > 1e6 * plant_delay_s_of(box) + _ROUNDING:
        covered_delay = f"{1e6 * plant_delay_s_of(box):g} us (plant_delay_us)"
        yield f"the twin's plant acts {delay_us:g} us after the device's output, but the shield covers {covered_delay}"
