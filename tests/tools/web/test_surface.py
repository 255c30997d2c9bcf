from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.policy.contract import contract_for
from onrig.tools.web.about import axes_of
from onrig.tools.web.coverage import COLUMNS, ROWS, Surfaces
from tests.runtime.policy import models
from tests.runtime.samples import MAGMAN, PENDULUM


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    contract = contract_for(PENDULUM.rig, 50.0, policy_id=3, parent_run="", training_step=0)
    model = models.policy(contract=contract)
    (tmp_path / "policies" / "3.onnx").write_bytes(models.serialized(model))
    return tmp_path


def test_each_cell_is_the_policys_action_there(folder: Path) -> None:
    surface = Surfaces(PENDULUM, folder).of(3, 0, 1)
    assert surface is not None
    packed_levels = surface["levels"]
    assert isinstance(packed_levels, list)
    levels = np.frombuffer(base64.b64decode(packed_levels[0]), np.int8).reshape(ROWS, COLUMNS)
    x, y = axes_of(PENDULUM)
    xs = x.low + (np.arange(COLUMNS) + 0.5) * (x.high - x.low) / COLUMNS
    ys = y.low + (np.arange(ROWS) + 0.5) * (y.high - y.low) / ROWS
    states = np.stack([np.tile(xs, ROWS), np.repeat(ys, COLUMNS)], axis=1).astype(np.float32)
    model = models.policy(contract=contract_for(PENDULUM.rig, 50.0, policy_id=3, parent_run="", training_step=0))
    expected = models.reference(model, states)[:, 0].reshape(ROWS, COLUMNS) / 3.0
    np.testing.assert_allclose(levels / 127, expected, atol=0.01)


def test_a_surface_is_computed_once(folder: Path) -> None:
    surfaces = Surfaces(PENDULUM, folder)
    first_surface = surfaces.of(3, 0, 1)
    (folder / "policies" / "3.onnx").unlink()
    assert surfaces.of(3, 0, 1) is first_surface


@pytest.mark.parametrize(("policy", "x", "y"), [(4, 0, 1), (-1, 0, 1), (3, 0, 0), (3, 0, 2), (3, -1, 0)])
def test_a_missing_policy_has_no_surface(folder: Path, policy: int, x: int, y: int) -> None:
    assert Surfaces(PENDULUM, folder).of(policy, x, y) is None


def test_a_file_that_is_not_a_policy_of_this_rig_has_no_surface(folder: Path) -> None:
    assert Surfaces(MAGMAN, folder).of(3, 0, 1) is None
    (folder / "policies" / "5.onnx").write_bytes(b"not a model")
    assert Surfaces(PENDULUM, folder).of(5, 0, 1) is None


def test_an_axis_is_as_wide_as_the_envelope_leaves_room() -> None:
    angle, velocity = axes_of(PENDULUM)
    assert (angle.low, angle.high) == pytest.approx((-np.pi, np.pi))
    assert (velocity.low, velocity.high) == (-17.25, 17.25)
    assert velocity.half == 30.0
