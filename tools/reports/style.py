"""Style of all figures: palette, panels, labels, PNG files and inlined SVG.

Each retention has one colour, and each sampling has one line and marker. Labels are placed next to their curves.
"""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onrig.learner.trials.measures import RISE_LEVEL
from onrig.runtime import registry
from onrig.runtime.files import replace_own_file
from onrig.runtime.memory.strategy import sampling_names
from onrig.tools.terminal import reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

DPI: Final = 144
WIDTH_IN: Final = 9.5
INK: Final = "0.25"
FINAL_LABEL: Final = r"$\mu_r^{\mathrm{final}}$"
HIGHEST_LABEL: Final = r"$\mu_r^{\mathrm{max}}$"
RISE_LABEL: Final = "rise time 0.8 (episodes)"
PERFORMANCE_LABEL: Final = r"normalised performance $\mu_r$"
BLUE, ORANGE, GREEN, PINK, GOLD, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#D99A00", "#56B4E9"
RED, VIOLET, BLACK, WINE = "#C0392B", "#7B1FA2", "#000000", "#882255"
"""Okabe and Ito's palette for the colour-blind (with a darker orange for thin lines on white), and three additions."""
PALETTE: Final = (ORANGE, BLUE, GREEN, PINK, GOLD, SKY, BLACK, WINE)
"""Eight colours that are distinguishable with normal sight and with each kind of colour blindness."""
RULE_COLOURS: Final = {
    "predicted": ORANGE,
    "envelope": RED,
    "finite": VIOLET,
    "range": GOLD,
    "rate": BLUE,
    "jerk": GREEN,
    "fallback": "0.45",
}
"""Colours of the shield's rules."""
LineStyle = str | tuple[int, tuple[float, ...]]
_LINE_STYLES: Final[tuple[LineStyle, ...]] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_RETENTION_COLOURS: Final = (BLUE, ORANGE, GREEN, PINK, GOLD, SKY, BLACK, WINE)
_RETENTION_ORDER: Final = ("FIFO", "FULL", "Resv", "TDE", "Expl")
"""Retentions that get the first colours, in the order of the figures of de Bruin et al. 2018; others follow in
registration order."""
_SAMPLING_STYLES: Final[tuple[tuple[LineStyle, str], ...]] = (
    ("-", "o"),
    ("--", "^"),
    ("-.", "s"),
    (":", "D"),
    ((0, (7, 2, 1, 2, 1, 2)), "v"),
    ((0, (2, 1)), "P"),
    ((0, (2, 1, 1, 1)), "X"),
    ((0, (5, 1)), "p"),
    ((0, (6, 1, 1, 1, 1, 1)), "*"),
    ((0, (1, 2)), "h"),
)
_SAMPLING_ORDER: Final = ("Uniform", "PER", "PER+IS", "PER+FIS", "Uniform+FIS")


_COLOUR_DECLARATION: Final = re.compile(r"--([a-z-]+):\s*(#[0-9a-f]{6})")


@cache
def palette_css() -> str:
    """Return the live page's colours as CSS, for dark and light mode."""
    return files("onrig.tools.web").joinpath("static", "palette.css").read_text(encoding="utf-8")


@cache
def page_colour(name: str) -> str:
    """Return a colour of the live page in light mode.

    Names include ``accent``, ``second``, ``violet``, ``good``, ``warn`` and ``bad``.
    """
    colours: dict[str, str] = dict(_COLOUR_DECLARATION.findall(palette_css().partition("light")[2]))
    return colours[name]


def surface_colours(*, one_sided: bool) -> LinearSegmentedColormap:
    """Return the colour map of a policy's surface, as on the live page in light mode.

    ``one_sided`` selects the map for a range that does not cross zero.
    """
    from matplotlib.colors import LinearSegmentedColormap

    names = ("surface-mid", "surface-high") if one_sided else ("surface-low", "surface-mid", "surface-high")
    return LinearSegmentedColormap.from_list("surface", [page_colour(name) for name in names])


def band_alpha(bands: int) -> float:
    """Return the opacity of each of ``bands`` bands that keeps lines visible where all bands overlap."""
    return min(0.18, 0.72 / max(bands, 1))


_EXPONENT: Final = re.compile(r"\(.*\)")
NO_PLOTS: Final = "No figures: matplotlib is not installed (pip install 'onrig[viz]')."


