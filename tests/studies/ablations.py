"""One part of a pretraining changed at a time: ``python -m tests.studies.ablations OUT --plants 4``.

OUT is the folder of a finished ``tests.studies.pretraining``, whose identifications and pretrainings are used.
``posterior`` pretrains (almost) on the point estimate instead of the joint samples, ``symmetric`` samples half of each
minibatch from the pretraining's experiences, ``updates`` makes four times as many updates; ``whole`` is the unchanged
start. Each run begins on the rig's plant, and evaluates after each training episode. Finished runs are kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from onrig.tools.load import load
from onrig.tools.pretrained import PRETRAINING_FILE, read_pretraining
from onrig.tools.pretraining.pretrain import pretrain, resume
from tests.studies.pretraining import draw_plant, recipe_settings, rig_conditions, run_once

POSTERIOR: Final = "posterior"
_NARROW: Final = 1e-3


def with_symmetric_sampling(recipe: dict[str, Any]) -> None:
    """Sample half of each minibatch from the pretraining; twice the memory, because prior experiences fill half."""
    selection = recipe["selection"]
    retention, sampling = selection["strategy"].removesuffix("]").split("[", 1)
    selection["strategy"] = f"{retention}[Prior(0.5)[{sampling}]]"
    selection["capacity"] *= 2


def with_more_updates(recipe: dict[str, Any]) -> None:
    """Four times as many updates."""
    recipe["learner"]["updates_per_episode"] *= 4


CHANGES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "whole": lambda recipe: None,
    "symmetric": with_symmetric_sampling,
    "updates": with_more_updates,
    POSTERIOR: lambda recipe: None,
}


def point_estimate(identified: Path, file: Path) -> Path:
    """Write the identification with a thousandth of its spread around the estimates to ``file``; returns it."""
    content = yaml.safe_load(identified.read_text())
    values = [parameter["value"] for parameter in content["parameters"]]
    content["samples"] = [
        [value + _NARROW * (sampled - value) for value, sampled in zip(values, sample, strict=True)]
        for sample in content["samples"]
    ]
    file.write_text(yaml.safe_dump(content))
    return file


def study(folder: Path, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Figures of each run on one plant."""
    drawn, figures = draw_plant(load(args.config), seed), {}
    for name in args.changes:
        pretrained, identified = folder / "pretrained", folder / "identified" / "identified.yaml"
        if name == POSTERIOR:
            pretrained, identified = folder / "pretrained-point", point_estimate(identified, folder / "point.yaml")
        common = [f"identified={identified}", f"seed={seed}"]
        if not (pretrained / PRETRAINING_FILE).exists():
            pretrain(args.config, [*common, *recipe_settings(args.recipe)], out=pretrained, minutes=args.minutes)
        elif not read_pretraining(pretrained).ended:
            resume(pretrained)
        recipe = yaml.safe_load((pretrained / "start.yaml").read_text())
        CHANGES[name](recipe)
        changed = pretrained / f"start-{name}.yaml"
        changed.write_text(yaml.safe_dump(recipe))
        on_rig, rig = rig_conditions(args.config, common, drawn)
        overrides = [f"recipe={changed}", *common, *on_rig, f"episodes={args.episodes}"]
        figures[name] = run_once(folder / f"ablation-{name}", args.config, overrides, args.good, rig)
    return {"plant": seed, **figures}


def main() -> None:
    """Run the study, and print a line for each plant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="pendulum")
    parser.add_argument("--recipe", default="pendulum-vracer")
    parser.add_argument("--changes", nargs="*", choices=CHANGES, default=[*CHANGES])
    parser.add_argument("--plants", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--good", type=float, default=0.8, metavar="SCORE")
    args = parser.parse_args()
    for seed in range(args.first, args.first + args.plants):
        print(json.dumps(study(args.out / f"{Path(args.config).stem}-{seed}", args, seed)), flush=True)


if __name__ == "__main__":
    main()
