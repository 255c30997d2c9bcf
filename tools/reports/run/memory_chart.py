"""Picture of the memory's contents over the policy, after figure 4 of de Bruin et al. 2018."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Actuator, Observation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.run_view import RunView
from onrig.tools.quantity import labelled, unit_text
from onrig.tools.reports.style import INK, Picture, inlined, new_figure, surface_colours, title
from onrig.tools.web.coverage import surface_actions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float32]

CELLS: Final = 40
"""Cells along each axis in which coverage is counted."""
_SHOWN: Final = 8000
_NODES: Final = 61


class Contents(NamedTuple):
    """A sample of the memory, spread evenly over its slots, by two of its observations (SI units)."""

    x: Observation
    y: Observation
    points: Floats
    """(n, 2)"""
    age: NDArray[np.int64]
    """(n,): writes since each was written."""
    exploration: Floats
    """(n,)"""
    stored: int
    capacity: int
    covered: float
    """Fraction of the cells of the two observations' range that hold an experience at all."""


class Surface(NamedTuple):
    """A policy's action over the range of two observations, the others held."""

    policy_id: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    action: Floats
    """(m, len(y), len(x)), SI units."""
    held: tuple[tuple[str, float], ...]
    """What the other observations were."""


def shown_axes(config: RunConfig) -> tuple[int, int] | None:
    """The two signals that are shown: the first two that policies see; None where there is only one."""
    return (0, 1) if len(config.signals) >= 2 else None


def read_contents(folder: Path, config: RunConfig) -> Contents | str:
    """Restore the memory from the last checkpoint; in words why there is nothing to show."""
    axes = shown_axes(config)
    if axes is None:
        return "the policy sees a single value"
    memory = RunView(folder, config).memory()
    if isinstance(memory, str):
        return memory
    storage = memory.storage
    stored = storage.stored
    x, y = (config.signals[i] for i in axes)
    slots = np.linspace(0, stored - 1, min(stored, _SHOWN)).astype(np.int64)
    every = np.stack([_in_si(storage.observation[:stored, i], config.signals[i]) for i in axes], axis=1)
    return Contents(
        x,
        y,
        every[slots].copy(),
        storage.inserted - storage.number(slots),
        storage.exploration[slots].copy(),
        stored,
        storage.capacity,
        _covered(every, x, y),
    )


def _in_si(normalized: Floats, observation: Observation) -> Floats:
    """The memory keeps observations as the learner sees them: [low, high] as [-1, 1]."""
    half = 0.5 * (observation.high - observation.low)
    return np.asarray(observation.low + half * (1.0 + normalized), np.float32)


def _covered(points: Floats, x: Observation, y: Observation) -> float:
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], CELLS, ((x.low, x.high), (y.low, y.high)))
    return float(np.count_nonzero(counts)) / counts.size


def read_surface(folder: Path, config: RunConfig, active: int | None) -> Surface | None:
    """Ask the run's last policy over the range of the observations that are shown; None where there is none."""
    axes, found = shown_axes(config), None
    with contextlib.suppress(OSError):
        ids = sorted(int(p.stem) for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal())
        found = active if active in ids else ids[-1] if ids else None
    if axes is None or found is None:
        return None
    signals = config.signals
    held = np.array([_rest(config, o) for o in signals], np.float32)
    across, up = (np.linspace(signals[i].low, signals[i].high, _NODES) for i in axes)
    path = folder / "policies" / f"{found}.onnx"
    action = surface_actions(path, config, axes, across.tolist(), up.tolist(), held.tolist())
    if action is None:
        return None
    others = tuple((o.name, float(v)) for k, (o, v) in enumerate(zip(signals, held, strict=True)) if k not in axes)
    return Surface(found, across, up, action, others)


def _rest(config: RunConfig, observation: Observation) -> float:
    """What an observation that is not shown is taken to be: its target, or the middle of its range."""
    return config.task.reward.target.get(observation.name, 0.5 * (observation.low + observation.high))


