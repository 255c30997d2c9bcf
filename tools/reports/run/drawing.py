"""Pictures for a page: drawn with matplotlib, handed over as text that an ``img`` shows without any other file."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI: Final = 144
BLUE, ORANGE, GREEN, PINK, GOLD, SKY, RED = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#C0392B"
PALETTE: Final = (ORANGE, BLUE, GREEN, PINK, GOLD, SKY, "#000000", "#8C6D31")


class Chart(NamedTuple):
    """One figure of the page."""

    title: str
    caption: str
    data_uri: str
    alt: str


def svg_uri(figure: Figure) -> str:
    """Write a figure as SVG into a data URI; the same figure gives the same text."""
    from matplotlib import rc_context

    _settle(figure)
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "onrig", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(text.getvalue().encode()).decode()}"


def _settle(figure: Figure) -> None:
    """Lay the figure out, to a millionth of its size.

    The solver behind a constrained layout takes its variables in the order of their addresses, so that places differ in
    their last bits from time to time; SVG names its clipping paths after them.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(x, 6) for x in axes.get_position(original=True).bounds))


def png_uri(data: bytes) -> str:
    """Wrap the bytes of a PNG file."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the vertical axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def legend_beside(axes: Axes) -> None:
    """Put the legend right of a panel, where it hides nothing; none where nothing is named."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.06), fontsize=8.5, frameon=False)
