"""Plot of the memory's contents and the policy, after figure 4 of de Bruin et al. 2018."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Actuator, Observation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.run_view import RunView
from onrig.tools.quantity import axis_label, unit_text
from onrig.tools.reports.style import INK, Plot, inline_plot, new_figure, set_title, surface_colours
from onrig.tools.web.coverage import surface_actions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float32]

COVERAGE_CELLS: Final = 40
"""Number of cells along each axis of the grid used to compute the coverage."""
_MAX_POINTS: Final = 8000
_GRID_POINTS: Final = 61


class MemorySample(NamedTuple):
    """Two observations (SI units) of evenly spaced experiences in the memory."""

    x: Observation
    y: Observation
    points: Floats
    """(n, 2)"""
    age: NDArray[np.int64]
    """(n,): number of experiences written after each experience."""
    exploration: Floats
    """(n,)"""
    n_stored: int
    capacity: int
    covered_fraction: float
    """Fraction of the cells over both ranges that contain an experience."""


class Surface(NamedTuple):
    """A policy's action over the range of two observations, with the others held constant."""

    policy_id: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    action: Floats
    """(m, len(y), len(x)), SI units."""
    fixed_signals: tuple[tuple[str, float], ...]
    """Names and values of the other observations."""


def shown_axes(config: RunConfig) -> tuple[int, int] | None:
    """Return the indices of the two observations to show, which are the policy's first two inputs.

    Returns None if the policy has only one input or sees images.
    """
    return (0, 1) if len(config.signals) >= 2 and not config.cameras else None


def read_memory_sample(folder: Path, config: RunConfig) -> MemorySample | str:
    """Restore the memory from the last checkpoint and sample it; return a reason if there is nothing to show."""
    axes = shown_axes(config)
    if axes is None:
        return "the policy sees images" if config.cameras else "the policy has a single input"
    memory = RunView(folder, config).memory()
    if isinstance(memory, str):
        return memory
    storage = memory.storage
    n_stored = storage.stored
    x, y = (config.signals[i] for i in axes)
    slots = np.linspace(0, n_stored - 1, min(n_stored, _MAX_POINTS)).astype(np.int64)
    observations = np.stack([_to_si(storage.observation[:n_stored, i], config.signals[i]) for i in axes], axis=1)
    return MemorySample(
        x,
        y,
        observations[slots].copy(),
        storage.inserted - storage.number(slots),
        storage.exploration[slots].copy(),
        n_stored,
        storage.capacity,
        _covered_fraction(observations, x, y),
    )


def _to_si(normalized: Floats, observation: Observation) -> Floats:
    """Convert to SI units from the memory's normalised units, in which [low, high] is [-1, 1]."""
    half_range = 0.5 * (observation.high - observation.low)
    return np.asarray(observation.low + half_range * (1.0 + normalized), np.float32)


def _covered_fraction(points: Floats, x: Observation, y: Observation) -> float:
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], COVERAGE_CELLS, ((x.low, x.high), (y.low, y.high)))
    return float(np.count_nonzero(counts)) / counts.size


def read_surface(folder: Path, config: RunConfig, active: int | None) -> Surface | None:
    """Evaluate the active policy, or the last one if it is missing, over the ranges of the shown observations.

    Returns None if there are no such observations or no usable policy.
    """
    axes, policy_id = shown_axes(config), None
    with contextlib.suppress(OSError):
        ids = sorted(int(p.stem) for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal())
        policy_id = active if active in ids else ids[-1] if ids else None
    if axes is None or policy_id is None:
        return None
    signals = config.signals
    fixed_values = np.array([_fixed_value(config, o) for o in signals], np.float32)
    x, y = (np.linspace(signals[i].low, signals[i].high, _GRID_POINTS) for i in axes)
    path = folder / "policies" / f"{policy_id}.onnx"
    action = surface_actions(path, config, axes, x.tolist(), y.tolist(), fixed_values.tolist())
    if action is None:
        return None
    fixed_signals = tuple(
        (o.name, float(v)) for k, (o, v) in enumerate(zip(signals, fixed_values, strict=True)) if k not in axes
    )
    return Surface(policy_id, x, y, action, fixed_signals)


