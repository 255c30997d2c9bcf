"""Races on recorded trials of a grid that was run in full: ``python -m tests.studies.races OUT``.

The candidates of `onrig advise` for a short run of the pendulum, without the expensive ones, have 64 trials on drawn
plants. A repetition deals them into 32 pairs for the race, at a quarter of their cost, and 32 others on which the
winner is measured again: how far it is behind the best of them, and whether its stated bounds contain its mean on them.
Finished trials in OUT are kept, so a stopped study continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from onrig.learner.trials.objectives import OBJECTIVES, Values
from onrig.tools.advice.candidates import candidates
from onrig.tools.advice.field import Subject, curves_of, enter_candidates, spec_of
from onrig.tools.advice.plants import draw_plants
from onrig.tools.advice.race import RUNGS, Budget, Rules, race, standings, statistic_for
from onrig.tools.experiments.folder import lock_folder
from onrig.tools.experiments.runner import PlainDisplay, missing_units, run_units, split_units
from onrig.tools.experiments.workers import LocalWorkers
from onrig.tools.load import load_for_rig

PAIRS: Final = 32
REPETITIONS: Final = 400
CLOSE: Final = 0.02


def repetition(scores: Values, seed: int, objective: str = "final", share: float = 0.25) -> dict[str, Any]:
    """One race on half of the pairs of scores (C, 2 n), dealt by ``seed``, compared with the other half."""
    dealt, n = np.random.default_rng((45, seed)).permutation(scores.shape[1]), scores.shape[1] // 2
    mine, again = scores[:, dealt[:n]], scores[:, dealt[n:]]
    names = [str(k) for k in range(len(scores))]
    rules = Rules(statistic_for(objective), rungs=tuple(rung for rung in RUNGS if rung <= n))
    budget = Budget(share * mine.size, dict.fromkeys(names, 1.0))
    by_name = dict(zip(names, mine, strict=True))
    state = race(names, by_name, rules, budget)
    best = standings(state, by_name, rules)[0]
    figures = [rules.statistic.summarize(row, 0.25).value for row in again]
    measured = figures[int(best.name)]
    return {
        "regret": max(figures) - measured,
        "full": max(figures) - figures[int(np.argmax([rules.statistic.summarize(row, 0.25).value for row in mine]))],
        "covered": best.figure.low <= measured <= best.figure.high,
        "half_width": best.figure.half_width,
        "pairs": best.n_pairs,
        "left": len(state.remaining_names),
        "spent": budget.cost_of(state.pairs) / mine.size,
    }


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Figures over repetitions."""
    return {
        "close": sum(one["regret"] <= CLOSE for one in found),
        "close if run in full": sum(one["full"] <= CLOSE for one in found),
        "covered": sum(one["covered"] for one in found),
        "repetitions": len(found),
        **{
            name: round(float(np.mean([one[name] for one in found])), 3)
            for name in ("half_width", "pairs", "left", "spent")
        },
    }


def main() -> None:
    """Run the missing trials, then the races."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="pendulum")
    parser.add_argument("--episodes", type=int, default=90)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--without", nargs="*", default=["V-RACER, 16000", "SAC, PER", "SAC, persistent noise", "DroQ"])
    args = parser.parse_args()
    asked = Subject(args.config, (f"episodes={args.episodes}",))
    config = load_for_rig(*asked)
    drawn = draw_plants(config, None)
    field = enter_candidates(
        asked, args.out, drawn.values, (c for c in candidates(config) if c.name not in args.without)
    )
    cells, seeds = field.cells(), range(2 * args.pairs)
    with lock_folder(args.out, spec_of("races", cells, len(seeds)), cells):
        todo = missing_units(args.out, cells, seeds)
        if todo:
            workers, there = LocalWorkers(args.workers), len(cells) * len(seeds) - sum(len(u.seeds) for u in todo)
            try:
                run_units(args.out, split_units(todo, args.workers, 16), there, workers, PlainDisplay())
            finally:
                workers.close()
    curves = {name: curves_of(args.out, entry, len(seeds)) for name, entry in field.entrants.items()}
    for objective, how in OBJECTIVES.items():
        scores = np.array([how.scores(of) for of in curves.values()])
        means = {
            name: round(float(statistic_for(objective).summarize(row, 0.25).value), 3)
            for name, row in zip(curves, scores, strict=True)
        }
        print(json.dumps({"objective": objective, "means": means}))
        print(json.dumps(summary([repetition(scores, k, objective) for k in range(REPETITIONS)])), flush=True)


if __name__ == "__main__":
    main()
