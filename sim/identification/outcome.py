"""Outcome of an identification: estimates with their uncertainty, or the reasons for their absence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.sim.identification.connections import Connection
from onrig.sim.identification.fit import Fit
from onrig.sim.identification.model import Unknown
from onrig.sim.identification.recording import Windows
from onrig.sim.identification.uncertainty import JointDistribution, Noise, half_widths
from onrig.sim.plants.integrate import Array


class Implausible(ValueError):
    """Raised for signals that contradict each other or the plant, or determine no parameter; ``problems`` lists why."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Identification(NamedTuple):
    """Result of an identification."""

    unknowns: tuple[Unknown, ...]
    connection: Connection
    fit: Fit
    windows: Windows
    excluded_windows: int
    """Number of windows excluded from the fit, for example because of contact with a wall or a hand."""
    noise: Noise
    joint: JointDistribution
    is_free: NDArray[np.bool_]
    """Mask (p,) of the identifiable parameters; the others keep their initial values."""
    is_unexplained: NDArray[np.bool_]
    """Mask of unexplained windows, in time order, among the windows that touch no wall or lie impossibly far beyond
    one."""
    held: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Parameters that the signals cannot distinguish from others, each mapped to those others; the parameters keep
    their initial values."""

    @property
    def half_widths(self) -> Array:
        """Half-widths (p,) of the 95 % intervals, in the coordinates."""
        return half_widths(self.joint)
