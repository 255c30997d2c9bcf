"""Excitations remain within the given ranges, and reach them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.plants import Magman, Pendulum, Plant
from onrig.sim.plants.excitation import Excitation
from onrig.tools.load import load
from tests.sim.identification.recorded import LINE
from tests.sim.plants.spring import Spring

PENDULUM, MAGMAN = load("pendulum").rig, load("magman").rig


def commands(excitation: Excitation, observation: tuple[float, float]) -> np.ndarray:
    times = np.arange(0.0, excitation.duration_s, 0.02)
    return np.array([excitation.command(t, observation) for t in times.tolist()])


@pytest.mark.parametrize(("plant", "rig"), [(Pendulum(), PENDULUM), (Magman(), MAGMAN), (Spring(), LINE)])
def test_excitations_stay_within_the_allowed_range_and_use_it(plant: Plant, rig: object) -> None:
    ranges = {a.name: (0.5 * a.low, 0.5 * a.high) for a in rig.actuators}  # type: ignore[attr-defined]
    low, high = np.array(list(ranges.values())).T
    strongest = np.zeros(len(low))
    for excitation in plant.excitations(rig, ranges):  # type: ignore[arg-type]
        for observation in ((0.0, 0.5), (0.05, -0.5), (0.2, 0.1)):
            put_out = commands(excitation, observation)
            assert put_out.shape[1] == plant.n_actions
            assert np.all(put_out >= low - 1e-12)
            assert np.all(put_out <= high + 1e-12)
            strongest = np.maximum(strongest, put_out.max(axis=0))
    np.testing.assert_allclose(strongest, high, rtol=0.02)


@pytest.mark.parametrize(("plant", "rig"), [(Pendulum(), PENDULUM), (Magman(), MAGMAN), (Spring(), LINE)])
def test_excitations_begin_gently(plant: Plant, rig: object) -> None:
    ranges = {a.name: (a.low, a.high) for a in rig.actuators}  # type: ignore[attr-defined]
    first = plant.excitations(rig, ranges)[:2]  # type: ignore[arg-type]
    reach = max(a.high for a in rig.actuators)  # type: ignore[attr-defined]
    assert max(np.abs(commands(e, (0.04, 0.1))).max() for e in first) <= 0.16 * reach


@pytest.mark.parametrize("plant", [Pendulum(), Magman(magnets=(0.0,))])
def test_a_rig_with_other_names_gets_chirps(plant: Plant) -> None:
    blind = msgspec.structs.replace(LINE, observations=(msgspec.structs.replace(LINE.observations[0], name="x"),))
    assert "chirp of voltage, 15%" in [e.name for e in plant.excitations(blind, {"voltage": (-5.0, 5.0)})]


def test_a_ball_beyond_the_reach_of_the_coils_is_drawn_back() -> None:
    ranges = {a.name: (a.low, a.high) for a in MAGMAN.actuators}
    for excitation in Magman().excitations(MAGMAN, ranges)[1:]:
        assert excitation.command(0.39, (0.005, -0.1)) == (0.6, 0.0, 0.0, 0.0)
        assert excitation.command(0.0, (0.113, 0.1)) == (0.0, 0.0, 0.0, 0.6)
