"""HTML page of an identification: parameters, fit, and unidentifiable parameters."""

from __future__ import annotations

from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.hw.rig import Rig
from onrig.learner.trials.intervals import Bounds
from onrig.runtime.files import replace_file
from onrig.sim.identification.outcome import Identification
from onrig.sim.identification.result import Parameter, Result
from onrig.sim.twin.options import ZERO_PREFIX
from onrig.tools.quantity import axis_label, format_estimate
from onrig.tools.reports.page import Claims, Figures, Page, Part, Warnings
from onrig.tools.reports.sheet import Sheet
from onrig.tools.reports.style import INK, Plot, inline_plot, new_figure, page_colour, set_title
from onrig.tools.terminal import draw_or_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_SHOWN_WINDOWS: Final = 6
"""Number of windows drawn."""
_N_LAGS: Final = 12
_STRONG_CORRELATION: Final = 0.6
"""Magnitude of a correlation above which the colour of its cell is dark."""


def identification_page(result: Result, identification: Identification, rig: Rig) -> Page:
    """Build the page, without plots if matplotlib is missing."""
    inverted_channels = [name for name, sign in result.signs.items() if sign < 0]
    notes = [f"{', '.join(inverted_channels)}: reversed relative to the rig description."] if inverted_channels else []
    drawers = (
        partial(_windows_chart, identification, rig),
        partial(_residuals_chart, identification, rig),
        partial(_correlation_chart, result),
    )
    charts = [chart for draw in drawers if (chart := draw_or_report("A chart", draw, notes.append)) is not None]
    unidentified = result.not_known or ("All parameters were identified.",)
    fit_text = f"{identification.windows.size} windows of {_window_duration(identification)} were fitted"
    introduction = f"{result.source}; {fit_text}, and {identification.excluded_windows} were excluded."
    parts: tuple[Part, ...] = (
        Warnings(notes),
        *result_tables(result),
        Claims("Not identifiable", {"": unidentified}),
        Figures(charts),
    )
    return Page(f"{result.rig}: identified plant", introduction, parts)


def result_tables(result: Result) -> list[Sheet]:
    """Return the tables of parameters, noise and signs."""
    rows = [
        (p.name, format_estimate(Bounds(p.value, p.low, p.high), unit=p.unit), _relative_half_width(p))
        for p in result.parameters
    ]
    sheets = [Sheet("Parameters", 1, ("parameter", "value [95 %]", "±"), tuple(rows))]
    noise_rows = [
        (
            name,
            format_estimate(Bounds(n.std, n.low, n.high)),
            format_estimate(Bounds(n.alone, nan, nan)),
            f"{result.signs[name]:+d}",
        )
        for name, n in result.noise.items()
    ]
    heads = ("sensor", "noise (SI) [95 %]", "without rounding", "sign")
    sheets.append(Sheet("Sensors", 1, heads, tuple(noise_rows)))
    actuator_rows = [(name, f"{sign:+d}") for name, sign in result.signs.items() if name not in result.noise]
    sheets.append(Sheet("Actuators", 1, ("actuator", "sign"), tuple(actuator_rows)))
    return sheets


def _relative_half_width(p: Parameter) -> str:
    """Return the half-width as a fraction of the value, or an empty text if the value may be zero."""
    return f"{0.5 * (p.high - p.low) / p.value:.2%}" if p.low > 0 and not p.name.startswith(ZERO_PREFIX) else ""


def _window_duration(identification: Identification) -> str:
    return f"{identification.windows.periods * identification.windows.period_s:g} s"


def _windows_chart(identification: Identification, rig: Rig) -> Plot:
    """Draw measured and predicted signals, window by window."""
    n = len(rig.sensors)
    figure, panels = new_figure(n, 1, 2.1 * n)
    plotted_windows = np.linspace(
        0, identification.windows.size - 1, min(_N_SHOWN_WINDOWS, identification.windows.size)
    ).astype(int)
    span_s = identification.windows.periods * identification.windows.period_s
    for i, (sensor, (axes,)) in enumerate(zip(rig.sensors, panels, strict=True)):
        for k, window in enumerate(plotted_windows):
            t = k * 1.15 * span_s + np.arange(identification.windows.periods + 1) * identification.windows.period_s
            measured_values = identification.windows.readings[window, :, i]
            axes.plot(t, measured_values, ".", color=page_colour("accent"), ms=3, label="measured" if k == 0 else None)
            predicted_values = measured_values - identification.fit.residuals[window, :, i]
            axes.plot(t, predicted_values, color=page_colour("second"), lw=1.0, label="predicted" if k == 0 else None)
        axes.set_ylabel(axis_label(sensor.name, sensor.unit))
        axes.set_xticks([])
    panels[0][0].legend(fontsize=8, frameon=False, ncols=2)
    caption = f"{len(plotted_windows)} windows of {span_s:g} s, evenly spaced; each has its own initial state."
    return inline_plot(figure, "Measured and predicted", caption, "measured and predicted readings")


def _residuals_chart(identification: Identification, rig: Rig) -> Plot:
    """Draw the distribution and the autocorrelation of the residuals."""
    n = len(rig.sensors)
    figure, panels = new_figure(n, 2, 2.3 * n)
    for i, (sensor, row) in enumerate(zip(rig.sensors, panels, strict=True)):
        residuals = identification.fit.residuals[..., i] / identification.noise.total[i]
        _histogram(row[0], residuals.ravel())
        set_title(row[0], f"{sensor.name}: residual / noise")
        lags = range(1, min(_N_LAGS, residuals.shape[1] - 1))
        row[1].bar(
            list(lags),
            [float(np.mean(residuals[:, k:] * residuals[:, :-k])) for k in lags],
            color=page_colour("accent"),
        )
        row[1].axhline(0.0, color=INK, lw=0.8)
        row[1].set_ylim(-1, 1)
        set_title(row[1], "autocorrelation, lags in periods")
    caption = (
        "White noise has a normal distribution (orange) and almost no autocorrelation. Persistent correlation "
        "indicates an effect that the model lacks."
    )
    return inline_plot(figure, "Residuals", caption, "distribution and autocorrelation of the residuals")


def _histogram(axes: Axes, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    axes.hist(values, bins=np.linspace(-4, 4, 41).tolist(), density=True, color=page_colour("accent"), alpha=0.7)
    x = np.linspace(-4, 4, 201)
    axes.plot(x, np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), color=page_colour("second"), lw=1.2)


def _correlation_chart(result: Result) -> Plot:
    covariance = np.array(result.covariance)
    scale = np.sqrt(np.diag(covariance))
    scale[scale == 0] = 1.0
    correlation = covariance / np.outer(scale, scale)
    names = [p.name for p in result.parameters]
    figure, panels = new_figure(1, 1, 0.45 * len(names) + 1.6)
    axes = panels[0][0]
    axes.grid(visible=False)
    axes.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    for i, j in np.ndindex(*correlation.shape):
        colour = "white" if abs(correlation[i, j]) > _STRONG_CORRELATION else "black"  # white text on dark cells
        axes.text(j, i, f"{correlation[i, j]:+.2f}", ha="center", va="center", fontsize=8, color=colour)
    caption = "To sample plants, draw all parameters jointly from the samples or the covariance in the file."
    return inline_plot(figure, "Correlation of the errors", caption, "correlation matrix of the parameters")


def write_page(result: Result, identification: Identification, rig: Rig, path: Path) -> None:
    """Write the page. Raises OSError."""
    replace_file(path, identification_page(result, identification, rig).html().encode())
