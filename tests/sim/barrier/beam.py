"""A ball on a beam, in YAML only, and small tables for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.barrier_file import BarrierTest, Header, Values, write_barrier
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import sampled_box
from onrig.sim.barrier.table import compute
from onrig.tools.load import load_without_table

BEAM = """\
rig:
  name: beam
  sensors:
    - {name: position, unit: m, resolution: 1.0e-4}
    - {name: velocity, unit: m/s, resolution: 1.0e-3}
  actuators:
    - {name: tilt, unit: rad, resolution: 1.0e-3, low: -0.2, high: 0.2, safe: 0.0}
  observations:
    - {name: position, unit: m, low: -0.4, high: 0.4}
    - {name: velocity, unit: m/s, low: -1.0, high: 1.0}
  lease_periods: 5
task:
  name: place
  episode_s: 3.0
  start: {position: 0.0, velocity: 0.0}
  reward: {target: {position: 0.0, velocity: 0.0}, weights: {position: 1.0, velocity: 0.1}}
device:
  pace: lockstep
  twin:
    plant:
      kind: linear
      states: [position, velocity]
      actions: [tilt]
      A: [[0, 1], [0, -0.6]]
      B: [[0], [7.0]]
rate_hz: 50
episodes: 12
local_learner: false
limits:
  envelope: {position: {low: -0.36, high: 0.36}, velocity: {low: -0.6, high: 0.6}}
  fallback: {kind: damp, actuator: tilt, observation: velocity, full_at: 0.1}
  predicted:
    kind: sampled
    table: beam.barrier
    place: position
    velocity: velocity
    horizon_s: 4.0
    nodes: {position: 37, velocity: 41}
    uncertainty: {A_velocity_velocity: [0.45, 0.75], B_velocity_tilt: [6.3, 7.7]}
"""
TESTED = BarrierTest(3000, 0, 0.001, 0.95, 0.0)


def beam(folder: Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, SampledBox]:
    """Configuration of a beam whose table may be missing."""
    path = folder / "beam.yaml"
    path.write_text(BEAM)
    config = load_without_table(str(path), overrides)
    box = sampled_box(config)
    assert box is not None
    return config, box


@cache
def computed(folder: Path, plants: int = 8) -> tuple[Header, Values]:
    """A table of the beam, once per folder."""
    config, box = beam(folder)
    return compute(config, box, plants, 0, lambda share: None, workers=1)


def with_table(folder: Path, tested: BarrierTest | None = TESTED) -> tuple[RunConfig, SampledBox]:
    """The beam with its table, as if it had been tested."""
    header, values = computed(folder)
    plain: dict[str, Any] = {name: getattr(header, name) for name in header.__struct_fields__}
    write_barrier(folder / "beam.barrier", Header(**{**plain, "tested": tested}), values)
    return beam(folder)
