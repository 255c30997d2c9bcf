"""Rig time from an unknown plant to a learned task: ``python -m tests.studies.pretraining OUT --plants 4``.

Each plant is a twin known only by its signals: lumped parameters within 30 % of the configuration's, dry friction,
dead band, delay, noise and zeros. It is identified until the parameters are known to 10 %, a policy is pretrained on
the posterior, and a run starts with it; cold starts of recipes on the same plants are compared, under the shield of
the same identification. Every run evaluates after each training episode. The rig time is all motion except
evaluations, until the first of 20 consecutive evaluations that reach ``--good``: identification and training
episodes, or training episodes only; trips and wear (full strokes of the actuators) are those of the training episodes
in it, or of all. ``--parts`` adds runs that start with the networks or with the memory alone; ``--outside 1.6`` adds
runs on the same plant with 1.6 times the mass, which its identification does not contain. Results in OUT are not
recomputed, so a stopped study continues.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import yaml

import onrig
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.episodes import EpisodeRow, read_rows
from onrig.sim.evaluation import score_on_plants
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import TwinOptions, sensor_half_range
from onrig.tools.api.run_data import RunData
from onrig.tools.identification.recorded import NotIdentified
from onrig.tools.identification.sharpening import sharpen_run
from onrig.tools.load import load, load_for_rig
from onrig.tools.pretrained import PRETRAINING_FILE, read_pretraining
from onrig.tools.pretraining.pretrain import pretrain, resume
from tests.lab.rig.processes import process_of, until

SPREAD: Final = 0.3
SHARE: Final = 0.1
"""Largest dry friction (of the velocity's half-range, per second) and dead band (of an actuator's range)."""
DELAY: Final = {"pendulum": 1.0}
"""Delay of a rig's actuator in periods."""
_OTHER_DELAY: Final = 0.8
"""Delay on other rigs: together with the transmission time their shield covers at most one period."""
NOISE: Final = (0.001, 0.005)
ZERO: Final = 0.02
IN_A_ROW: Final = 20
SOON: Final = 10
"""Episodes after which a run must have noticed that its plant is not the identified one."""
_OTHER_PART: Final = {"networks": ("selection", "seed_from"), "memory": ("learner", "start_from")}
"""Setting that is left out of a run that begins with only this part of a pretraining."""


def draw_plant(config: RunConfig, seed: int) -> dict[str, Any]:
    """Twin of an unknown rig, as an override."""
    rng = np.random.default_rng((45, seed))
    options, rig = twin_options(config), config.rig
    half = {s.name: sensor_half_range(rig, s.name) or 1.0 for s in rig.sensors}
    velocity = options.plant.state_names[-1]
    reach = min(max(abs(a.low - a.safe), abs(a.high - a.safe)) for a in rig.actuators)
    values = {n: v * (1.0 + rng.uniform(-SPREAD, SPREAD)) for n, v in options.plant.lumped.items()}
    values |= {n: v for n, v in options.plant.identifiable.items() if n not in values}
    plant = options.plant.with_identifiable(values).varied(
        {
            "dry_friction": rng.uniform(0.0, SHARE) * half.get(velocity, 1.0),
            "dead_band": rng.uniform(0.0, SHARE) * reach,
            "delay_s": DELAY.get(rig.name, _OTHER_DELAY) * config.period_us * 1e-6,
        }
    )
    zeros = {n: rng.uniform(-ZERO, ZERO) * h for n, h in half.items() if n != velocity}
    noise = {n: float(np.exp(rng.uniform(*np.log(NOISE)))) for n in half}
    twin: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(options, plant=plant, sensor_zero=zeros, sensor_noise=noise)
    )
    return twin


def recipe_settings(recipe: Path | str) -> list[str]:
    """Override for a recipe; none for ``own``, the configuration's algorithm."""
    return [] if recipe == "own" else [f"recipe={recipe}"]


def is_valid(config: str, overrides: list[str]) -> bool:
    """Whether a configuration passes its checks."""
    try:
        load_for_rig(config, overrides)
    except ConfigError:
        return False
    return True


def rig_conditions(config: str, common: list[str], drawn: dict[str, Any]) -> tuple[list[str], dict[str, Any] | None]:
    """Overrides of a run on the plant, and the twin if it needs a process of its own: as on a rig, nothing tells the
    configuration that its shield does not cover the plant.
    """
    twin = f"device.twin={json.dumps(drawn)}"
    if is_valid(config, [twin, *common]):
        return [twin, "evaluate_every=1"], None
    return ["limits.on_withdrawn=reduce", "evaluate_every=1"], drawn


