"""Advice compared with the shipped settings and presets: ``python -m tests.studies.advice OUT pendulum``.

The rig is an unknown plant of `tests.studies.pretraining`. It is identified, `onrig advise` races the candidates on
plants that the identification allows, and then the advised settings, those of the configuration, and the presets are
run on the plant of the rig itself, in trials with seeds that the race did not use. Prints the differences, paired by
seed. The best preset is chosen in the same trials, which favours it. Finished trials in OUT are kept, so a stopped
study continues.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

import onrig
from onrig.learner.trials.intervals import COVERAGE, student_quantile
from onrig.learner.trials.measures import normalized_curves
from onrig.learner.trials.objectives import OBJECTIVES, Values, fill_diverged
from onrig.runtime.config.document import find_config
from onrig.runtime.task import episode_steps
from onrig.sim.twin.options import TwinOptions
from onrig.tools.advice.advise import PLAN_FILE, AdviseOptions, show_advice
from onrig.tools.advice.candidates import UNCHANGED_NAME, Candidate
from onrig.tools.advice.field import Field, Subject, enter_candidates, spec_of
from onrig.tools.advised import ADVICE_FILE, Advice
from onrig.tools.experiments.folder import lock_folder
from onrig.tools.experiments.options import ExperimentOptions
from onrig.tools.experiments.runner import PlainDisplay, missing_units, run_units, split_units
from onrig.tools.experiments.store import read_trials
from onrig.tools.experiments.workers import LocalWorkers
from onrig.tools.load import load
from tests.studies.pretraining import draw_plant

ADVISED: Final = "advised"
FIRST_SEED: Final = 1000
"""First seed of the comparison; those of a race begin with 0."""
_IMPERFECTIONS: Final = ("dry_friction", "dead_band", "delay_s")
_SECTIONS: Final = ("learner", "selection", "exploration")


class Rig(NamedTuple):
    """A rig with the presets that its configuration could name."""

    config: str
    episodes: int
    presets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


_PENDULUM: Final = ("pendulum-droq", "pendulum-vracer", "pendulum-td3", "pendulum-ddpg-refer")
RIGS: Final = {
    "pendulum": Rig("pendulum", 60, _PENDULUM),
    "hidden": Rig("pendulum-hidden", 60, _PENDULUM),
    "cartpole": Rig(
        "docs/examples/cartpole/run.yaml",
        40,
        settings=("task.normalization={random_reward: 0.056, reference_reward: 0.98}",),
    ),
}


def identify(rig: Rig, plant: dict[str, Any], seed: int, folder: Path) -> Path:
    """Identify the rig unless this was done before; returns the file."""
    file = folder / "identified.yaml"
    if not file.exists():
        onrig.identify(rig.config, [f"device.twin={json.dumps(plant)}"], until=0.1, seed=seed, out=folder)
    return file


def advise(subject: Subject, folder: Path, objective: str, minutes: float, workers: int) -> Advice:
    """Race the candidates unless this was done before."""
    if not (folder / ADVICE_FILE).exists():
        resume = (folder / PLAN_FILE).exists()
        options = AdviseOptions(subject, objective, minutes, None, folder, resume, ExperimentOptions(workers, None))
        if show_advice(options):
            raise SystemExit("the race has no result")
    return msgspec.json.decode((folder / ADVICE_FILE).read_bytes(), type=Advice)


def arms(rig: Rig, race: Path, advice: Advice) -> Iterator[Candidate]:
    """Yield what is compared: the advised settings, those of the configuration, and the presets."""
    yield Candidate(UNCHANGED_NAME, "the configuration, unchanged", None)
    if advice.recipe is not None:
        yield Candidate(ADVISED, advice.best, yaml.safe_load((race / advice.recipe).read_text()))
    for name in rig.presets:
        recipe = yaml.safe_load(find_config(name, "recipes").read_text())
        yield Candidate(name, "preset", {k: recipe[k] for k in _SECTIONS if k in recipe})


def plant_of(drawn: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """The rig's plant as the only one that the trials draw."""
    plant = msgspec.convert(drawn, TwinOptions).plant
    imperfections = {name: getattr(plant, name) for name in _IMPERFECTIONS}
    return {name: (float(value),) for name, value in (plant.identifiable | plant.lumped | imperfections).items()}


