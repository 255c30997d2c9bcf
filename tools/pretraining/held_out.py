"""Scores of a pretraining's policies on the held-out plants, with the tick, shield and twin of a lockstep run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from onrig.hw.transport import LinkError
from onrig.runtime.control.tick import Tick
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.policy.admission import Refused
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.episodes import EpisodeAccounts
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.options import sampled_options
from onrig.tools.evaluate import admission_verdict, lockstep_session, play_episode, read_model, record_packer
from onrig.tools.pretraining.configuration import Columns


def held_out_scores(config: RunConfig, folder: Path, plants: Columns, *, first: bool) -> tuple[float, ...]:
    """Score the newest policy of a run (or the ``first`` one) in one evaluation episode on each plant.

    Raises Failure for a policy or plant that cannot be simulated.
    """
    path = _policy(folder, first=first)
    model = read_model(path, config)
    verdict = model if isinstance(model, Refused) else admission_verdict(model, config)
    if isinstance(verdict, Refused):
        raise Failure(f"{path}: refused at {verdict.stage}: {verdict.reason}")
    assert isinstance(model, bytes)
    policy, tick, pack = PolicySession(model, native=verdict.native), Tick(config), record_packer(config)
    options = msgspec.structs.replace(twin_options(config), samples=plants)
    scores = []
    try:
        for index in range(len(next(iter(plants.values())))):
            twin = msgspec.to_builtins(sampled_options(options, index))
            session = lockstep_session(
                msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, twin=twin))
            )
            accounts = EpisodeAccounts(config.task, config.rate_hz, config.rig)
            rows = accounts.add(pack(play_episode(session, tick, policy, index + 1, config.seed)))
            scores += [row.score for row in rows]
    except LinkError as error:
        raise Failure(f"plant {index + 1} of the posterior: {error}", ExitCode.HARDWARE) from None
    return tuple(scores)


def _policy(folder: Path, *, first: bool) -> Path:
    ids = sorted(int(path.stem) for path in (folder / "policies").glob("*.onnx") if path.stem.isdecimal())
    if not ids:
        raise Failure(f"'{folder}' contains no policy: the learner offered none")
    return folder / "policies" / f"{ids[0 if first else -1]}.onnx"
