"""``onrig safety CONFIG``: adversarial test of the shield's guarantees, with the worst margin (runtime/SAFETY.md).

Adversarial and random policies drive plants from the whole box of ``limits.predicted``: first through the tick's pure
core, with sensor errors, late commands and lost frames, then through twin, protocol and session in virtual time.  In
each episode the host dies for good.  Exit code 5 if a limit was exceeded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants.registry import simulated
from onrig.tools.load import explain, load
from onrig.tools.progress import progress_of
from onrig.tools.terminal import VerbParser, complain, picture_problem, reason, unwritable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(prog="onrig safety", description=__doc__)
    p.add_argument("config", nargs="+", help="path or shipped name of a configuration; several share one picture")
    p.add_argument(
        "--episodes", type=int, default=100_000, help="episodes through the tick's core (default: %(default)s)"
    )
    p.add_argument(
        "--lockstep", type=int, default=1000, help="episodes through twin, protocol and session (default: %(default)s)"
    )
    p.add_argument("--seed", type=int, default=0, help="seed of plants, errors, delays and policies")
    p.add_argument("--picture", type=Path, metavar="PNG", help="only draw the safe sets")
    p.add_overrides()
    return p


def main(arguments: list[str]) -> int:
    """Run both campaigns and print them; returns the exit code."""
    args = parser().parse_args(arguments)
    if args.episodes < 0 or args.lockstep < 0 or args.seed < 0:
        return complain("safety", "expected 0 or more for --episodes, --lockstep and --seed")
    if problem := unwritable("picture", args.picture) or picture_problem("picture", args.picture):
        return complain("safety", problem)
    if not args.episodes and not args.lockstep and args.picture is None:
        return complain("safety", "--episodes 0 with --lockstep 0 tests nothing")
    try:
        configs = [load(name, args.overrides) for name in args.config]
    except ConfigError as error:
        return explain(error)
    for name, config in zip(args.config, configs, strict=True):
        if config.limits.predicted is None:
            return complain(
                "safety", f"{name}: limits.predicted is not set, so the shield guarantees no velocity limit"
            )
        if args.lockstep and args.picture is None and config.device.twin is None:
            return complain("safety", f"{name}: the stack needs a twin (device.twin), or --lockstep 0")
    if args.picture is not None:
        try:
            draw_safe_set(configs, args.picture)
        except ImportError:
            return complain("safety", "a picture needs matplotlib: pip install 'onrig[viz]'")
        except Exception as error:  # matplotlib's own have no common base
            return complain("safety", f"--picture: '{args.picture}' cannot be written: {reason(error)}")
        print(f"drawn: {args.picture}")
        return ExitCode.OK
    from onrig.tools.safety_case.campaign import table
    from onrig.tools.safety_case.episodes import run_core
    from onrig.tools.safety_case.stack import run_stack

    breaches = 0
    for name, config in zip(args.config, configs, strict=True):
        for where, run, episodes in (
            ("the tick's pure core", run_core, args.episodes),
            ("the twin's stack", run_stack, args.lockstep),
        ):
            if not episodes:
                continue
            try:
                with progress_of(f"{name}, {where}", episodes) as told:
                    campaign = run(config, episodes, args.seed, told)
            except ValueError as error:
                return complain("safety", f"{name}: {error}")
            broken = sum(t.breaches for t in campaign.values())
            worst = min(t.worst_margin for t in campaign.values())
            print(f"{name}: {episodes} episodes through {where}: {broken} breaches, worst margin {worst:.2%}")
            print(table(campaign), flush=True)
            breaches += broken
    return ExitCode.SAFETY if breaches else ExitCode.OK


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
