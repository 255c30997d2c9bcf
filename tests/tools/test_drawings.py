from __future__ import annotations

import math

import msgspec
import pytest

from onrig.runtime import registry
from onrig.runtime.config.registered import build_registered
from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.drawing import Drawing
from onrig.tools.watching.rig_text import Part, Sketch, rig_rows, transform_point
from onrig.tools.watching.snapshot import LastStep
from tests.runtime.samples import MAGMAN, PENDULUM

Settings = dict[str, object]
POLE: Settings = {"kind": "cartpole", "position": "velocity", "angle": "angle", "length": 2.0}
BEAM: Settings = {"kind": "beam", "position": "position", "angle": "velocity"}
SLIDER: Settings = {"kind": "slider", "position": "position"}
PHASE: Settings = {"kind": "phase", "x": "angle", "y": "velocity"}
KINDS: list[tuple[RunConfig, Settings]] = [
    (PENDULUM, {"kind": "pendulum", "angle": "angle", "actuator": "voltage"}),
    (PENDULUM, {"kind": "wheel", "angle": "angle"}),
    (PENDULUM, PHASE),
    (PENDULUM, POLE),
    (MAGMAN, SLIDER),
    (MAGMAN, BEAM),
    (MAGMAN, {"kind": "track", "position": "position", "magnets": {"current_1": 0.05}}),
]


def build_drawing(settings: Settings) -> Drawing:
    drawing: Drawing = build_registered(registry.DRAWINGS, settings)
    return drawing


def marker_position(config: RunConfig, settings: Settings, *observation: float) -> tuple[float, float]:
    """Position of the moving part."""
    sketch = msgspec.convert(build_drawing(settings).page_data(config), Sketch)
    scene = build_drawing(settings).scene(config)
    [positions] = [
        i
        for i, shape in enumerate(scene.shapes)
        if shape.colour == "accent" and (shape.slid_by or shape.moved_by or shape.turned_by)
    ]
    part: Part = sketch.shapes[positions]
    return transform_point(part.points[0], part, state(config, *observation))


def state(config: RunConfig, *observation: float) -> LastStep:
    return LastStep(observation, (0.0,) * len(config.rig.actuators), 0.0, 0.0, Rule.NONE)


@pytest.mark.parametrize(("config", "settings"), KINDS, ids=[str(s["kind"]) for _, s in KINDS])
def test_a_drawing_is_a_scene_of_known_signals_within_its_bounds(config: RunConfig, settings: Settings) -> None:
    data = build_drawing(settings).page_data(config)
    assert data["kind"] == settings["kind"]
    assert msgspec.json.decode(msgspec.json.encode(data))["shapes"]
    scene = build_drawing(settings).scene(config)
    for shape in scene.shapes:
        if shape.form == "text" or shape.slid_by or shape.moved_by:  # a word may be at the side
            continue
        for x, y in shape.points:
            assert scene.low[0] <= x <= scene.high[0], shape
            assert scene.low[1] <= y <= scene.high[1], shape
    rows = rig_rows(config.rig, msgspec.convert(data, Sketch), state(config, 0.0, 0.0), 60, 9)
    assert any(row.strip() for row in rows)


def test_a_pole_leans_to_the_side_given_by_its_angle() -> None:
    x, y = marker_position(PENDULUM, POLE, 0.0, 3.0)
    assert (x, y) == pytest.approx((3.0, 2.0 + 0.06 * 60.0))
    assert marker_position(PENDULUM, POLE, 0.5, 0.0)[0] > 0.5, "clockwise"
    assert marker_position(PENDULUM, {**POLE, "clockwise": False}, 0.5, 0.0)[0] < -0.5
    assert marker_position(PENDULUM, {**POLE, "upright": math.pi}, math.pi, 0.0) == pytest.approx((0.0, y))
    assert marker_position(PENDULUM, {**POLE, "upright": math.pi}, 0.0, 0.0)[1] < 2.0, "it hangs"


