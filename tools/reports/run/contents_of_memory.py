"""What the memory of a run holds, and what its policy does there: the numbers behind the picture of its coverage."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Observation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.run_view import RunView
from onrig.tools.web.coverage import surface_actions

Floats = NDArray[np.float32]

CELLS: Final = 40
"""Cells along each axis in which coverage is counted."""
_SHOWN: Final = 8000
_NODES: Final = 61


class Contents(NamedTuple):
    """A sample of the memory, spread evenly over its slots, by two of its observations (SI units)."""

    x: Observation
    y: Observation
    points: Floats
    """(n, 2)"""
    age: NDArray[np.int64]
    """(n,): writes since each was written."""
    exploration: Floats
    """(n,)"""
    stored: int
    capacity: int
    covered: float
    """Fraction of the cells of the two observations' range that hold an experience at all."""


class Surface(NamedTuple):
    """A policy's action over the range of two observations, the others held."""

    policy_id: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    action: Floats
    """(m, len(y), len(x)), SI units."""
    held: tuple[tuple[str, float], ...]
    """What the other observations were."""


def shown_axes(config: RunConfig) -> tuple[int, int] | None:
    """The two observations that are shown: the rig's first two; None where it has only one."""
    return (0, 1) if len(config.rig.observations) >= 2 else None


def read_contents(folder: Path, config: RunConfig) -> Contents | str:
    """Restore the memory from the last checkpoint; in words why there is nothing to show."""
    axes = shown_axes(config)
    if axes is None:
        return "the rig has a single observation"
    memory = RunView(folder, config).memory()
    if isinstance(memory, str):
        return memory
    storage = memory.storage
    stored = storage.stored
    x, y = (config.rig.observations[i] for i in axes)
    slots = np.linspace(0, stored - 1, min(stored, _SHOWN)).astype(np.int64)
    every = np.stack([_in_si(storage.observation[:stored, i], config.rig.signals[i]) for i in axes], axis=1)
    return Contents(
        x,
        y,
        every[slots].copy(),
        storage.inserted - storage.number(slots),
        storage.exploration[slots].copy(),
        stored,
        storage.capacity,
        _covered(every, x, y),
    )


def _in_si(normalized: Floats, observation: Observation) -> Floats:
    """The memory keeps observations as the learner sees them: [low, high] as [-1, 1]."""
    half = 0.5 * (observation.high - observation.low)
    return np.asarray(observation.low + half * (1.0 + normalized), np.float32)


def _covered(points: Floats, x: Observation, y: Observation) -> float:
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], CELLS, ((x.low, x.high), (y.low, y.high)))
    return float(np.count_nonzero(counts)) / counts.size


def read_surface(folder: Path, config: RunConfig, active: int | None) -> Surface | None:
    """Ask the run's last policy over the range of the observations that are shown; None where there is none."""
    axes, found = shown_axes(config), None
    with contextlib.suppress(OSError):
        ids = sorted(int(p.stem) for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal())
        found = active if active in ids else ids[-1] if ids else None
    if axes is None or found is None:
        return None
    signals = config.rig.signals
    held = np.array([_held(config, o) for o in signals], np.float32)
    across, up = (np.linspace(signals[i].low, signals[i].high, _NODES) for i in axes)
    path = folder / "policies" / f"{found}.onnx"
    action = surface_actions(path, config, axes, across.tolist(), up.tolist(), held.tolist())
    if action is None:
        return None
    others = tuple((o.name, float(v)) for k, (o, v) in enumerate(zip(signals, held, strict=True)) if k not in axes)
    return Surface(found, across, up, action, others)


def _held(config: RunConfig, observation: Observation) -> float:
    """What an observation that is not shown is taken to be: its target, or the middle of its range."""
    return config.task.reward.target.get(observation.name, 0.5 * (observation.low + observation.high))
