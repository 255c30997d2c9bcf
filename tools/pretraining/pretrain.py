"""Pretraining on drawn plants in pieces, each followed by an evaluation on held-out plants; resumable at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_fields, read_file, replace_own_file
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import find_identification, load_resolved
from onrig.runtime.supervise.run_folder import occupied_reason
from onrig.sim.identification.result import read_result
from onrig.tools.load import load_for_rig, rig_findings
from onrig.tools.pretrained import (
    PRETRAINING_FILE,
    Pretraining,
    Scores,
    has_settled,
    read_pretraining,
    write_pretraining,
)
from onrig.tools.pretraining.attempts import attempt_config, is_stuck, kept_names, set_aside
from onrig.tools.pretraining.configuration import (
    exploration_end_episode,
    piece_episodes,
    pretraining_config,
    split_samples,
)
from onrig.tools.pretraining.held_out import held_out_scores
from onrig.tools.pretraining.start import write_start
from onrig.tools.resumption import CannotResume, prepare_resumption
from onrig.tools.running import Plan, open_folder, supervise
from onrig.tools.terminal import folder_problem

DEFAULT_MINUTES: Final = 10.0
MAX_EPISODES: Final = 10_000

ScoreSink = Callable[[RunConfig, Scores], object]
"""Function that receives the scores of each evaluation."""
AttemptSink = Callable[[Pretraining], object]
"""Function that receives the record after an attempt that learned nothing."""


class PretrainingStopped(Failure):
    """The pretraining was stopped by the user or by a fault."""


def pretrain(
    name: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path,
    minutes: float = DEFAULT_MINUTES,
    episodes: int = MAX_EPISODES,
    on_evaluation: ScoreSink = lambda config, scores: None,
    on_failed_attempt: AttemptSink = lambda record: None,
    signals: bool = False,
) -> Pretraining:
    """Learn on plants drawn from a configuration's identification until the score has settled.

    ``name`` is the path or shipped name of a configuration that names an identification; ``minutes`` and ``episodes``
    are limits. Writes a run folder with ``pretraining.json``, ``identified.yaml`` and ``start.yaml`` to ``out``.
    ``on_evaluation`` receives the scores on the held-out plants after each piece, ``on_failed_attempt`` the record
    before learning starts again. Raises ConfigError, Failure, and PretrainingStopped.

    >>> onrig.pretrain("pendulum", ["identified=found/identified.yaml"], out="pretrained").evaluations[-1].median
    """
    out = Path(out)
    config = load_for_rig(name, overrides)
    if config.cameras:
        raise Failure(f"{name} has images among its inputs: pretraining supports no cameras")
    file = find_identification(name, overrides)
    if file is None:
        remedy = f"onrig identify {name} --out found, then --set identified=found/identified.yaml"
        raise Failure(f"{name} names no identification from which to draw plants: {remedy}")
    if problem := _folder_problem(out):
        raise Failure(f"--out: {problem}")
    result = read_result(file)
    plants = split_samples(result, config, str(file))
    n_piece_episodes = min(piece_episodes(config), episodes)
    first_config = pretraining_config(config, result, plants.training_samples, n_piece_episodes)
    for path, message in rig_findings(first_config):
        raise Failure(f"{name}: {message} ({'.'.join(map(str, path))}, in the configuration of its pretraining)")
    record = Pretraining(
        config=name, identified=str(config.identified), held_out=plants.held_out, piece=n_piece_episodes,
        minutes=minutes, episodes=episodes,
    )  # fmt: skip

    def begin(folder: Path) -> None:
        replace_own_file(folder / FILE_NAME, read_file(file, MAX_JSON_BYTES), durable=True)
        write_pretraining(folder, record)

    _run_piece(Plan(name, first_config, out, None), begin, signals=signals)
    return _continue_pretraining(out, on_evaluation, on_failed_attempt, signals=signals)


def resume(
    folder: Path,
    *,
    on_evaluation: ScoreSink = lambda config, scores: None,
    on_failed_attempt: AttemptSink = lambda record: None,
    signals: bool = False,
) -> Pretraining:
    """Continue a pretraining to its end, however it was stopped. Raises Failure and PretrainingStopped."""
    record = read_pretraining(folder)
    if record.ended:
        raise Failure(f"the pretraining in '{folder}' has ended: {record.ended}")
    return _continue_pretraining(folder, on_evaluation, on_failed_attempt, signals=signals)


def _folder_problem(out: Path) -> str | None:
    try:
        reason = occupied_reason(out)
    except OSError as error:
        return f"'{out}' cannot be read: {error.strerror or error}"
    if reason and (out / PRETRAINING_FILE).exists():
        return f"'{out}' already contains a pretraining; --resume continues it"
    return f"'{out}' {reason}; choose another folder" if reason else folder_problem("out", out)


def _continue_pretraining(
    folder: Path, on_evaluation: ScoreSink, on_failed_attempt: AttemptSink, *, signals: bool
) -> Pretraining:
    """Run and evaluate pieces, in as many attempts as it takes, until the pretraining has ended."""
    started_s = time.monotonic()
    record = read_pretraining(folder)
    while not record.ended:
        set_aside(folder, len(record.failed_attempts))
        episode = min((len(record.evaluations) or 1) * record.piece, record.episodes)
        plan = _next_piece(folder, episode, len(record.failed_attempts))
        if plan is not None:
            _run_piece(plan, lambda folder: None, signals=signals)
        config = load_resolved(folder / "config.yaml")
        new_episodes = [0, episode] if not record.evaluations else [episode]
        evaluations = [*record.evaluations]
        for episodes in new_episodes:
            evaluations.append(Scores(episodes, held_out_scores(config, folder, record.held_out, first=episodes == 0)))
            on_evaluation(config, evaluations[-1])
        now_s = time.monotonic()
        seconds, started_s = record.seconds + now_s - started_s, now_s
        record = msgspec.structs.replace(record, evaluations=tuple(evaluations), seconds=round(seconds, 1))
        record = msgspec.structs.replace(record, ended=_end_reason(record, exploration_end_episode(config)))
        if record.ended:
            write_start(folder, config, record)
        elif is_stuck(record.evaluations, len(record.failed_attempts)):
            failed_attempts = (*record.failed_attempts, record.evaluations)
            record = msgspec.structs.replace(record, evaluations=(), failed_attempts=failed_attempts)
        write_pretraining(folder, record)
        if record.failed_attempts and not record.evaluations:
            on_failed_attempt(record)
    return record


def _end_reason(record: Pretraining, exploration_end: float) -> str:
    """Return why a pretraining ends after its latest evaluation, or an empty string if it continues.

    A score that settles before the training episode ``exploration_end`` may be a plateau, since exploration is yet to
    decrease.
    """
    episode = record.evaluations[-1].episode
    if episode >= exploration_end and has_settled(record.evaluations):
        return "settled"
    if episode >= record.episodes:
        return f"limit of {record.episodes} episodes"
    return f"limit of {record.minutes:g} minutes" if record.seconds >= 60.0 * record.minutes else ""


def _next_piece(folder: Path, episode: int, n_failed: int) -> Plan | None:
    """Return the plan of the piece that ends with ``episode``, in the attempt that follows ``n_failed`` failed ones, or
    None if the piece is complete.
    """
    if n_failed and not (folder / "config.yaml").exists():
        config = attempt_config(folder, n_failed, episode)
        return Plan(str(folder), config, folder, None, other_names=kept_names(n_failed))
    if _n_episodes_done(folder) >= episode:
        return None
    try:
        resumption = prepare_resumption(folder, None, [f"episodes={episode}"])
    except CannotResume as error:
        raise Failure(str(error)) from None
    except ConfigError as error:
        raise Failure(str(error.problems[0])) from None
    return Plan(str(folder), resumption.config, folder, None, resumption)


def _n_episodes_done(folder: Path) -> int:
    """Return the number of training episodes in complete pieces."""
    summary = read_fields(folder / "summary.json")
    episodes = summary.get("episodes")
    return episodes if summary.get("exit_reason") == "completed" and isinstance(episodes, int) else 0


def _run_piece(plan: Plan, begin: Callable[[Path], None], *, signals: bool) -> None:
    with open_folder(plan) as (config, take_back):
        begin(plan.folder)
        result = supervise(plan._replace(config=config), lambda report: None, take_back, signals=signals)
    if result.code != ExitCode.OK:
        raise PretrainingStopped(f"{plan.folder}: {result.reason}", result.code)