def heavier(twin: dict[str, Any], factor: float) -> dict[str, Any]:
    """The twin of a pendulum with ``factor`` times its mass; its inertia remains."""
    plant = twin["plant"]
    return {**twin, "plant": {**plant, "mass": factor * plant["mass"]}}


def rig_time_s(rows: list[EpisodeRow], rate_hz: float, good_score: float) -> float | None:
    """Training time until the first of IN_A_ROW consecutive evaluations with ``good_score``; None without them."""
    passed, begun = 0.0, 0.0
    good = 0
    for row in rows:
        if row.kind == "train":
            passed += row.steps / rate_hz
        else:
            begun = begun if good else passed
            good = good + 1 if row.score >= good_score else 0
            if good == IN_A_ROW:
                return begun
    return None


def trips_and_wear(run: RunData, rig_s: float | None) -> tuple[int, float]:
    """Trips and full strokes of a run's first ``rig_s`` of training; None: of all its training."""
    records = run.records
    rows = np.flatnonzero(records["kind"] == Kind.TRAIN)
    if rig_s is not None:
        rows = rows[: round(rig_s * run.config.rate_hz)]
    if not len(rows):
        return 0, 0.0
    falls_back = np.isin(records["rule"][rows], [rule for rule in Rule if rule.falls_back])
    starts = np.diff(records["episode"][rows], prepend=-1) != 0
    trips = falls_back & (starts | ~np.roll(falls_back, 1))
    strokes = [a.high - a.low for a in run.config.rig.actuators]
    moved = np.abs(np.diff(records["applied"][rows].astype(np.float64), axis=0)) / strokes
    return int(trips.sum()), round(float(moved[~starts[1:]].sum()), 1)


def run_on_twin(folder: Path, name: str, overrides: list[str], twin: dict[str, Any]) -> None:
    """Run against the process of a twin that the configuration of the run does not describe, in lockstep."""
    link = folder.with_name(f"{folder.name}-port")
    settings = (f"device.twin={json.dumps(twin)}", "limits.predicted=null")
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    link.unlink(missing_ok=True)
    with process_of("onrig.tools.cli", "twin", name, "--link", link, *arguments) as process:
        port = until(lambda: link.exists() and link.read_text().strip(), "the twin", process)
        onrig.run(name, overrides, run_dir=folder, device=str(port))


def has_left_identification(folder: Path) -> bool:
    """Whether the newest data of a run contradict the identification that it began with."""
    try:
        sharpen_run(folder)
    except NotIdentified:
        return True
    return False


