"""The picture that goes with ``onrig check --explain``: exploration over the run, its noise, and every limit."""

from __future__ import annotations

from pathlib import Path

from onrig.runtime.run_config import RunConfig
from onrig.tools.explain_exploration_plot import exploration_rows
from onrig.tools.limit_bars import draw_limits, limit_bars


def plot_explanation(config: RunConfig, path: Path) -> bool:
    """Draw the picture into a file; False where matplotlib is not installed.

    Raises OSError where the file cannot be written, ValueError for a suffix that matplotlib does not know.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    bars, rows = limit_bars(config), exploration_rows(config)
    heights = [*(row.height for row in rows), 0.7 + 0.5 * len(bars)]
    figure = plt.figure(figsize=(9, sum(heights) + 0.8 * len(heights) + 0.5), layout="constrained")
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    for at, row in enumerate(rows):
        beside = grid[at].subgridspec(1, len(row.panels))
        for i, draw in enumerate(row.panels):
            draw(figure.add_subplot(beside[i]))
    draw_limits(figure.add_subplot(grid[-1]), bars)
    what = (config.rig.name, config.task.name, f"{config.rate_hz:g} Hz", f"seed {config.seed}")
    figure.suptitle(", ".join(what), fontsize=11)
    try:
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)
    return True
