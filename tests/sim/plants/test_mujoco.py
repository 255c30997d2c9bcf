"""A plant simulated by MuJoCo: names, its own steps, single and batched trials, and values that fit no frame."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.runtime.config.document import parse_document
from onrig.runtime.config.pieces import with_files
from onrig.runtime.config.yaml_nodes import value_at
from onrig.sim.plants.integrate import SCALAR, step
from onrig.sim.plants.mujoco import Mujoco, _solver

mujoco = pytest.importorskip("mujoco")
MODEL = Path(__file__).with_name("pole.xml")
START = (0.0, 0.1, 0.2, -0.3)


@pytest.fixture
def plant() -> Mujoco:
    return Mujoco(model=str(MODEL), names={"slide": "position", "slide_velocity": "speed"})


def test_sensors_and_names_of_the_rig_refer_to_joints(plant: Mujoco) -> None:
    assert plant.state_names == ("position", "angle", "speed", "velocity")
    assert plant.velocities == ("speed", "velocity")
    assert plant.action_names == ("push",)


def test_a_period_takes_as_many_model_steps_as_needed(plant: Mujoco) -> None:
    model = mujoco.MjModel.from_xml_path(str(MODEL))
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = START[:2], START[2:], 0.5
    mujoco.mj_step(model, data, 4)
    assert step(plant, START, (0.5,), 0.02, 1) == (*data.qpos, *data.qvel)
    velocity, turn, acceleration, _ = plant.derivative(SCALAR, START, (0.5,))
    assert (velocity, turn) == START[2:]
    assert acceleration > 0.0


def test_a_trial_in_a_batch_has_the_same_bits_as_alone(plant: Mujoco) -> None:
    rng = np.random.default_rng(0)
    columns = tuple(rng.uniform(-0.5, 0.5, (4, 3)))
    forces, mass = (rng.uniform(-1.0, 1.0, 3),), np.array([1.0, 1.5, 1.0])
    found = step(plant.varied({"mass": mass}), columns, forces, 0.02)
    for k in range(3):
        alone = plant.varied({"mass": float(mass[k])})
        state = tuple(float(x[k]) for x in columns)
        assert tuple(x[k] for x in found) == step(alone, state, (float(forces[0][k]),), 0.02)
    assert step(plant, START, (0.5,), 0.02) == step(plant, START, (0.5,), 0.02)


def test_an_angle_wraps_and_limits_are_reported(plant: Mujoco) -> None:
    turning = msgspec.structs.replace(plant, wrap=("angle",))
    _, angle, *_ = step(turning, (0.0, math.pi - 0.01, 0.0, 5.0), (0.0,), 0.02)
    assert angle < 0.0
    assert not plant.moves_freely(tuple(np.array([x]) for x in (0.995, 0.0, 0.0, 0.0)))[0]  # type: ignore[index]
    released = step(plant.released(), START, (1.0,), 0.02)
    assert released == step(plant, START, (0.0,), 0.02)


def test_a_diverged_plant_is_nan_and_does_not_restart(plant: Mujoco) -> None:
    assert any(map(math.isnan, step(plant, (0.0, 0.0, 1e8, 1e8), (0.0,), 0.02)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="hinge" axis="0 1 0"', 'type="ball"', "the joint 'hinge' is a ball joint: use hinges and slides"),
        ('name="push" ', "", "actuator 1 has no name"),
        ("<motor", '<general dyntype="filter"', "the actuator 'push' has an activation"),
        ("</mujoco>", "", "model: XML"),
    ],
)
def test_values_that_fit_no_frame_are_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = MODEL.read_text()
    if "ball" in new:
        text = text.replace('<jointpos name="angle" joint="hinge"/><jointvel name="velocity" joint="hinge"/>', "")
    (tmp_path / "model.xml").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        Mujoco(model=str(tmp_path / "model.xml"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("names", {"cart": "x"}, r"names: the model has no 'cart' \(known: slide, hinge, slide_velocity"),
        ("names", {"slide": "angle"}, "names: 'angle' is used twice"),
        ("actions", ("pull",), r"actions: the model has no 'pull' \(known: push\)"),
        ("wrap", ("turn",), "wrap: the model has no 'turn'"),
        ("sha256", "0" * 64, "has changed since this configuration was resolved"),
        ("model", "/nowhere.xml", "model: /nowhere.xml: No such file"),
    ],
)
def test_a_mistake_is_reported_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"kind": "mujoco", "model": str(MODEL), field: value}, Mujoco)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _solver.cache_clear()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ValueError, match=r"the plant 'mujoco' needs MuJoCo: pip install 'onrig\[envs\]'"):
        Mujoco(model=str(MODEL))


def test_the_model_is_next_to_the_configuration() -> None:
    text = "device: {twin: {plant: {kind: mujoco, model: pole.xml}}}"
    document = with_files(parse_document(text, "run.yaml"), MODEL.parent)
    assert value_at(document.data, ("device", "twin", "plant", "model")) == str(MODEL)
    assert len(str(value_at(document.data, ("device", "twin", "plant", "sha256")))) == 64