def test_a_ball_moves_with_its_beam() -> None:
    mid_angle = 0.5 * (MAGMAN.rig.signals[0].low + MAGMAN.rig.signals[0].high)
    level = marker_position(MAGMAN, BEAM, mid_angle + 0.03, 0.0)
    assert level[0] == pytest.approx(mid_angle + 0.03)
    assert marker_position(MAGMAN, BEAM, mid_angle + 0.03, 0.2)[1] > level[1]
    assert marker_position(MAGMAN, {**BEAM, "clockwise": True}, mid_angle + 0.03, 0.2)[1] < level[1]


def test_a_phase_plane_is_as_wide_as_the_ranges() -> None:
    o = PENDULUM.rig.signals
    assert marker_position(PENDULUM, PHASE, o[0].high, o[1].high) == pytest.approx((1.7, 1.0))
    assert marker_position(PENDULUM, PHASE, o[0].low, 0.0) == pytest.approx((-1.7, 0.0))


def test_a_wheel_in_degrees_turns_as_far_as_one_in_radians() -> None:
    angle, *other_observations = PENDULUM.rig.observations
    rig = msgspec.structs.replace(
        PENDULUM.rig, observations=(msgspec.structs.replace(angle, unit="deg"), *other_observations)
    )
    config = msgspec.structs.replace(PENDULUM, rig=rig)
    wheel: Settings = {"kind": "wheel", "angle": "angle"}
    assert marker_position(config, wheel, 90.0, 0.0) == pytest.approx(
        marker_position(PENDULUM, wheel, math.pi / 2, 0.0)
    )


def test_a_signal_missing_in_the_rig_is_named() -> None:
    for settings in (SLIDER, {**POLE, "angle": "tilt"}, {**PHASE, "y": "speed"}):
        with pytest.raises(ValueError, match=r"has no signal '(position|tilt|speed)' to draw"):
            build_drawing(settings).page_data(PENDULUM)


def test_a_target_drawn_per_episode_moves_with_its_signal() -> None:
    targets = {"targets": {"place": {"kind": "drawn", "low": 0.0, "high": 0.1, "observation": "position"}}}
    task = msgspec.convert({**msgspec.to_builtins(MAGMAN.task), **targets}, type(MAGMAN.task))
    config = msgspec.structs.replace(MAGMAN, task=task)
    phase_plane: Settings = {"kind": "phase", "x": "position", "y": "velocity"}
    for settings in (BEAM, SLIDER, phase_plane):
        shapes = build_drawing(settings).scene(config).shapes
        target_shapes = [shape for shape in shapes if shape.colour == "good" and shape.form != "text"]
        assert len(target_shapes) == 1
        assert "place" in {motion.by for motion in target_shapes[0].every_motion}


def test_a_target_of_a_distance_is_drawn() -> None:
    term = {"kind": "distance", "observation": "position", "target": 0.03, "weight": 1.0}
    task = {**msgspec.to_builtins(MAGMAN.task), "reward": {"terms": {"near": term}}}
    config = msgspec.structs.replace(MAGMAN, task=msgspec.convert(task, type(MAGMAN.task)))
    (target_shape, _) = [shape for shape in build_drawing(SLIDER).scene(config).shapes if shape.colour == "good"]
    assert target_shape.points[0] == (0.03, 0.0)


def test_custom_shapes_are_all_in_the_drawing() -> None:
    arm_settings = {
        "form": "line",
        "points": [[0.0, 0.0], [1.0, 0.0]],
        "motions": [{"by": "angle", "turn": 1.0, "about": [0.0, 0.0]}],
    }
    scene = build_drawing({"kind": "shapes", "shapes": [arm_settings]}).scene(PENDULUM)
    assert scene.low == pytest.approx((-1.15, -1.15), abs=0.02)
    assert scene.high == pytest.approx((1.15, 1.15), abs=0.02)
    arm_settings["motions"] = [{"by": "tilt", "turn": 1.0}]
    with pytest.raises(ValueError, match="has no signal 'tilt' to draw"):
        build_drawing({"kind": "shapes", "shapes": [arm_settings]}).page_data(PENDULUM)
