"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onrig.runtime.explore.schedule import amplitudes
from onrig.runtime.explore.settings import NoExploration
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.run_view import episode_columns, read_episodes


def _smooth(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], window: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Mean of the last ``window`` values, of fewer at the start."""
    total = np.cumsum(np.insert(values, 0, 0.0))
    first = np.maximum(np.arange(len(values)) + 1 - window, 0)
    return (total[1:] - total[first]) / (np.arange(len(values)) + 1 - first)


def plot_learning_curve(folder: Path, config: RunConfig) -> Path | None:
    """Draw ``learning_curve.png``: performance per episode above, exploration and interventions below.

    None where matplotlib is not installed or nothing was recorded.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return None
    episodes = read_episodes(folder)
    train, evaluation = episode_columns(episodes, "train"), episode_columns(episodes, "eval")
    if not len(train["episode"]):
        return None
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), height_ratios=(3, 1), layout="constrained")
    x = train["episode"]
    top.axhline(0, color="0.7", lw=0.8)
    top.axhline(1, color="0.7", lw=0.8)
    top.axhline(0.8, color="tab:green", lw=0.8, ls=":")
    top.text(x[0], 0.81, "0.8", color="tab:green", va="bottom", fontsize=8)
    top.plot(x, train["normalized"], ".", ms=2.5, color="tab:blue", alpha=0.35)
    top.plot(x, _smooth(train["normalized"], 20), color="tab:blue", label="training, mean of 20")
    if len(evaluation["episode"]):
        top.plot(evaluation["episode"], evaluation["normalized"], ".", ms=2.5, color="tab:orange", alpha=0.35)
        smooth = _smooth(evaluation["normalized"], 20)
        top.plot(evaluation["episode"], smooth, color="tab:orange", label="evaluation (no noise), mean of 20")
    low = float(np.nanmin(train["normalized"]))
    top.set_ylim(min(-0.15, max(low, -1.0)) - 0.05, 1.1)
    top.set_ylabel("normalised reward\n(0 random, 1 reference)")
    top.legend(loc="lower right", frameon=False)
    what = (config.rig.name, config.task.name, config.selection.strategy, f"{config.rate_hz:g} Hz")
    top.set_title(f"{', '.join(what)}, seed {config.seed}", fontsize=10)
    exploration = config.exploration
    if not isinstance(exploration, NoExploration):
        done = np.cumsum(train["steps"])
        at = {"episodes": x, "steps": done, "seconds": done * config.period_us * 1e-6}[exploration.over]
        names = [a.name for a in config.rig.actuators]
        amplitude = [max(amplitudes(exploration, names, value)) for value in at.tolist()]
        bottom.plot(x, amplitude, color="tab:purple", label="exploration amplitude as scheduled")
    bottom.set_ylim(0, 1.05)
    bottom.set_ylabel("amplitude", color="tab:purple")
    bottom.set_xlabel("training episode")
    counts = bottom.twinx()
    counts.bar(x, train["interventions"], width=1.0, color="tab:red", alpha=0.6)
    counts.set_ylabel("interventions", color="tab:red")
    counts.yaxis.get_major_locator().set_params(integer=True)
    counts.set_ylim(0, max(1.0, float(train["interventions"].max()) * 1.1))
    path = folder / "learning_curve.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