def no_plots_reason() -> str | None:
    """Return why no plots can be drawn, as a note for a page, or None if matplotlib works."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return NO_PLOTS
    except Exception as error:  # MPLBACKEND may name a missing back end
        return f"No figures: matplotlib cannot be imported: {reason(error)}."
    return None


class Plot(NamedTuple):
    """Figure with its caption, inlined as SVG or stored in a PNG file."""

    title: str
    caption: str
    alt: str = ""
    number: int = 0
    """Number of the corresponding figure of de Bruin et al. 2018; 0 if there is none."""
    path: Path = Path()
    svg: str = ""

    @property
    def heading(self) -> str:
        """Title, with the paper's figure number if it has one."""
        return f"As figure {self.number} of de Bruin et al. 2018: {self.title}" if self.number else self.title

    @property
    def uri(self) -> str:
        """Source for an ``img`` element. Raises OSError if the PNG file cannot be read."""
        return self.svg or png_uri(self.path.read_bytes())


class Style(NamedTuple):
    """Appearance of one line or point."""

    colour: str
    line: LineStyle = "-"
    marker: str = "o"
    filled: bool = True

    @property
    def face(self) -> str:
        """Fill colour of the markers; white, for hollow markers, unless ``filled``."""
        return self.colour if self.filled else "white"


