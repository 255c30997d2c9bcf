"""What the memory of a run holds, and what its policy does there: the numbers behind the picture of its coverage."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Observation
from onrig.runtime.policy.refusal import ModelRefused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.checkpoint.identity import identity_of
from onrig.runtime.replay.checkpoint.restore import restore
from onrig.runtime.replay.layout import Layout
from onrig.runtime.replay.memory import Memory
from onrig.runtime.run_config import RunConfig, capacity_of

Floats = NDArray[np.float32]

CELLS: Final = 40
"""Cells along each axis in which coverage is counted."""
_MOST_BYTES: Final = 2 << 30
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
    layout = Layout(len(config.rig.signals), len(config.rig.actuators))
    if capacity_of(config) * layout.row_bytes > _MOST_BYTES:
        return "the memory is too large to be read for a report"
    try:
        memory = Memory(config)
        restored = restore(folder / "buffer", memory, identity_of(memory, config.seed))
    except (CheckpointError, OSError) as error:
        return f"the checkpoint cannot be read: {error}"
    stored = memory.storage.stored
    if restored is None or not stored:
        return "there is no checkpoint of it"
    storage = memory.storage
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
    try:
        session = PolicySession((folder / "policies" / f"{found}.onnx").read_bytes())
    except (OSError, ModelRefused):
        return None
    signals = config.rig.signals
    if session.observation.shape[1] != len(signals):
        return None
    rest = np.array([_held(config, o) for o in signals], np.float32)
    across, up = (np.linspace(signals[i].low, signals[i].high, _NODES) for i in axes)
    action = np.empty((session.action.shape[1], _NODES, _NODES), np.float32)
    for (j, b), (i, a) in itertools.product(enumerate(up), enumerate(across)):
        session.observation[0] = rest
        session.observation[0, list(axes)] = a, b
        session.run()
        action[:, j, i] = session.action[0]
    held = tuple((o.name, float(v)) for k, (o, v) in enumerate(zip(signals, rest, strict=True)) if k not in axes)
    return Surface(found, across, up, action, held)


def _held(config: RunConfig, observation: Observation) -> float:
    """What an observation that is not shown is taken to be: its target, or the middle of its range."""
    return config.task.reward.target.get(observation.name, 0.5 * (observation.low + observation.high))
