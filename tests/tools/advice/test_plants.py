"""Plants that a race draws."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.exit_codes import Failure
from onrig.runtime.run_loading import find_identification
from onrig.sim.identification.result import Result, result_of, write_result
from onrig.sim.plants import Pendulum
from onrig.tools.advice.plants import N_PLANTS, draw_plants
from onrig.tools.load import load
from tests.sim.identification.test_result import VALUES, identified
from tests.sim.twin.bench import RIG


def write_identification(folder: Path, result: Result) -> Path:
    path = folder / "identified.yaml"
    write_result(result, path)
    return path


@pytest.fixture(scope="module")
def result() -> Result:
    return result_of(identified(), Pendulum(), RIG, None, "a test")


def test_without_an_identification_plants_are_those_covered_by_the_shield() -> None:
    config = load("pendulum")
    plants = draw_plants(config, None)
    box = config.limits.predicted
    assert box is not None
    assert plants.values.keys() == box.nominal.keys()
    for name, nominal_value in box.nominal.items():
        values = np.array(plants.values[name])
        assert len(values) == N_PLANTS
        assert (
            0.7 * nominal_value
            <= values.min()
            < 0.8 * nominal_value
            < 1.2 * nominal_value
            < values.max()
            <= 1.3 * nominal_value
        )
    assert plants == draw_plants(config, None)


def test_an_identification_gives_its_joint_samples(result: Result, tmp_path: Path) -> None:
    plants = draw_plants(load("pendulum"), write_identification(tmp_path, result))
    assert plants.values.keys() == VALUES.keys() - {"zero_angle"}
    names = [p.name for p in result.parameters]
    for k in (0, 13, N_PLANTS - 1):
        assert all(plants.values[name][k] == result.samples[k][names.index(name)] for name in plants.values)


def test_the_identification_of_a_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it.yaml").touch()
    (tmp_path / "run.yaml").write_text("identified: it.yaml\n")
    assert find_identification(str(tmp_path / "run.yaml"), ()) == tmp_path / "it.yaml"
    assert find_identification("pendulum", ()) is None
    monkeypatch.chdir(tmp_path)
    identification_path = find_identification("pendulum", ("identified=it",))
    assert identification_path is not None
    assert identification_path.resolve() == tmp_path / "it.yaml"


def test_zero_width_intervals_are_refused(result: Result, tmp_path: Path) -> None:
    constant_samples = msgspec.structs.replace(result, samples=result.samples[:1] * 200)
    with pytest.raises(Failure, match=r"identified.yaml' are all equal: identify the rig again"):
        draw_plants(load("pendulum"), write_identification(tmp_path, constant_samples))
    with pytest.raises(Failure, match=r"limits.predicted are all equal: .* run `onrig identify CONFIG`"):
        draw_plants(load("pendulum", ["limits.predicted.spread=0"]), None)


def test_a_configuration_without_plant_uncertainty_is_refused() -> None:
    with pytest.raises(Failure, match=r"run `onrig identify CONFIG` and set identified: FILE"):
        draw_plants(load("pendulum", ["limits.predicted=null"]), None)
