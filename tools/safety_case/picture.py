"""Safe sets as a picture, over the plane of place and velocity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import simulated

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_safe_set(configs: list[RunConfig], path: Path) -> None:
    """Draw one panel per configuration with a prediction; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(configs), figsize=(6.2 * len(configs), 5.2), layout="constrained", squeeze=False)
    for config, ax in zip(configs, axes[0], strict=True):
        _panel(config, ax)
        ax.set_title(config.rig.name)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(config: RunConfig, ax: Axes) -> None:
    box = config.limits.predicted
    if box is None:
        return
    safe = simulated(box).safe_set(box, config.limits.setting(config.rig, config.period_us * 1e-6))
    ax.fill_between(safe.place, safe.low, safe.high, color="#bfe3c3", label=safe.label)
    envelope = config.limits.envelope[box.velocity]
    ax.axhline(envelope.high, color="tab:red", lw=1.2, label="envelope")
    ax.axhline(envelope.low, color="tab:red", lw=1.2)
    for x, y, label, colour, dashes in safe.curves:
        ax.plot(x, y, label=label or None, color=colour, ls=dashes, lw=1.2, marker="" if dashes else ".", ms=1.2)
    ax.set(**safe.axes)
    ax.legend(loc="upper center", fontsize=7, ncols=2, bbox_to_anchor=(0.5, -0.12))
