"""Plants: the physics of what is driven, each written once for a single system and for batches.

In YAML a plant is ``{kind: pendulum, inertia: hardware}``; every parameter has the paper's value by default.
"""

from onrig.sim.plants.magman import Magman
from onrig.sim.plants.pendulum import Pendulum

Plant = Pendulum | Magman
"""What ``plant:`` may be; ``kind`` tells which."""

__all__ = ["Magman", "Pendulum", "Plant"]
