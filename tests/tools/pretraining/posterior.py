"""A result of `onrig identify` for the shipped pendulum, with a posterior of any width."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onrig.sim.identification.result import Parameter, Result, SensorNoise, write_result
from onrig.sim.plants import Pendulum

STD = 0.01


def pendulum_result(std: float = STD, *, samples: int = 200, widths: bool = True) -> Result:
    """Result near the nominal plant, with dry friction as its only imperfection."""
    lumped_parameters = {**Pendulum().lumped, "dry_friction": 0.5}
    rng = np.random.default_rng(3)
    draws = np.array(list(lumped_parameters.values())) * np.exp(std * rng.standard_normal((samples, 4)))
    parameters = tuple(
        Parameter(name, "", value, value * (1 - 2 * std * widths), value * (1 + 2 * std * widths), True)
        for name, value in lumped_parameters.items()
    )
    if not widths:
        draws[:] = list(lumped_parameters.values())
    return Result(
        rig="pendulum",
        source="a test",
        twin={"plant": {"kind": "pendulum", "dry_friction": 0.5}, "sensor_noise": {"angle": 0.002}},
        predicted={"spread": 0.05},
        parameters=parameters,
        noise={"angle": SensorNoise(0.0063, 0.006, 0.0066, 0.0063)},
        signs={"angle": 1, "velocity": 1, "voltage": 1},
        not_known=(),
        covariance=tuple(map(tuple, (std**2 * np.eye(4)).tolist())),
        samples=tuple(map(tuple, draws.tolist())),
    )


def write_pendulum_result(folder: Path, result: Result | None = None) -> Path:
    """File of a result."""
    write_result(result or pendulum_result(), folder / "identified.yaml")
    return folder / "identified.yaml"
