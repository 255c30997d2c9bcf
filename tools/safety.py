"""Adversarial test of the shield's guarantees (runtime/SAFETY.md), which reports the worst margins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants.registry import plant_type_for
from onrig.tools.load import load, print_problems
from onrig.tools.progress import show_progress
from onrig.tools.reports.style import RED, new_figure, save_figure, set_title
from onrig.tools.terminal import complain, file_problem, plot_problem, reason

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def drive(names: Sequence[str], overrides: Sequence[str], core: int, stack: int, seed: int) -> int:
    """Run ``core`` episodes through the tick's core and ``stack`` episodes through the twin, print the results, and
    return the exit code.
    """
    configs = _load_predicting(names, overrides)
    if isinstance(configs, int):
        return configs
    for name, config in zip(names, configs, strict=True):
        if stack and config.device.twin is None:
            return complain(
                "safety", f"{name}: the test of the complete stack needs a twin (device.twin); --lockstep 0 omits it"
            )
    from onrig.tools.safety_case.campaign import table
    from onrig.tools.safety_case.episodes import run_core
    from onrig.tools.safety_case.stack import run_stack

    breaches = 0
    for name, config in zip(names, configs, strict=True):
        for stage, run_episodes, episodes in (
            ("the tick's core", run_core, core),
            ("the complete stack", run_stack, stack),
        ):
            if not episodes:
                continue
            try:
                with show_progress(f"{name}, {stage}", episodes) as report:
                    campaign = run_episodes(config, episodes, seed, report)
            except ValueError as error:
                return complain("safety", f"{name}: {error}")
            n_breaches = sum(t.breaches for t in campaign.values())
            worst_margin = min(t.worst_margin for t in campaign.values())
            print(
                f"{name}: {episodes} episodes through {stage}: {n_breaches} breaches, worst margin {worst_margin:.2%}"
            )
            print(table(campaign), flush=True)
            breaches += n_breaches
    return ExitCode.SAFETY if breaches else ExitCode.OK


def draw(names: Sequence[str], overrides: Sequence[str], path: Path) -> int:
    """Draw the safe sets to a file, and return the exit code."""
    if problem := file_problem("plot", path) or plot_problem("plot", path):
        return complain("safety", problem)
    configs = _load_predicting(names, overrides)
    if isinstance(configs, int):
        return configs
    try:
        draw_safe_set(configs, path)
    except ImportError:
        return complain("safety", "a plot needs matplotlib: pip install 'onrig[viz]'")
    except Exception as error:  # matplotlib's exceptions share no base class
        return complain("safety", f"--plot: '{path}' cannot be written: {reason(error)}")
    print(f"drawn: {path}")
    return ExitCode.OK


def _load_predicting(names: Sequence[str], overrides: Sequence[str]) -> list[RunConfig] | int:
    """Load configurations whose shield predicts. If one is invalid or does not, print an error and return the exit
    code.
    """
    try:
        configs = [load(name, overrides) for name in names]
    except ConfigError as error:
        return print_problems(error)
    for name, config in zip(names, configs, strict=True):
        if config.limits.predicted is None:
            return complain(
                "safety", f"{name}: limits.predicted is not set, so the shield guarantees no velocity limit"
            )
    return configs


def draw_safe_set(configs: list[RunConfig], path: Path) -> None:
    """Draw one panel per configuration. Raises ImportError if matplotlib is missing."""
    figure, [panels] = new_figure(1, len(configs), 5.2, width_in=6.2 * len(configs))
    for config, axes in zip(configs, panels, strict=True):
        _panel(config, axes)
        set_title(axes, config.rig.name)
    save_figure(figure, path)


def _panel(config: RunConfig, ax: Axes) -> None:
    box = config.limits.predicted
    if box is None:
        return
    safe = plant_type_for(box).safe_set(box, config.limits.context(config.rig, config.period_us * 1e-6))
    ax.fill_between(safe.position, safe.low, safe.high, color="#bfe3c3", label=safe.label)
    envelope = config.limits.envelope[box.velocity]
    ax.axhline(envelope.high, color=RED, lw=1.2, label="envelope")
    ax.axhline(envelope.low, color=RED, lw=1.2)
    for x, y, label, colour, dashes in safe.curves:
        ax.plot(x, y, label=label or None, color=colour, ls=dashes, lw=1.2, marker="" if dashes else ".", ms=1.2)
    ax.set(**safe.axes)
    ax.legend(loc="upper center", fontsize=7, ncols=2, frameon=False, bbox_to_anchor=(0.5, -0.12))
