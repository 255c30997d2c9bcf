"""Random streams: one for each (seed, role, episode), never shared, so that the order of draws does not matter."""

from __future__ import annotations

import enum

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


def stream(seed: int, role: Role, episode: int = 0) -> np.random.Generator:
    """Generator of one role in one episode of a run."""
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(role, episode)))


def device_seed(seed: int, role: Role, episode: int) -> int:
    """64-bit seed for the device's reset in one episode (training and evaluation differ)."""
    words = np.random.SeedSequence(entropy=seed, spawn_key=(role, episode)).generate_state(1, np.uint64)
    return int(words[0])