def strategy_style(retention: str, sampling: str) -> Style:
    """Return the style of a strategy in all figures: one colour per retention, one line and marker per sampling."""
    base_name = _EXPONENT.sub("", sampling)
    index = _style_index(base_name, _SAMPLING_ORDER, [_EXPONENT.sub("", name) for name in sampling_names()])
    excess = index - len(_SAMPLING_STYLES)
    line, marker = _SAMPLING_STYLES[index] if excess < 0 else ((0, (3, 1, *(1, 1) * (excess + 1))), "Hd8<>"[excess % 5])
    retention_index = _style_index(retention, _RETENTION_ORDER, registry.names(registry.RETENTIONS))
    colour = _RETENTION_COLOURS[retention_index % len(_RETENTION_COLOURS)]
    brightness = 0.55 ** (retention_index // len(_RETENTION_COLOURS))
    if brightness < 1:
        colour = "#" + "".join(f"{round(int(colour[i : i + 2], 16) * brightness):02x}" for i in (1, 3, 5))
    return Style(colour, line, marker, sampling == "Uniform")


def _style_index(name: str, ordered_names: Sequence[str], registered_names: Sequence[str]) -> int:
    """Return the index of a name's style; unregistered names, such as those from older experiments, come last."""
    order = list(dict.fromkeys((*ordered_names, *registered_names)))
    return order.index(name) if name in order else len(order) + zlib.crc32(name.encode()) % len(_RETENTION_COLOURS)


def ordinal_style(index: int, count: int, *, graded: bool) -> Style:
    """Return the style of line ``index`` of ``count`` lines that are not strategies.

    If ``graded``, the colours show a quantity.
    """
    marker = "os^DvPX"[index % 7]
    if not graded:
        # The line style changes after every four lines, which helps in prints without colour, and sixteen lines are
        # all distinct.
        return Style(
            _RETENTION_COLOURS[index % len(_RETENTION_COLOURS)], _LINE_STYLES[index // 4 % len(_LINE_STYLES)], marker
        )
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return Style(to_hex(colormaps["viridis"](0.05 + 0.8 * index / max(1, count - 1))), "-", marker)


def new_figure(
    rows: int, columns: int, height_in: float, *, sharey: str = "none", width_in: float = WIDTH_IN
) -> tuple[Figure, list[list[Axes]]]:
    """Create a figure, as wide as the page by default, and its panels, ``(rows, columns)``.

    Raises ImportError if matplotlib is missing.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    with rc_context({"font.size": 10}):
        figure = NewFigure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)  # type: ignore[call-overload]
    panels: list[list[Axes]] = [list(row) for row in grid]
    for axes in (axes for row in panels for axes in row):
        apply_style(axes)
    return figure, panels


def apply_style(axes: Axes) -> Axes:
    """Apply the common style of all figures to a panel."""
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_color("0.6")
        spine.set_visible(side not in ("top", "right"))
    return axes


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format given by the path's suffix.

    The file contains no timestamps, so equal results give equal files.

    Raises OSError, and ValueError for an unknown suffix.
    """
    data, suffix = io.BytesIO(), path.suffix.lower().removeprefix(".") or "png"
    undated_metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(data, dpi=DPI, format=suffix, metadata=undated_metadata.get(suffix))
    replace_own_file(path, data.getbuffer())
    return path


def set_title(axes: Axes, text: str) -> None:
    """Write a title above a panel, left-aligned."""
    axes.set_title(text, fontsize=10.5, loc="left", color="0.1")


def draw_reference_lines(axes: Axes) -> None:
    """Draw lines at performance 0 and 1 and at the level of the rise time."""
    for y in (0.0, 1.0):
        axes.axhline(y, color="0.55", lw=0.8, zorder=1)
    axes.axhline(RISE_LEVEL, color="0.55", lw=0.8, ls=(0, (1, 3)), zorder=1)


class Label(NamedTuple):
    """Label at the end of a curve."""

    y: float
    text: str
    colour: str
    line: LineStyle = "-"


def draw_curve_labels(axes: Axes, labels: Sequence[Label], size: float = 9.0) -> None:
    """Write each label to the right of the panel at the end of its curve, moving overlapping labels apart.

    Call it once the vertical limits and the height of the panel are final.
    """
    if not labels:
        return
    low, high = axes.get_ylim()
    height_pt = axes.get_figure().get_size_inches()[1] * axes.get_position().height * 72  # type: ignore[union-attr]
    gap = min(1.35 * size / height_pt, 1.0 / max(1, len(labels)))
    order = sorted(range(len(labels)), key=lambda i: labels[i].y)
    positions = [min(1.0, max(0.0, (labels[i].y - low) / (high - low))) for i in order]
    for i, position, y in zip(order, positions, spread_positions(positions, gap), strict=True):
        label, transform = labels[i], axes.transAxes
        x, ys = (1.01, 1.03, 1.07), (position, position, y)
        axes.plot(x, ys, color=label.colour, ls=label.line, lw=0.9, transform=transform, clip_on=False)
        axes.text(1.085, y, label.text, color=label.colour, fontsize=size, va="center", transform=transform)


def spread_positions(positions: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions at least ``gap`` apart within [0, 1], if space permits."""
    # Adjacent labels are displaced together, so that each run of labels remains centred on its curves.
    runs: list[tuple[float, int]] = []
    for y in positions:
        centre, count = y, 1
        while runs and centre - 0.5 * (count - 1) * gap < runs[-1][0] + (0.5 * (runs[-1][1] - 1) + 1) * gap:
            run_centre, n = runs.pop()
            centre, count = (run_centre * n + centre * count) / (n + count), n + count
            half_width = 0.5 * (count - 1) * gap
            centre = min(max(centre, half_width), max(half_width, 1 - half_width))
        runs.append((centre, count))
    return [centre + (i - 0.5 * (count - 1)) * gap for centre, count in runs for i in range(count)]


def set_swept_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Put ticks at the swept values; the axis is logarithmic if they are positive and span more than a decade."""
    ticks = sorted(set(values))
    if ticks[0] > 0 and ticks[-1] / ticks[0] > 12:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])


def inline_plot(figure: Figure, title: str, caption: str, alt: str) -> Plot:
    """Embed a figure as SVG in a data URI; equal figures give identical text."""
    from matplotlib import rc_context

    _fix_layout(figure)
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "onrig", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    uri = f"data:image/svg+xml;base64,{base64.b64encode(text.getvalue().encode()).decode()}"
    return Plot(title, caption, alt, svg=uri)


def _fix_layout(figure: Figure) -> None:
    """Lay out the figure, with positions rounded to a millionth of its size.

    The constrained-layout solver orders its variables by memory address, so the last bits of positions may differ
    between processes, and the names of clipping paths in SVG depend on them.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(x, 6) for x in axes.get_position(original=True).bounds))


def png_uri(data: bytes) -> str:
    """Return the data URI of a PNG file."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def use_integer_ticks(axes: Axes) -> None:
    """Put the ticks of the vertical axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def put_legend_outside(axes: Axes) -> None:
    """Put a panel's legend, if it has labels, to the panel's right, where it hides nothing."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.06), fontsize=8.5, frameon=False)


def format_trial_counts(numbers: list[int]) -> str:
    """Format numbers of trials: ``n = 50``, ``n = 12 to 50``."""
    low, high = min(numbers), max(numbers)
    return f"n = {low}" if low == high else f"n = {low} to {high}"
