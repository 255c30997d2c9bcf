"""Drawing of a MuJoCo model: its geoms are where MuJoCo places them, in every pose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.runtime.view.drawing import Shape
from onrig.sim.plants.mujoco_sketch import sketch_of
from onrig.tools.watching.rig_text import Part, transform_point
from onrig.tools.watching.snapshot import LastStep

mujoco = pytest.importorskip("mujoco")
BENCHMARK = Path("docs/examples/inverted-double-pendulum/model.xml")
LINKS = """<mujoco><worldbody>
  <geom type="plane" size="1 1 1"/>
  <body name="base" pos="0 0 1"><joint name="turn" type="hinge" axis="{axis}" pos="0 0 0.1"/>
    <geom name="ball" type="sphere" size="0.1" pos="0.1 0.2 0.3"/>
    <body name="arm" pos="0.2 0.1 0.4"><joint name="slide" type="slide" axis="0.6 0.48 0.64"/>
      <joint name="wrist" type="hinge" axis="{axis}"/>
      <geom name="tip" type="ellipsoid" size="0.1 0.2 0.1" pos="0.3 0.1 0.2"/>
      <geom name="crate" type="box" size="0.1 0.2 0.3" pos="0.1 0 0"/>
      <geom name="pin" type="cylinder" size="0.05 0.1" zaxis="{axis}"/>
    </body></body>
  </worldbody><actuator><motor name="m" joint="turn"/></actuator></mujoco>"""


def centres(model: Any, pose: dict[str, float]) -> list[tuple[float, float]]:
    """Position of the middle of each shape in the drawing."""
    names = list(pose)
    sketch = sketch_of(model, {name: name for name in names})
    assert sketch is not None
    found = []
    for shape in msgspec.convert(sketch["shapes"], tuple[Shape, ...]):
        data = msgspec.to_builtins(shape)
        moves = [{**m, "by": ("observation", names.index(m["by"]))} for m in data["motions"]]
        part = msgspec.convert({**data, "motions": moves}, Part)
        now = LastStep(tuple(pose.values()), (0.0,), 0.0, 0.0, msgspec.UNSET)  # type: ignore[arg-type]
        points = [transform_point(point, part, now) for point in part.points]
        found.append(tuple(np.mean(points, axis=0).tolist()))
    return found


@pytest.mark.parametrize(
    ("axis", "plane"), [("0 1 0", (0, 2)), ("0 -1 0", (0, 2)), ("1 0 0", (1, 2)), ("0 0 1", (0, 1))]
)
def test_shapes_are_where_the_geoms_are(axis: str, plane: tuple[int, int]) -> None:
    model = mujoco.MjModel.from_xml_string(LINKS.format(axis=axis))
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    for _ in range(5):
        pose = dict(zip(("turn", "slide", "wrist"), rng.uniform(-2.0, 2.0, 3).tolist(), strict=True))
        data.qpos[:] = [pose[model.joint(j).name] for j in range(model.njnt)]
        mujoco.mj_kinematics(model, data)
        drawn = centres(model, pose)
        for name in ("ball", "tip", "crate", "pin"):
            x, y = data.geom(name).xpos[list(plane)]
            assert min(np.hypot(x - u, y - v) for u, v in drawn) < 1e-9, name


def test_the_last_link_of_the_benchmark_has_a_tip_with_a_trail() -> None:
    model = mujoco.MjModel.from_xml_path(str(BENCHMARK))
    sketch = sketch_of(model, {"slider": "x", "hinge": "a", "hinge2": "b"})
    assert sketch is not None
    shapes = msgspec.convert(sketch["shapes"], tuple[Shape, ...])
    (tip,) = [shape for shape in shapes if shape.trail_s]
    assert tip.points[0] == pytest.approx((0.0, 1.2))
    assert [m.by for m in tip.motions] == ["b", "a", "x"]
    static = [shape for shape in shapes if not shape.motions]
    assert {shape.colour for shape in static} == {"line"}


def test_hinges_in_several_planes_and_an_unobserved_model_have_no_flat_drawing() -> None:
    text = LINKS.format(axis="0 1 0").replace('name="wrist" type="hinge" axis="0 1 0"', 'name="wrist" axis="1 0 0"')
    assert sketch_of(mujoco.MjModel.from_xml_string(text), {"turn": "a", "wrist": "b"}) is None
    assert sketch_of(mujoco.MjModel.from_xml_path(str(BENCHMARK)), {}) is None
