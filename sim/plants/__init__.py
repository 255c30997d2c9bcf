"""Plants: the physics of the driven systems, written once for a single system and for batches.

In YAML a plant is ``{kind: pendulum, inertia: hardware}``; every parameter defaults to the paper's value.
"""

from onrig.sim.plants.magman import Magman
from onrig.sim.plants.pendulum import Pendulum
from onrig.sim.plants.plant import Plant

__all__ = ["Magman", "Pendulum", "Plant"]
