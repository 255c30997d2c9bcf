"""Flat drawing of a MuJoCo model whose hinges are parallel: its geoms, seen along them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.plants.integrate import Array

_BODY_COLOURS: Final = ("soft", "ink", "second", "violet", "good")
_PARALLEL_TOLERANCE: Final = 1e-6
_TRAIL_S: Final = 0.9
_ELLIPSE_CORNERS: Final = 24
"""Number of corners that approximate an ellipsoid."""


def sketch_of(model: Any, observation_names: Mapping[str, str]) -> Sketch | None:
    """Return the shapes of a model in its initial pose with the motions of its joints.

    Return None if the hinges are not parallel or nothing moves.  ``observation_names``: observation of each joint's
    position, by the joint's name; joints without one are fixed.
    """
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[:] = 0.0
    mujoco.mj_kinematics(model, data)
    hinges = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE]
    normal = data.xaxis[hinges[0]].copy() if hinges else np.array([0.0, -1.0, 0.0])
    if any(np.abs(np.cross(normal, data.xaxis[j])).max() > _PARALLEL_TOLERANCE for j in hinges):
        return None
    right, up = _view(normal)
    plane = np.stack([right, up])
    turn_sign = float(np.dot(np.cross(right, up), normal))
    motions: dict[int, list[dict[str, object]]] = {0: []}
    for body in range(1, model.nbody):
        first, count = model.body_jntadr[body], model.body_jntnum[body]
        joints = [j for j in reversed(range(first, first + count)) if model.joint(j).name in observation_names]
        body_motions = [_motion(model, data, j, observation_names, plane, normal, turn_sign) for j in joints]
        motions[body] = [*body_motions, *motions[int(model.body_parentid[body])]]
    shapes: list[dict[str, Any]] = []
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        colour = _BODY_COLOURS[(body - 1) % len(_BODY_COLOURS)] if motions[body] else "line"
        shapes += [
            {**shape, "colour": colour, "motions": motions[body]} for shape in _geom_outlines(model, data, geom, plane)
        ]
    if not any(shape["motions"] for shape in shapes):
        return None
    _mark_tip(shapes)
    return {"kind": "shapes", "shapes": shapes}


def _mark_tip(shapes: list[dict[str, Any]]) -> None:
    """Accent the tip of the last link and give it a trail."""
    links = [s for s in shapes if s["form"] == "circle" and s["motions"] and "about" in s["motions"][0]]
    last_links = [s for s in links if s["motions"] is links[-1]["motions"]]
    if last_links:
        tip = max(last_links, key=lambda s: float(np.hypot(*np.subtract(s["points"][0], s["motions"][0]["about"]))))
        tip |= {"colour": "accent", "trail_s": _TRAIL_S}
        shapes.append(shapes.pop(next(i for i, s in enumerate(shapes) if s is tip)))  # above the link itself


def _view(normal: Array) -> tuple[Array, Array]:
    """Return the directions to the right and upwards, as seen along a normal: z is up unless it is the normal."""
    up = np.array([0.0, 0.0, 1.0]) if abs(normal[2]) < 0.9 else np.array([0.0, 1.0, 0.0])
    up = up - np.dot(up, normal) * normal
    up /= np.linalg.norm(up)
    right = np.cross(up, normal)
    # The positive axis points to the right.
    return (right if right[np.abs(right).argmax()] > 0 else -right), up


def _motion(
    model: Any,
    data: Any,
    joint: int,
    observation_names: Mapping[str, str],
    plane: Array,
    normal: Array,
    turn_sign: float,
) -> dict[str, object]:
    """Return the motion of a joint as a function of its position."""
    import mujoco

    observation_name = observation_names[model.joint(joint).name]
    if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
        return {"by": observation_name, "shift": (plane @ data.xaxis[joint]).tolist()}
    turn_factor = turn_sign * float(np.dot(normal, data.xaxis[joint]))
    return {"by": observation_name, "turn": turn_factor, "about": (plane @ data.xanchor[joint]).tolist()}


def _geom_outlines(model: Any, data: Any, geom: int, plane: Array) -> Iterator[dict[str, object]]:
    """Yield the outlines of a geom in the plane; none for kinds of geom without a simple outline."""
    import mujoco

    kinds = mujoco.mjtGeom
    kind, size = kinds(int(model.geom_type[geom])), model.geom_size[geom]
    position, rotation = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
    centre = plane @ position
    if kind == kinds.mjGEOM_SPHERE:
        yield {"form": "circle", "points": [centre.tolist()], "radius": float(size[0])}
        return
    if kind in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
        half_axis = plane @ rotation[:, 2] * size[1]
        ends = [centre - half_axis, centre + half_axis]
        if kind == kinds.mjGEOM_CAPSULE:
            for end in ends:
                yield {"form": "circle", "points": [end.tolist()], "radius": float(size[0])}
        length = float(np.linalg.norm(half_axis))
        if length > 0.0:
            half_side = np.array([-half_axis[1], half_axis[0]]) / length * size[0]
            corners = [ends[0] - half_side, ends[1] - half_side, ends[1] + half_side, ends[0] + half_side]
            yield {"form": "polygon", "points": [corner.tolist() for corner in corners]}
        elif kind == kinds.mjGEOM_CYLINDER:
            yield {"form": "circle", "points": [centre.tolist()], "radius": float(size[0])}
        return
    if kind == kinds.mjGEOM_BOX:
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        box_corners = position + (signs * size) @ rotation.T
        yield {"form": "polygon", "points": _hull(box_corners @ plane.T)}
    elif kind == kinds.mjGEOM_ELLIPSOID:
        # Outline of the ellipsoid's projection onto the plane.
        shape = plane @ rotation * size
        angles = np.linspace(0.0, 2.0 * np.pi, _ELLIPSE_CORNERS, endpoint=False)
        directions = np.stack([np.cos(angles), np.sin(angles)])
        reach = shape.T @ directions
        points = centre[:, None] + shape @ (reach / np.linalg.norm(reach, axis=0))
        yield {"form": "polygon", "points": points.T.tolist()}


def _hull(points: Array) -> list[list[float]]:
    """Return the corners of the convex hull of points (n, 2), in order."""
    sorted_points = sorted({(round(float(x), 9), round(float(y), 9)) for x, y in points})

    def half_hull(sequence: list[tuple[float, float]]) -> list[tuple[float, float]]:
        hull_points: list[tuple[float, float]] = []
        for p in sequence:
            while len(hull_points) > 1 and _cross_product(hull_points[-2], hull_points[-1], p) <= 0.0:
                hull_points.pop()
            hull_points.append(p)
        return hull_points[:-1]

    return [list(p) for p in (*half_hull(sorted_points), *half_hull(sorted_points[::-1]))]


def _cross_product(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
