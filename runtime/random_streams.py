"""Random streams: one per (seed, role, episode), never shared, so that the order of draws does not matter."""

from __future__ import annotations

import enum
from typing import Final

import numpy as np


class Role(enum.IntEnum):
    """Purpose of a stream; the numbers are part of the reproducibility contract and never change."""

    EXPLORATION = 1
    PLANT_TRAIN = 2
    PLANT_EVAL = 3
    KEEPER = 4
    SAMPLER = 5
    NETWORKS = 6
    PROBES = 7
    SYNTHETIC = 8
    TARGETS_TRAIN = 9
    TARGETS_EVAL = 10


_START_CHILD: Final = 2
_TARGETS_CHILD: Final = 3
_PLANT_CHILD: Final = 4
"""Indices of the seeds spawned from a reset seed; those with lower indices determine the noise of the twin's sensors
and actuators."""


def stream(seed: int, role: Role, episode: int = 0, *within: int) -> np.random.Generator:
    """Return the generator for one role in one episode of a run; ``within`` distinguishes the streams of a role with
    several."""
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(role, episode, *within)))


def device_seed(seed: int, role: Role, episode: int) -> int:
    """Return the 64-bit seed for the device's reset in one episode (training and evaluation episodes differ)."""
    words = np.random.SeedSequence(entropy=seed, spawn_key=(role, episode)).generate_state(1, np.uint64)
    return int(words[0])


def start_stream(reset_seed: int) -> np.random.Generator:
    """Return the generator of the start state for a reset with this seed (``device_seed``)."""
    return np.random.default_rng(np.random.SeedSequence(entropy=reset_seed, spawn_key=(_START_CHILD,)))


def target_stream(reset_seed: int, number: int) -> np.random.Generator:
    """Return the generator of the target with this number, in an episode identified only by the seed of its reset."""
    return np.random.default_rng(np.random.SeedSequence(entropy=reset_seed, spawn_key=(_TARGETS_CHILD, number)))


def plant_stream(reset_seed: int) -> np.random.Generator:
    """Return the generator that draws a twin's plant for a reset with this seed, if the twin draws its plants."""
    return np.random.default_rng(np.random.SeedSequence(entropy=reset_seed, spawn_key=(_PLANT_CHILD,)))
