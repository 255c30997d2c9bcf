"""Test the shield with adversarial policies and report the worst margin.

Adversarial and random policies drive plants drawn from the complete box of limits.predicted: first through the core of
the tick, with sensor errors, late commands and lost frames, then through the twin, protocol and session in virtual
time. In each episode, the host dies (runtime/SAFETY.md). The exit code is 5 if a limit was exceeded.

If limits.predicted is of kind 'sampled', the plants are drawn from its uncertainty, and --barrier computes the barrier
table.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, Count, File, Overrides, Seed, Trust
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: tuple[Config, ...]
    """Path or shipped name of a configuration; several are shown in one plot."""
    _: KW_ONLY
    episodes: Count = 100_000
    """Number of episodes through the core of the tick."""
    lockstep: Count = 1000
    """Number of episodes through twin, protocol and session."""
    seed: Seed = 0
    """Seed of plants, errors, delays and policies."""
    barrier: bool = False
    """Compute and test the barrier table for limits.predicted of kind 'sampled'; takes minutes."""
    plants: Count = 24
    """Number of plants for computing a barrier table."""
    tests: Count = 3000
    """Number of hostile episodes for testing a barrier table, each with a new plant."""
    plot: File | None = None
    """Only draw the safe sets to FILE."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Run both campaigns, print their results, and return the exit code."""
    if options.episodes < 0 or options.lockstep < 0 or options.seed < 0:
        return complain("safety", "--episodes, --lockstep and --seed: expected 0 or more")
    if not options.episodes and not options.lockstep and options.plot is None:
        return complain("safety", "--episodes and --lockstep: expected more than 0 for at least one of them")
    if options.barrier:
        from onrig.tools.barrier import build_barrier

        if min(options.plants, options.tests) < 1 or len(options.config) > 1:
            return complain("safety", "--barrier: expected one configuration, and 1 or more for --plants and --tests")
        return build_barrier(options.config[0], options.set, options.plants, options.tests, options.seed)
    from onrig.tools.safety import draw, drive

    if options.plot is not None:
        return draw(options.config, options.set, options.plot)
    return drive(options.config, options.set, options.episodes, options.lockstep, options.seed)
