"""Flat drawing of a MuJoCo model whose hinges are parallel: its geoms, seen along them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.plants.integrate import Array

_COLOURS: Final = ("soft", "ink", "second", "violet", "good")
_PARALLEL: Final = 1e-6
_TRAIL_S: Final = 0.9
_CORNERS: Final = 24
"""Number of corners that approximate an ellipsoid."""


def sketch_of(model: Any, seen: Mapping[str, str]) -> Sketch | None:
    """Shapes of a model in its initial pose with the motions of its joints; None unless these are in one plane.

    ``seen``: observation of each joint's position, by the joint's name; joints without one are drawn fixed.
    """
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[:] = 0.0
    mujoco.mj_kinematics(model, data)
    hinges = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE]
    normal = data.xaxis[hinges[0]].copy() if hinges else np.array([0.0, -1.0, 0.0])
    if any(np.abs(np.cross(normal, data.xaxis[j])).max() > _PARALLEL for j in hinges):
        return None
    across, up = _view(normal)
    plane = np.stack([across, up])
    towards = float(np.dot(np.cross(across, up), normal))
    motions: dict[int, list[dict[str, object]]] = {0: []}
    for body in range(1, model.nbody):
        first, count = model.body_jntadr[body], model.body_jntnum[body]
        joints = [j for j in reversed(range(first, first + count)) if model.joint(j).name in seen]
        own = [_motion(model, data, j, seen, plane, normal, towards) for j in joints]
        motions[body] = [*own, *motions[int(model.body_parentid[body])]]
    shapes: list[dict[str, Any]] = []
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        colour = _COLOURS[(body - 1) % len(_COLOURS)] if motions[body] else "line"
        shapes += [{**shape, "colour": colour, "motions": motions[body]} for shape in _flat(model, data, geom, plane)]
    if not any(shape["motions"] for shape in shapes):
        return None
    _mark_tip(shapes)
    return {"kind": "shapes", "shapes": shapes}


def _mark_tip(shapes: list[dict[str, Any]]) -> None:
    """Accent the end of the last link, with a trail."""
    links = [s for s in shapes if s["form"] == "circle" and s["motions"] and "about" in s["motions"][0]]
    own = [s for s in links if s["motions"] is links[-1]["motions"]]
    if own:
        tip = max(own, key=lambda s: float(np.hypot(*np.subtract(s["points"][0], s["motions"][0]["about"]))))
        tip |= {"colour": "accent", "trail_s": _TRAIL_S}
        shapes.append(shapes.pop(next(i for i, s in enumerate(shapes) if s is tip)))  # above the link itself


def _view(normal: Array) -> tuple[Array, Array]:
    """Directions to the right and upwards, as seen along a normal: z is up unless that is the normal."""
    up = np.array([0.0, 0.0, 1.0]) if abs(normal[2]) < 0.9 else np.array([0.0, 1.0, 0.0])
    up = up - np.dot(up, normal) * normal
    up /= np.linalg.norm(up)
    across = np.cross(up, normal)
    # The positive axis points to the right.
    return (across if across[np.abs(across).argmax()] > 0 else -across), up


def _motion(
    model: Any, data: Any, joint: int, seen: Mapping[str, str], plane: Array, normal: Array, towards: float
) -> dict[str, object]:
    """Motion of a joint, as a function of its position."""
    import mujoco

    by = seen[model.joint(joint).name]
    if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
        return {"by": by, "shift": (plane @ data.xaxis[joint]).tolist()}
    turn = towards * float(np.dot(normal, data.xaxis[joint]))
    return {"by": by, "turn": turn, "about": (plane @ data.xanchor[joint]).tolist()}


def _flat(model: Any, data: Any, geom: int, plane: Array) -> Iterator[dict[str, object]]:
    """Outlines of a geom in the plane; none for kinds without a simple one."""
    import mujoco

    kinds = mujoco.mjtGeom
    kind, size = kinds(int(model.geom_type[geom])), model.geom_size[geom]
    place, turned = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
    centre = plane @ place
    if kind == kinds.mjGEOM_SPHERE:
        yield {"form": "circle", "points": [centre.tolist()], "radius": float(size[0])}
        return
    if kind in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
        along = plane @ turned[:, 2] * size[1]
        ends = [centre - along, centre + along]
        if kind == kinds.mjGEOM_CAPSULE:
            for end in ends:
                yield {"form": "circle", "points": [end.tolist()], "radius": float(size[0])}
        length = float(np.linalg.norm(along))
        if length > 0.0:
            side = np.array([-along[1], along[0]]) / length * size[0]
            corners = [ends[0] - side, ends[1] - side, ends[1] + side, ends[0] + side]
            yield {"form": "polygon", "points": [corner.tolist() for corner in corners]}
        elif kind == kinds.mjGEOM_CYLINDER:
            yield {"form": "circle", "points": [centre.tolist()], "radius": float(size[0])}
        return
    if kind == kinds.mjGEOM_BOX:
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        corners3 = place + (signs * size) @ turned.T
        yield {"form": "polygon", "points": _hull(corners3 @ plane.T)}
    elif kind == kinds.mjGEOM_ELLIPSOID:
        # Outline of the ellipsoid's projection onto the plane.
        shape = plane @ turned * size
        angles = np.linspace(0.0, 2.0 * np.pi, _CORNERS, endpoint=False)
        directions = np.stack([np.cos(angles), np.sin(angles)])
        reach = shape.T @ directions
        points = centre[:, None] + shape @ (reach / np.linalg.norm(reach, axis=0))
        yield {"form": "polygon", "points": points.T.tolist()}


def _hull(points: Array) -> list[list[float]]:
    """Corners of the convex hull of points (n, 2), in order."""
    ordered = sorted({(round(float(x), 9), round(float(y), 9)) for x, y in points})

    def half(run: list[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for p in run:
            while len(kept) > 1 and _turn(kept[-2], kept[-1], p) <= 0.0:
                kept.pop()
            kept.append(p)
        return kept[:-1]

    return [list(p) for p in (*half(ordered), *half(ordered[::-1]))]


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
