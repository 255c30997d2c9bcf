"""Intervals of a sampled barrier's plants from an identification."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from onrig.sim.barrier.plants import nominal_plant
from onrig.sim.identification.result import identified_intervals
from tests.sim.barrier.beam import beam


def unknown(name: str) -> Any:
    return SimpleNamespace(name=name, value=np.exp, low=0.0, high=1e9)


def test_determined_parameters_take_their_intervals_and_the_others_are_unchanged(tmp_path: Path) -> None:
    config, box = beam(tmp_path)
    uncertain = nominal_plant(config, box).identifiable
    found = SimpleNamespace(
        unknowns=[unknown("B_velocity_tilt"), unknown("A_velocity_velocity"), unknown("sensor")],
        fit=SimpleNamespace(coordinates=np.log([7.5, 0.5, 1.0])),
        is_free=np.array([True, False, True]),
    )
    for wide, reach in ((0.2, 7.5 * np.expm1(0.2)), (1e-4, 0.05 * 7.5)):
        intervals = identified_intervals(cast(Any, found), np.full(3, wide), uncertain, box)
        assert intervals == {
            "A_velocity_velocity": [0.45, 0.75],
            "B_velocity_tilt": pytest.approx([7.5 - reach, 7.5 + reach]),
        }
