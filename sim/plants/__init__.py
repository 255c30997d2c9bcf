"""Plants: the physics of what is driven, each one an object, written once for a single system and for batches.

In YAML a plant is ``{kind: pendulum, inertia: hardware}``; every parameter has the paper's value by default.  Packages
of other people add theirs by an entry point of the group ``onrig.plants``, whose object is a struct that derives from
:class:`Plant`; the shield's part of it is described in ``onrig.runtime.safety.plant_box``.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from onrig.runtime.safety.plant_box import PlantBox, with_foreign
from onrig.sim.plants.magman import Magman
from onrig.sim.plants.pendulum import Pendulum
from onrig.sim.plants.plant import Plant, uncovered

PLANTS: Final[tuple[type[Plant], ...]] = with_foreign((Pendulum, Magman), "onrig.plants")
"""The registry."""

if TYPE_CHECKING:
    AnyPlant = Plant
else:
    AnyPlant = reduce(or_, PLANTS)
"""What ``plant:`` may be; ``kind`` tells which."""


def simulated(box: PlantBox) -> type[Plant]:
    """The plant of a box's family; raises ValueError where there is none."""
    kind = _kind(type(box))
    for plant in PLANTS:
        if _kind(plant) == kind:
            return plant
    raise ValueError(f"there is no plant of kind '{kind}' to simulate")


def _kind(struct: type) -> object:
    config = getattr(struct, "__struct_config__", None)
    return None if config is None else config.tag


__all__ = ["PLANTS", "AnyPlant", "Magman", "Pendulum", "Plant", "simulated", "uncovered"]