def run_once(
    folder: Path, name: str, overrides: list[str], good_score: float, twin: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Figures of one run, against the process of a ``twin`` if given; its log is deleted when they are computed."""
    result = folder / "figures.json"
    if result.exists():
        figures: dict[str, Any] = json.loads(result.read_text())
        return figures
    if folder.exists() and not (folder / "summary.json").exists():
        shutil.rmtree(folder)
    if not folder.exists():
        if twin is None:
            onrig.run(name, overrides, run_dir=folder)
        else:
            run_on_twin(folder, name, overrides, twin)
    run = onrig.open_run(folder)
    rows = read_rows(folder / "episodes.csv").rows
    evaluated = [row.score for row in rows if row.kind == "eval"]
    rig_s = rig_time_s(rows, run.config.rate_hz, good_score)
    trips, wear = trips_and_wear(run, rig_s)
    events = run.events
    withdrawn = [fields["episode"] for fields in events["fields"][events["kind"] == "promise_withdrawn"]]
    figures = {
        "rig_s": rig_s,
        "first": round(evaluated[0], 3),
        "last5": round(float(np.mean(evaluated[-5:])), 3),
        "trips": trips,
        "wear": wear,
        "interventions": sum(row.interventions for row in rows if row.kind == "train"),
        "episodes": sum(row.kind == "train" for row in rows),
        "withdrawn": withdrawn[0] if withdrawn else None,
    }
    if twin is not None and folder.name.startswith("outside"):
        figures["left"] = has_left_identification(folder)
    result.write_text(json.dumps(figures))
    (folder / "log.mcap").unlink(missing_ok=True)
    return figures


def score_on_rig(pretrained: Path, twin: dict[str, Any]) -> float:
    """Score of a pretraining's newest policy on the plant of the rig."""
    policies = (path for path in (pretrained / "policies").glob("*.onnx") if path.stem.isdecimal())
    newest_policy = max(policies, key=lambda path: int(path.stem)).read_bytes()
    config = load_resolved(pretrained / "config.yaml")
    return next(score_on_plants(config, newest_policy, msgspec.convert(twin, TwinOptions), config.seed))


def study(out: Path, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Figures of one plant."""
    began_s = time.process_time()
    folder = out / f"{Path(args.config).stem}-{seed}"
    drawn = draw_plant(load(args.config), seed)
    twin = f"device.twin={json.dumps(drawn)}"
    identified = folder / "identified" / "identified.yaml"
    if not identified.exists():
        onrig.identify(args.config, [twin], until=0.1, seed=seed, out=identified.parent)
    source = next(line for line in identified.read_text().splitlines() if line.startswith("source:"))
    motion_s = float(source.rsplit(", ", 1)[1].split(" ")[0])
    common = [f"identified={identified}", f"seed={seed}", *args.set]
    pretrained = folder / "pretrained"
    began = time.monotonic()
    if not (pretrained / PRETRAINING_FILE).exists():
        pretrain(args.config, [*common, *recipe_settings(args.recipe)], out=pretrained, minutes=args.minutes)
    elif not read_pretraining(pretrained).ended:
        resume(pretrained)
    record = read_pretraining(pretrained)
    runs = {}
    on_rig, rig = rig_conditions(args.config, common, drawn)
    warm = [f"recipe={pretrained / 'start.yaml'}", *common, *on_rig, f"episodes={args.warm}"]
    runs["pretrained"] = run_once(folder / "run", args.config, warm, args.good, rig)
    for part, (section, key) in _OTHER_PART.items() if args.parts else ():
        recipe = yaml.safe_load((pretrained / "start.yaml").read_text())
        del recipe[section][key]
        if key == "start_from":
            recipe["learner"].pop("screening", None)
        path = pretrained / f"start-{part}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        overrides = [f"recipe={path}", *common, *on_rig, f"episodes={args.parts}"]
        runs[f"{part} alone"] = run_once(folder / part, args.config, overrides, args.good, rig)
    for figures in runs.values():
        if figures["rig_s"] is not None:
            figures["rig_s"] += motion_s
    for recipe in args.cold:
        overrides = [*recipe_settings(recipe), *common, *on_rig, f"episodes={args.cold_episodes}"]
        runs[f"cold, {recipe}"] = run_once(folder / f"cold-{recipe}", args.config, overrides, args.good, rig)
    started = str(pretrained / "start.yaml")
    outside = {"pretrained": (started, args.outside_episodes), "cold": (args.recipe, args.outside_episodes)}
    outside["first"] = started, SOON
    for name, (recipe, episodes) in outside.items() if args.outside else ():
        overrides = [*recipe_settings(recipe), *common, "evaluate_every=1", "limits.on_withdrawn=reduce"]
        overrides.append(f"episodes={episodes}")
        heavy = heavier(drawn, args.outside)
        runs[f"outside, {name}"] = run_once(folder / f"outside-{name}", args.config, overrides, args.good, heavy)
    low, high = record.evaluations[-1].range
    return {
        "plant": seed,
        "identify_s": motion_s,
        "pretrain": {"episodes": record.evaluations[-1].episode, "s": record.seconds, "ended": record.ended},
        "promise": [round(low, 3), round(high, 3)],
        "policy_on_plant": round(score_on_rig(pretrained, drawn), 4),
        "runs": runs,
        "cost_s": [round(time.process_time() - began_s), round(time.monotonic() - began)],
    }


def main() -> None:
    """Run the study, and print a line for each plant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="pendulum")
    parser.add_argument("--recipe", default="pendulum-vracer")
    parser.add_argument("--cold", nargs="*", default=["pendulum-vracer", "pendulum-sac"])
    parser.add_argument("--plants", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--good", type=float, default=0.8, metavar="SCORE")
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--cold-episodes", type=int, default=200)
    parser.add_argument("--parts", type=int, default=0, metavar="EPISODES")
    parser.add_argument("--outside", type=float, default=0.0, metavar="FACTOR")
    parser.add_argument("--outside-episodes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.plants):
        print(json.dumps(study(args.out, args, seed)), flush=True)


if __name__ == "__main__":
    main()