def coverage_chart(config: RunConfig, contents: Contents, surface: Surface | None) -> Picture:
    """Draw the experiences twice, coloured by their age and by their exploration."""
    single = surface is not None and surface.action.shape[0] == 1
    figure, [[left, right]] = new_figure(1, 2, 4.3, sharey="row")
    for axes, values, label, colours in (
        (left, contents.age, "age (writes since)", "viridis_r"),
        (right, contents.exploration, "exploration (normalised units)", "viridis"),
    ):
        if single and surface is not None:
            _background(axes, config, surface, 0)
        order = np.argsort(values)[:: -1 if axes is left else 1]  # what is rare in a picture goes on top
        points = contents.points[order]
        shown = axes.scatter(
            points[:, 0],
            points[:, 1],
            s=3.0,
            c=values[order],
            cmap=colours,
            vmin=0.0,
            vmax=max(float(np.quantile(values, 0.995)), 1e-9),
            linewidths=0,
            rasterized=True,
        )
        bar = figure.colorbar(shown, ax=axes, shrink=0.85, pad=0.02, extend="max")
        bar.set_label(label, fontsize=9)
        bar.ax.tick_params(labelsize=8)
        axes.set_xlim(contents.x.low, contents.x.high)
        axes.set_ylim(contents.y.low, contents.y.high)
        axes.set_xlabel(labelled(contents.x.name, contents.x.unit), fontsize=9.5)
        title(axes, f"by {label.split(' (')[0]}")
    left.set_ylabel(labelled(contents.y.name, contents.y.unit), fontsize=9.5)
    caption = (
        f"{contents.stored} experiences are kept, of {contents.capacity} for which there is room (strategy "
        f"{config.selection.strategy}); {len(contents.points)} are drawn. They lie in {contents.covered:.0%} of the "
        f"{CELLS} × {CELLS} cells of the range that is shown."
    )
    if single and surface is not None:
        caption += f" Behind them the action of policy {surface.policy_id} ({_range(config, 0)}){_held(surface)}."
    return inlined(figure, "What the memory holds", caption, "experiences in the state space")


def surfaces_chart(config: RunConfig, surface: Surface) -> Picture:
    """Draw the policy alone, one panel for each actuator."""
    n = min(surface.action.shape[0], 4)
    figure, [panels] = new_figure(1, n, 3.0 if n > 1 else 3.6, sharey="row")
    for i, axes in enumerate(panels):
        _background(axes, config, surface, i, figure)
        title(axes, labelled(config.rig.actuators[i].name, config.rig.actuators[i].unit))
        axes.set_xlabel(config.signals[0].name, fontsize=9.5)
    panels[0].set_ylabel(config.signals[1].name, fontsize=9.5)
    caption = f"What policy {surface.policy_id} commands before exploration and shield{_held(surface)}."
    return inlined(figure, "The policy", caption, "policy surface")


def _background(axes: Axes, config: RunConfig, surface: Surface, i: int, figure: Figure | None = None) -> None:
    actuator = config.rig.actuators[i]
    shown = axes.imshow(
        surface.action[i],
        cmap=surface_colours(one_sided=_is_one_sided(actuator)),
        vmin=actuator.low,
        vmax=actuator.high,
        origin="lower",
        aspect="auto",
        interpolation="bilinear",
        extent=(surface.x[0], surface.x[-1], surface.y[0], surface.y[-1]),
    )
    axes.grid(visible=False)
    if figure is not None:
        figure.colorbar(shown, ax=axes, shrink=0.85, pad=0.02).ax.tick_params(labelsize=8, colors=INK)


def _range(config: RunConfig, i: int) -> str:
    actuator = config.rig.actuators[i]
    low, high = (f"{x:g}".replace("-", "−") for x in (actuator.low, actuator.high))
    pale = "white" if _is_one_sided(actuator) else "blue"
    return f"{actuator.name} from {low} ({pale}) to {high} {unit_text(actuator.unit)} (orange)"


def _is_one_sided(actuator: Actuator) -> bool:
    return actuator.low >= 0.0 or actuator.high <= 0.0


def _held(surface: Surface) -> str:
    held = ", ".join(f"{name} at {value:g}" for name, value in surface.held)
    return f", with {held}" if held else ""
