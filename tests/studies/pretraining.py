"""Rig time from an unknown plant to a learned task: ``python -m tests.studies.pretraining OUT --plants 4``.

Each plant is a twin known only by its signals: lumped parameters within 30 % of the configuration's, dry friction, dead
band, delay, noise and zeros. It is identified until the parameters are known to 10 %, a policy is pretrained on the
posterior, and a run starts with it; cold starts of recipes on the same plants are compared, under the shield of the
same identification. Every run evaluates after each training episode. The rig time is all motion except evaluations,
until the first of 20 consecutive evaluations that reach 0.8: identification and training episodes, or training episodes
only. Results in OUT are not recomputed, so a stopped study continues.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import onrig
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeRow, read_rows
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import sensor_half_range
from onrig.tools.load import load
from onrig.tools.pretrained import PRETRAINING_FILE, read_pretraining
from onrig.tools.pretraining.pretrain import pretrain, resume

SPREAD: Final = 0.3
SHARE: Final = 0.1
"""Largest dry friction (of the velocity's half-range, per second) and dead band (of an actuator's range)."""
DELAY: Final = {"pendulum": 1.0}
"""Delay of a rig's actuator in periods."""
_OTHER_DELAY: Final = 0.8
"""Delay on other rigs: together with the transmission time their shield covers at most one period."""
NOISE: Final = (0.001, 0.005)
ZERO: Final = 0.02
GOOD: Final = 0.8
IN_A_ROW: Final = 20


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


def rig_time_s(rows: list[EpisodeRow], rate_hz: float) -> float | None:
    """Training time until the first of IN_A_ROW consecutive good evaluations; None without them."""
    passed, begun = 0.0, 0.0
    good = 0
    for row in rows:
        if row.kind == "train":
            passed += row.steps / rate_hz
        else:
            begun = begun if good else passed
            good = good + 1 if row.score >= GOOD else 0
            if good == IN_A_ROW:
                return begun
    return None


def run_once(folder: Path, name: str, overrides: list[str]) -> dict[str, Any]:
    """Figures of one run."""
    if not (folder / "summary.json").exists():
        onrig.run(name, overrides, run_dir=folder)
    config = onrig.open_run(folder).config
    rows = read_rows(folder / "episodes.csv").rows
    evaluated = [row.score for row in rows if row.kind == "eval"]
    return {
        "rig_s": rig_time_s(rows, config.rate_hz),
        "first": round(evaluated[0], 3),
        "interventions": sum(row.interventions for row in rows if row.kind == "train"),
        "episodes": sum(row.kind == "train" for row in rows),
    }


def study(out: Path, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Figures of one plant."""
    began_s = time.process_time()
    folder = out / f"{Path(args.config).stem}-{seed}"
    twin = f"device.twin={json.dumps(draw_plant(load(args.config), seed))}"
    identified = folder / "identified" / "identified.yaml"
    if not identified.exists():
        onrig.identify(args.config, [twin], until=0.1, seed=seed, out=identified.parent)
    source = next(line for line in identified.read_text().splitlines() if line.startswith("source:"))
    motion_s = float(source.rsplit(", ", 1)[1].split(" ")[0])
    common = [f"identified={identified}", f"seed={seed}", *args.set]
    pretrained = folder / "pretrained"
    began = time.monotonic()
    if not (pretrained / PRETRAINING_FILE).exists():
        pretrain(args.config, [*common, f"recipe={args.recipe}"], out=pretrained, minutes=args.minutes)
    elif not read_pretraining(pretrained).ended:
        resume(pretrained)
    record = read_pretraining(pretrained)
    runs = {}
    on_rig = [twin, "evaluate_every=1", "log.mcap=false"]
    warm = [f"recipe={pretrained / 'start.yaml'}", *common, *on_rig, f"episodes={args.warm}"]
    runs["pretrained"] = run_once(folder / "run", args.config, warm)
    if runs["pretrained"]["rig_s"] is not None:
        runs["pretrained"]["rig_s"] += motion_s
    for recipe in args.cold:
        overrides = [f"recipe={recipe}", *common, *on_rig, f"episodes={args.cold_episodes}"]
        runs[f"cold, {recipe}"] = run_once(folder / f"cold-{recipe}", args.config, overrides)
    low, high = record.evaluations[-1].range
    return {
        "plant": seed,
        "identify_s": motion_s,
        "pretrain": {"episodes": record.evaluations[-1].episode, "s": record.seconds, "ended": record.ended},
        "promise": [round(low, 3), round(high, 3)],
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
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--cold-episodes", type=int, default=200)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.plants):
        print(json.dumps(study(args.out, args, seed)), flush=True)


if __name__ == "__main__":
    main()
