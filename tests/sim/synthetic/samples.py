"""Transitions, models and draws for the tests of this package."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.memory.transitions import Transitions
from onrig.runtime.run_config import RunConfig
from onrig.sim.synthetic.experiences import Draws
from onrig.sim.synthetic.model import PlantModel
from onrig.sim.twin.main import twin_options
from tests.runtime.samples import MAGMAN, PENDULUM

RUNS = {"pendulum": PENDULUM, "magman": MAGMAN}


def model_of(config: RunConfig, rig: Rig | None = None) -> PlantModel:
    twin = twin_options(config)
    return PlantModel(rig or config.rig, config.task, twin.plant, config.period_us * 1e-6, twin.substeps)


def measured(config: RunConfig, n: int, seed: int = 0) -> Transitions:
    """Synthetic transitions, which no plant would produce, each with its own values."""
    rng = np.random.default_rng(seed)
    n_obs, n_act = len(config.rig.signals), len(config.rig.actuators)

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    steps = round(config.task.episode_s * config.rate_hz)
    return Transitions(
        observation=floats(n, n_obs),
        action=floats(n, n_act),
        reward=floats(n),
        next_observation=floats(n, n_obs),
        flags=np.zeros(n, np.uint32),
        policy_id=np.full(n, 7, np.uint32),
        exploration=np.abs(floats(n)),
        episode=(1 + np.arange(n) // steps).astype(np.uint32),
        step=(np.arange(n) % steps).astype(np.uint32),
        behaviour=np.zeros((n, 0), np.float32),
    )


def draws(config: RunConfig, n: int, seed: int = 1) -> Draws:
    rng = np.random.default_rng(seed)
    n_obs, n_act = len(config.rig.signals), len(config.rig.actuators)
    return Draws(rng.random(n), rng.random(n), rng.random((n, n_obs)), rng.random((n, n_act)))


def rows_equal(a: Transitions, b: Transitions) -> npt.NDArray[np.bool_]:
    """Which transitions are the same bit for bit in every column."""
    n = len(a.reward)
    same = np.ones(n, bool)
    for x, y in zip(a, b, strict=True):
        same &= (x.view(np.uint32) == y.view(np.uint32)).reshape(n, x[:1].size).all(axis=1)
    return same


def with_fine_sensors(config: RunConfig) -> RunConfig:
    """A rig with negligible quantisation."""
    rig = config.rig
    channels = {
        name: tuple(msgspec.structs.replace(c, resolution=c.resolution * 1e-3) for c in getattr(rig, name))
        for name in ("sensors", "actuators")
    }
    return msgspec.structs.replace(config, rig=msgspec.structs.replace(rig, **channels))