def compare(subject: Subject, folder: Path, field: Field, n_pairs: int, workers: int) -> dict[str, Values]:
    """Run the missing trials; returns normalised curves (n, P) by arm."""
    cells, seeds = field.cells(), range(FIRST_SEED, FIRST_SEED + n_pairs)
    with lock_folder(folder, spec_of(subject.label, cells, n_pairs), cells):
        if todo := missing_units(folder, cells, seeds):
            running, there = LocalWorkers(workers), len(cells) * n_pairs - sum(len(unit.seeds) for unit in todo)
            try:
                run_units(folder, split_units(todo, workers, 4), there, running, PlainDisplay())
            finally:
                running.close()
    curves = {}
    for name, entry in field.entrants.items():
        trials = read_trials(folder, entry.cell)
        steps = episode_steps(entry.config.task, entry.config.rate_hz)
        row_of_seed = {seed: row for row, seed in enumerate(trials.seeds.tolist())}
        rows = trials.evaluation[[row_of_seed[seed] for seed in seeds]]
        curves[name] = fill_diverged(normalized_curves(entry.config.task, rows / steps))
    return curves


def difference(scores: Values, others: Values) -> dict[str, Any]:
    """Mean of a paired difference with its two-sided bounds, by Student's t."""
    paired = scores - others
    n = len(paired)
    half_width = student_quantile(0.5 + 0.5 * COVERAGE, n - 1) * float(paired.std(ddof=1)) / n**0.5
    mean = float(paired.mean())
    return {"mean": round(mean, 3), "bounds": [round(mean - half_width, 3), round(mean + half_width, 3)], "pairs": n}


def study(out: Path, rig: Rig, args: argparse.Namespace) -> dict[str, Any]:
    """Differences between the advised settings and the others, in final performance and in area."""
    drawn = draw_plant(load(rig.config, rig.settings), args.plant)
    identified = identify(rig, drawn, args.plant, out / "identified")
    common = (*rig.settings, f"identified={identified.resolve()}", f"episodes={args.episodes or rig.episodes}")
    race = out / "race"
    advice = advise(Subject(rig.config, common), race, args.objective, args.minutes, args.workers)
    sensors = {name: drawn[name] for name in ("sensor_noise", "sensor_zero")}
    subject = Subject(rig.config, (*common, *(f"device.twin.{k}={json.dumps(v)}" for k, v in sensors.items())))
    field = enter_candidates(subject, out, plant_of(drawn), arms(rig, race, advice))
    curves = compare(subject, out, field, args.pairs, args.workers)
    result: dict[str, Any] = {"advice": msgspec.to_builtins(advice), "left_out": field.refusal_reasons}
    if advice.recipe is not None and ADVISED not in curves:
        raise SystemExit(f"the advised settings cannot be compared: {field.refusal_reasons[ADVISED]}")
    advised = ADVISED if advice.recipe is not None else UNCHANGED_NAME
    for objective in ("final", "regret"):
        scores = {name: OBJECTIVES[objective].scores(of) for name, of in curves.items()}
        best = max((name for name in rig.presets if name in scores), key=lambda n: scores[n].mean(), default=None)
        result[objective] = {name: round(float(of.mean()), 3) for name, of in scores.items()} | {"best preset": best}
        for name in (UNCHANGED_NAME, best):
            if name is not None and name != advised:
                result[objective][f"advised - {name}"] = difference(scores[advised], scores[name])
    return result


def main() -> None:
    """Run the study, and print its result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("rig", choices=RIGS)
    parser.add_argument("--plant", type=int, default=0, metavar="SEED")
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--objective", choices=OBJECTIVES, default="regret")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(json.dumps(study(args.out, RIGS[args.rig], args), indent=1))


if __name__ == "__main__":
    main()
