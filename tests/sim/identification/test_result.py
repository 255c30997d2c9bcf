"""The file of a result: its content, and its use by a run."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.hw.rig import Observation
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.control.observe import Observer
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.identification.connections import Connection
from onrig.sim.identification.fit import Fit
from onrig.sim.identification.model import Signs, unknowns_of
from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.recording import windows_of
from onrig.sim.identification.result import Result, drawn_plants, read_result, result_of, write_result
from onrig.sim.identification.uncertainty import JointDistribution, Noise
from onrig.sim.plants import Magman, Pendulum
from onrig.sim.plants.registry import uncovered_deviations
from onrig.sim.twin.options import TwinOptions, uncovered_zeros
from tests.runtime.samples import PENDULUM
from tests.sim.identification.recorded import PERIOD_S, chirped, record
from tests.sim.plants.spring import SpringBox
from tests.sim.twin.bench import RIG

VALUES = {
    "gravity_per_s2": 30.0,
    "damping_per_s": 0.4,
    "gain_per_v_s2": 7.0,
    "dry_friction": 0.5,
    "dead_band": 0.01,
    "delay_s": 0.01,
    "zero_angle": 0.03,
}
STD = {
    "gravity_per_s2": 0.002,
    "damping_per_s": 0.03,
    "gain_per_v_s2": 0.01,
    "dry_friction": 0.02,
    "dead_band": 0.02,
    "delay_s": 1e-4,
    "zero_angle": 1e-3,
}


def identified(free: bool = True, mirrored: bool = True) -> Identification:
    unknowns = unknowns_of(Pendulum(), RIG, PERIOD_S)
    windows = windows_of([record(TwinOptions(plant=Pendulum()), 60, chirped())], 10)
    coordinates = np.array([u.coordinate(VALUES[u.name]) for u in unknowns])
    nothing = np.zeros((windows.size, 11, 2))
    flat = np.zeros((windows.size, 22, len(unknowns)))
    fit = Fit(coordinates, nothing[:, 0], nothing, flat[..., 0], flat, nothing, 1.0)
    covariance = np.diag([STD[u.name] ** 2 for u in unknowns])
    known = np.ones(len(unknowns), bool)
    known[1] = free
    noise = Noise(np.array([0.0063, 0.06]), np.array([0.00628, 0.0]), np.array([0.01, 0.01]))
    connection = Connection(Signs((1, 1), (-1,)), coordinates, True, mirrored)
    return Identification(
        unknowns,
        connection,
        fit,
        windows,
        0,
        noise,
        JointDistribution(covariance, np.ones(7)),
        known,
        np.zeros(0, bool),
    )


@pytest.fixture
def result() -> Result:
    return result_of(identified(), Pendulum(), RIG, None, "a test")


def test_a_result_is_read_back_as_written(result: Result, tmp_path: Path) -> None:
    write_result(result, tmp_path / "identified.yaml")
    assert read_result(tmp_path / "identified.yaml") == result


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("rig: pendulum\n")
    with pytest.raises(ConfigError):
        read_result(tmp_path / "other.yaml")


def test_the_twin_accepts_it(result: Result) -> None:
    options = msgspec.convert(result.twin, TwinOptions)
    for name in ("gravity_per_s2", "damping_per_s", "gain_per_v_s2"):
        assert options.plant.lumped[name] == pytest.approx(VALUES[name])
    assert options.plant.dry_friction == 0.5
    assert options.plant.delay_s == 0.01
    assert options.sensor_zero == {"angle": 0.03}
    assert options.noise_of("angle") == pytest.approx(0.00628 / np.pi)
    assert options.noise_of("velocity") == 0.0


def test_an_imperfection_that_may_be_zero_is_left_out_and_reported(result: Result) -> None:
    assert "dead_band" not in result.twin["plant"]
    assert any(line.startswith("dead_band: not significantly different from 0") for line in result.not_known)


def test_the_shield_covers_the_widest_lumped_parameter_and_the_delay(result: Result) -> None:
    assert result.predicted["gravity_per_s2"] == pytest.approx(30.0)
    assert result.predicted["spread"] == pytest.approx(np.ceil(100 * np.expm1(3.2905 * 0.03)) / 100)
    assert 10_300 <= result.predicted["late_us"] <= 10_500


def test_the_shield_covers_the_width_of_the_coils_as_well_as_their_strength() -> None:
    magman = load_run("magman")
    unknowns = unknowns_of(Magman(), magman.rig, PERIOD_S)
    at = [u.name for u in unknowns].index("c2")
    coordinates = np.array([u.coordinate(1.9e-4 if u.name == "c2" else u.start) for u in unknowns])
    one = identified()
    covariance = np.diag([1e-4 if i == at else 1e-10 for i in range(len(unknowns))])
    found = one._replace(
        unknowns=unknowns,
        fit=one.fit._replace(coordinates=coordinates),
        joint=JointDistribution(covariance, np.ones(len(unknowns))),
        is_free=np.ones(len(unknowns), bool),
        connection=one.connection._replace(signs=Signs((1, 1), (1,) * 4)),
    )
    box = magman.limits.predicted
    assert isinstance(box, MagmanBox)
    result = result_of(found, Magman(), magman.rig, box, "a test")
    assert result.predicted["c2_m2"] == pytest.approx(1.9e-4)
    assert result.predicted["c2_spread"] == pytest.approx(math.ceil(1e3 * np.expm1(3.2905 * 0.01)) / 1e3)
    shielded = msgspec.structs.replace(box, **result.predicted)
    assert list(uncovered_deviations(msgspec.convert(result.twin, TwinOptions).plant, shielded, magman.rig)) == []
    untold = result_of(
        found._replace(is_free=np.zeros(len(unknowns), bool)), Magman(), magman.rig, box, "a test"
    ).predicted
    assert untold["spread"] == box.spread, "parameters that the signals do not determine keep their spread"
    assert "c2_spread" not in untold


def test_the_shield_covers_a_dead_band_that_exists_and_none_that_may_not(result: Result) -> None:
    assert "dead_band" not in result.predicted
    wide = identified()
    at = [u.name for u in wide.unknowns].index("dead_band")
    coordinates = wide.fit.coordinates.copy()
    coordinates[at] = 0.1
    there = wide._replace(fit=wide.fit._replace(coordinates=coordinates))
    box = PENDULUM.limits.predicted
    assert isinstance(box, PendulumBox)
    found = result_of(there, Pendulum(), RIG, box, "a test")
    assert found.twin["plant"]["dead_band"] == pytest.approx(0.1)
    assert found.predicted["dead_band"] == pytest.approx(0.1 + 3.2905 * 0.02, rel=1e-3)
    shielded = msgspec.structs.replace(box, **found.predicted)
    assert list(uncovered_deviations(msgspec.convert(found.twin, TwinOptions).plant, shielded, RIG)) == []
    spring = SpringBox("position", "velocity", 1.0, 0.1, 1.0)
    assert "dead_band" not in result_of(there, Pendulum(), RIG, spring, "a test").predicted


def test_an_imperfection_of_the_initial_guess_that_was_not_found_is_removed() -> None:
    guess = Pendulum(dead_band=0.3, dry_friction=0.1)
    assert result_of(identified(), guess, RIG, None, "a test").twin["plant"].keys() >= {"dry_friction"}
    assert "dead_band" not in result_of(identified(), guess, RIG, None, "a test").twin["plant"]


def test_the_shield_covers_a_sensor_offset(result: Result) -> None:
    assert "sensor_error" not in result.predicted, "without a shield, no bound needs to be extended"
    box = PENDULUM.limits.predicted
    assert isinstance(box, PendulumBox)
    found = result_of(identified(), Pendulum(), PENDULUM.rig, box, "a test")
    shielded = msgspec.structs.replace(box, **found.predicted)
    assert shielded.sensor_error["angle"] == pytest.approx(
        0.0333 + 0.5 * RIG.sensors[0].resolution + 4 * 0.00628, abs=1e-4
    )
    twin = msgspec.convert(found.twin, TwinOptions)
    assert list(uncovered_zeros(twin, PENDULUM.rig, shielded)) == []
    noisy = msgspec.structs.replace(box, sensor_error={"angle": 0.02, "velocity": 1.2})
    more = result_of(identified(), Pendulum(), PENDULUM.rig, noisy, "a test").predicted["sensor_error"]
    assert more == {"angle": pytest.approx(0.0586, abs=1e-4)}, "zero plus noise, which exceeds the previous bound"
    (message,) = uncovered_zeros(twin, PENDULUM.rig, box)
    assert "angle is up to 0.0302 rad off, which sensor_error does not cover" in message


@pytest.mark.parametrize("cutoff_hz", [0.0, 5.0])
def test_the_shield_covers_the_noise_of_an_estimated_velocity(cutoff_hz: float) -> None:
    estimated = Observation("velocity", "rad/s", -30, 30, derivative_of="angle", cutoff_hz=cutoff_hz)
    rig = msgspec.structs.replace(PENDULUM.rig, observations=(PENDULUM.rig.observations[0], estimated))
    box = PENDULUM.limits.predicted
    assert isinstance(box, PendulumBox)
    coarse = msgspec.structs.replace(box, sensor_error={"velocity": 3.0})
    found = result_of(identified(), Pendulum(), rig, coarse, "a test").predicted["sensor_error"]["velocity"]
    observer, noise = Observer(rig, PERIOD_S), np.random.default_rng(0).normal(0.0, 0.00628, 4000)
    estimates = [observer.observe((round(n / rig.sensors[0].resolution), 0))[1] for n in noise]
    assert found == pytest.approx(3.0 + 4.0 * np.std(estimates), rel=0.05)


def test_a_table_covers_the_delay_the_friction_and_the_sensor_offset() -> None:
    box = SampledBox(table="none", place="angle", velocity="velocity", uncertainty={"mass": (0.04, 0.06)})
    found = result_of(identified(), Pendulum(), PENDULUM.rig, box, "a test").predicted
    assert found["uncertainty"] == {"mass": [0.04, 0.06], "dry_friction": pytest.approx([0.434, 0.566], abs=1e-3)}
    assert (found["late_us"], found["plant_delay_us"]) == (1000 + 10_400, 10_400)
    assert found["sensor_error"]["angle"] > 0.03


def test_undetermined_parameters_are_reported() -> None:
    text = "\n".join(result_of(identified(free=False), Pendulum(), RIG, None, "a test").not_known)
    assert "All signs at once" in text
    assert "damping_per_s: the recorded signals do not depend on it" in text
    assert "noise of velocity: hidden by rounding" in text
    assert "inertia, mass, gravity, length" in text


def test_samples_are_plants_in_a_batch(result: Result) -> None:
    drawn = drawn_plants(result, Pendulum())
    gravity = drawn.lumped["gravity_per_s2"]
    assert gravity.shape == (200,)
    assert np.std(np.log(gravity)) == pytest.approx(0.002, rel=0.2)
    assert np.min(np.asarray(drawn.dead_band)) == 0.0
