"""Scores of a pretraining's policies on the held-out plants, with the tick, shield and twin of a lockstep run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from onrig.hw.transport import LinkError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.policy.admission import Refused
from onrig.runtime.run_config import RunConfig
from onrig.sim.evaluation import admission_verdict, read_model, score_on_plants
from onrig.sim.plants.trial import PlantFailure
from onrig.sim.twin.main import twin_options
from onrig.tools.pretraining.configuration import Columns


def held_out_scores(config: RunConfig, folder: Path, plants: Columns, *, first: bool) -> tuple[float, ...]:
    """Score the newest policy of a run (or the ``first`` one) in one evaluation episode on each plant.

    Raises Failure for a policy or plant that cannot be simulated.
    """
    path = _policy(folder, first=first)
    model = read_model(path, config)
    verdict = model if isinstance(model, Refused) else admission_verdict(model, config)
    if isinstance(verdict, Refused):
        raise Failure(f"{path}: refused by the {verdict.stage} check: {verdict.reason}")
    assert isinstance(model, bytes)
    options = msgspec.structs.replace(twin_options(config), samples=plants)
    scores: list[float] = []
    try:
        for score in score_on_plants(config, model, options, config.seed, native=verdict.native):
            scores.append(score)
    except (LinkError, PlantFailure) as error:
        raise Failure(f"plant {len(scores) + 1} of the posterior: {error}", ExitCode.HARDWARE) from None
    return tuple(scores)


def _policy(folder: Path, *, first: bool) -> Path:
    ids = sorted(int(path.stem) for path in (folder / "policies").glob("*.onnx") if path.stem.isdecimal())
    if not ids:
        raise Failure(f"'{folder}' contains no policy: the learner offered none")
    return folder / "policies" / f"{ids[0 if first else -1]}.onnx"
