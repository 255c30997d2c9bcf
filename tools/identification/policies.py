"""Paired comparison of policies trained on identified twins with policies trained on the true plants.

All policies are evaluated on the true plants. The pairs differ in lumped parameters, dry friction and dead band, and
they are trained in one batch of trials without noise or delay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from onrig.learner.settings import learner_settings
from onrig.learner.trials.engine import run_trials
from onrig.learner.trials.intervals import PairedComparison, paired_difference
from onrig.learner.trials.measures import mu_final, normalized_curves
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import Array
from onrig.sim.twin.main import twin_options
from onrig.tools.identification.study import Outcome, run_study, summary
from onrig.tools.load import load, print_problems
from onrig.tools.quantity import format_estimate
from onrig.tools.terminal import complain


class Comparison(NamedTuple):
    """Final normalised performances on the true plants, (N,) each, and the median of their differences."""

    identified_scores: Array
    true_scores: Array
    difference: PairedComparison


def compare_policies(
    config: RunConfig, outcomes: Sequence[Outcome], progress: Callable[[int], None] = lambda episode: None
) -> Comparison:
    """Train one pair of policies per twin of a study, for the configured number of episodes, and compare the pairs.

    Raises ValueError for a configuration that trials do not support.
    """
    nominal = twin_options(config).plant
    true_parameters = [_parameters(nominal, o, o.truth) for o in outcomes]
    training_parameters = [*(_parameters(nominal, o, o.estimate) for o in outcomes), *true_parameters]
    lanes = [
        parameters
        for pair in zip(training_parameters, [*true_parameters, *true_parameters], strict=True)
        for parameters in pair
    ]
    plant = nominal.with_identifiable({name: np.array([lane[name] for lane in lanes]) for name in lanes[0]})
    seeds = [*range(len(outcomes))] * 2
    trials = run_trials(config, learner_settings(config.learner), seeds, plant)
    rewards = np.empty((len(seeds), config.episodes))
    for episode in range(config.episodes):
        rewards[:, episode] = trials.advance().evaluation
        progress(episode + 1)
    final_scores = mu_final(normalized_curves(config.task, rewards))
    identified_scores, true_scores = final_scores[: len(outcomes)], final_scores[len(outcomes) :]
    return Comparison(identified_scores, true_scores, paired_difference(identified_scores, true_scores))


def _parameters(nominal: Plant, outcome: Outcome, coordinates: Array) -> dict[str, float]:
    values = dict(zip(outcome.names, coordinates.tolist(), strict=True))
    plant_parameters = {name: float(np.exp(values[name])) for name in nominal.identifiable}
    return {**plant_parameters, **{name: max(values[name], 0.0) for name in ("dry_friction", "dead_band")}}


def show_study(name: str, overrides: Sequence[str], n_twins: int, seed: int, *, policies: bool) -> int:
    """Identify random twins, print the coverage, compare policies if requested, and return the exit code."""
    try:
        config = load(name, overrides)
    except ConfigError as error:
        return print_problems(error)
    if config.device.twin is None:
        return complain("identify", "--study needs a twin (device.twin)")
    outcomes = []
    for outcome in run_study(config, n_twins, seed):
        outcomes.append(outcome)
        print(f"{len(outcomes)} of {n_twins} twins", file=sys.stderr, flush=True)
    print(summary(outcomes))
    return _compare(config, [o for o in outcomes if isinstance(o, Outcome)]) if policies else ExitCode.OK


def _compare(config: RunConfig, outcomes: Sequence[Outcome]) -> int:
    def show(episode: int) -> None:
        if episode % 50 == 0:
            print(f"{episode} of {config.episodes} episodes", file=sys.stderr, flush=True)

    try:
        comparison = compare_policies(config, outcomes, show)
    except ValueError as error:
        return complain("identify", f"--policies: {error}")
    identified_median, true_median = np.median(comparison.identified_scores), np.median(comparison.true_scores)
    print(f"median score on the true plants: {identified_median:.3f} for policies trained on the identified twins,")
    print(f"{true_median:.3f} for policies trained on the true plants; ", end="")
    print(f"difference {format_estimate(comparison.difference, 3, signed=True)}")
    return ExitCode.OK