def _fixed_value(config: RunConfig, observation: Observation) -> float:
    """Return the value for an observation that is not shown: its target, or the middle of its range."""
    return config.task.reward.target.get(observation.name, 0.5 * (observation.low + observation.high))


def coverage_chart(config: RunConfig, sample: MemorySample, surface: Surface | None) -> Plot:
    """Draw the experiences twice, coloured by age and by exploration."""
    has_one_action = surface is not None and surface.action.shape[0] == 1
    figure, [[left, right]] = new_figure(1, 2, 4.3, sharey="row")
    for axes, values, label, colours in (
        (left, sample.age, "age (writes since)", "viridis_r"),
        (right, sample.exploration, "exploration (normalised units)", "viridis"),
    ):
        if has_one_action and surface is not None:
            _draw_surface(axes, config, surface, 0)
        order = np.argsort(values)[:: -1 if axes is left else 1]  # draws rare values last, on top
        points = sample.points[order]
        scatter = axes.scatter(
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
        bar = figure.colorbar(scatter, ax=axes, shrink=0.85, pad=0.02, extend="max")
        bar.set_label(label, fontsize=9)
        bar.ax.tick_params(labelsize=8)
        axes.set_xlim(sample.x.low, sample.x.high)
        axes.set_ylim(sample.y.low, sample.y.high)
        axes.set_xlabel(axis_label(sample.x.name, sample.x.unit), fontsize=9.5)
        set_title(axes, f"by {label.split(' (')[0]}")
    left.set_ylabel(axis_label(sample.y.name, sample.y.unit), fontsize=9.5)
    caption = (
        f"The memory stores {sample.n_stored} of at most {sample.capacity} experiences (strategy "
        f"{config.selection.strategy}); {len(sample.points)} are drawn. The stored experiences occupy "
        f"{sample.covered_fraction:.0%} of the {COVERAGE_CELLS} × {COVERAGE_CELLS} cells of the shown range."
    )
    if has_one_action and surface is not None:
        caption += (
            f" Background: the action of policy {surface.policy_id} ({_range_text(config, 0)}){_fixed_text(surface)}."
        )
    return inline_plot(figure, "Contents of the memory", caption, "experiences in the state space")


def surfaces_chart(config: RunConfig, surface: Surface) -> Plot:
    """Draw only the policy, with one panel for each of the first four actuators."""
    n = min(surface.action.shape[0], 4)
    figure, [panels] = new_figure(1, n, 3.0 if n > 1 else 3.6, sharey="row")
    for i, axes in enumerate(panels):
        _draw_surface(axes, config, surface, i, figure)
        set_title(axes, axis_label(config.rig.actuators[i].name, config.rig.actuators[i].unit))
        axes.set_xlabel(config.signals[0].name, fontsize=9.5)
    panels[0].set_ylabel(config.signals[1].name, fontsize=9.5)
    caption = f"Action of policy {surface.policy_id} before exploration and shield{_fixed_text(surface)}."
    return inline_plot(figure, "The policy", caption, "policy surface")


def _draw_surface(axes: Axes, config: RunConfig, surface: Surface, i: int, figure: Figure | None = None) -> None:
    actuator = config.rig.actuators[i]
    image = axes.imshow(
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
        figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02).ax.tick_params(labelsize=8, colors=INK)


def _range_text(config: RunConfig, i: int) -> str:
    actuator = config.rig.actuators[i]
    low, high = (f"{x:g}".replace("-", "−") for x in (actuator.low, actuator.high))
    low_colour = "white" if _is_one_sided(actuator) else "blue"
    return f"{actuator.name} from {low} ({low_colour}) to {high} {unit_text(actuator.unit)} (orange)"


def _is_one_sided(actuator: Actuator) -> bool:
    return actuator.low >= 0.0 or actuator.high <= 0.0


def _fixed_text(surface: Surface) -> str:
    fixed_signals = ", ".join(f"{name} at {value:g}" for name, value in surface.fixed_signals)
    return f", with {fixed_signals}" if fixed_signals else ""
