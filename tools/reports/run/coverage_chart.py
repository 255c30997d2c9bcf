"""What the memory holds, in the manner of figure 4 of 000: its experiences over the policy's surface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.runtime.run_config import RunConfig
from onrig.tools.reports.run.contents_of_memory import CELLS, Contents, Surface
from onrig.tools.reports.run.drawing import Chart, svg_uri
from onrig.tools.reports.style import INK, new_figure, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SURFACE: Final = "PuOr"


def coverage_chart(config: RunConfig, contents: Contents, surface: Surface | None) -> Chart:
    """Draw the experiences twice, coloured by their age and by their exploration."""
    single = surface is not None and surface.action.shape[0] == 1
    figure, [[left, right]] = new_figure(1, 2, 4.3, sharey="row")
    for axes, values, label, colours in (
        (left, contents.age, "age (writes since)", "viridis_r"),
        (right, contents.exploration, "exploration (normalised units)", "magma_r"),
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
        axes.set_xlabel(f"{contents.x.name} ({contents.x.unit})", fontsize=9.5)
        title(axes, f"by {label.split(' (')[0]}")
    left.set_ylabel(f"{contents.y.name} ({contents.y.unit})", fontsize=9.5)
    caption = (
        f"{contents.stored} experiences are kept, of {contents.capacity} for which there is room (strategy "
        f"{config.selection.strategy}); {len(contents.points)} are drawn. They lie in {contents.covered:.0%} of the "
        f"{CELLS} x {CELLS} cells of the range that is shown."
    )
    if single and surface is not None:
        caption += f" Behind them the action of policy {surface.policy_id} ({_range(config, 0)}){_held(surface)}."
    return Chart("What the memory holds", caption, svg_uri(figure), "experiences in the state space")


def surfaces_chart(config: RunConfig, surface: Surface) -> Chart:
    """Draw the policy alone, one panel for each actuator."""
    n = min(surface.action.shape[0], 4)
    figure, [panels] = new_figure(1, n, 3.0 if n > 1 else 3.6, sharey="row")
    for i, axes in enumerate(panels):
        _background(axes, config, surface, i, figure)
        title(axes, f"{config.rig.actuators[i].name} ({config.rig.actuators[i].unit})")
        axes.set_xlabel(config.rig.signals[0].name, fontsize=9.5)
    panels[0].set_ylabel(config.rig.signals[1].name, fontsize=9.5)
    caption = f"What policy {surface.policy_id} commands before exploration and shield{_held(surface)}."
    return Chart("The policy", caption, svg_uri(figure), "policy surface")


def _background(axes: Axes, config: RunConfig, surface: Surface, i: int, figure: Figure | None = None) -> None:
    actuator = config.rig.actuators[i]
    shown = axes.imshow(
        surface.action[i],
        cmap=_SURFACE,
        vmin=actuator.low,
        vmax=actuator.high,
        alpha=0.45 if figure is None else 0.9,
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
    return f"{actuator.name} from {actuator.low:g} (brown) to {actuator.high:g} {actuator.unit} (violet)"


def _held(surface: Surface) -> str:
    held = ", ".join(f"{name} at {value:g}" for name, value in surface.held)
    return f", with {held}" if held else ""
