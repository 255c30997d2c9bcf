"""Report of a run, or of an experiment: tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.measures import BUFFER_SIZE_LEVEL, estimate_buffer_size
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_fields
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig, layout_of
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.folder_access import check_folder
from onrig.runtime.scoring import measure_of
from onrig.runtime.view.run_view import episode_columns, read_episodes, read_run
from onrig.tools.damage import POLICY_PATTERNS, REPORT_PATTERNS, exit_code_with_damage, print_damage
from onrig.tools.experiments.store import SPEC
from onrig.tools.load import print_problems
from onrig.tools.quantity import format_size
from onrig.tools.run_description import describe_bounds, describe_promise, describe_run
from onrig.tools.run_facts import facts_from_summary
from onrig.tools.terminal import Table, complain, draw_or_report, file_problem, folder_problem

RISE_LEVEL: Final = 0.8
"""Normalised performance level that determines the rise time (de Bruin et al. 2018, §5.1)."""
_PAPER: Final = "de Bruin et al. 2018"
_RULE_STRATEGY: Final = "FULL[Uniform]"
_SUMMARY_FACTS: Final = ("memory", "learner", "policies", "ticks", "time of a tick", "lateness", "shield", "faults")

Values = NDArray[np.float64]
Summary = Mapping[str, object]


class Curve(NamedTuple):
    """Performance over a run's training or evaluation episodes."""

    kind: str
    """``train`` or ``eval``."""
    episode: Values
    steps: Values
    """Number of training steps up to the end of each episode."""
    score: Values
    """Scores in the measure of ``onrig.runtime.scoring.measure_of``."""


def report(folder: Path, out: Path | None, tensorboard: Path | None, pages: Path | None) -> int:
    """Report the results of a run (to the page ``out`` or to ``tensorboard``) or of an experiment (to ``pages``), and
    return the exit code.
    """
    outputs = (
        file_problem("out", out),
        folder_problem("tensorboard", tensorboard),
        folder_problem("pages", pages),
    )
    if problem := next(filter(None, outputs), None):
        return complain("report", problem)
    if tensorboard is None and folder.is_dir():
        try:
            check_folder(folder)
        except OSError as error:
            return complain("report", f"'{folder}' cannot be written: {error.strerror or error}")
    if not (folder / "config.yaml").is_file():
        if (folder / SPEC).is_file():
            from onrig.tools.reports.experiment import report_experiment

            if out is not None or tensorboard is not None:
                return complain("report", f"'{folder}' contains an experiment: --out and --tensorboard are for runs")
            return report_experiment(folder, pages)
        problem_text = (
            f"contains no run (config.yaml) and no experiment ({SPEC})" if folder.is_dir() else "is not a folder"
        )
        return complain("report", f"'{folder}' {problem_text}")
    if pages is not None:
        return complain("report", f"'{folder}' contains a run: --pages is for experiments")
    try:
        config = load_resolved(folder / "config.yaml")
    except ConfigError as error:
        return print_problems(error)
    damage = print_damage("report", folder, *REPORT_PATTERNS, *POLICY_PATTERNS)
    for name, reason in read_run(folder, config).unusable.items():  # covers runs that have no checksums yet
        if not any(f"{folder}: {name} " in line for line in damage):
            damage.append(f"{folder}: {name} cannot be used: {reason}")
            complain("report", damage[-1])
    if tensorboard is not None:
        return exit_code_with_damage(_write_tensorboard(folder, config, tensorboard), damage)
    print(report_table(folder, config), flush=True)
    from onrig.tools.reports.run.charts import draw_learning_curve
    from onrig.tools.reports.run.report import report_run

    plot = draw_or_report(
        "learning_curve.png", lambda: draw_learning_curve(folder, config), lambda line: complain("report", line)
    )
    try:
        page = report_run(folder, config, out, damage)
    except OSError as error:
        return complain("report", f"'{error.filename or folder}' cannot be written: {error.strerror or error}")
    if plot is not None:
        print(f"\nsee {plot}")
    print(f"{'' if plot is not None else chr(10)}see {page}")
    return exit_code_with_damage(ExitCode.OK, damage)


def _write_tensorboard(folder: Path, config: RunConfig, out: Path) -> int:
    from onrig.tools.reports.run.tensorboard import write_curves

    try:
        written = write_curves(folder, config, out)
    except ImportError:
        return complain("report", "--tensorboard needs tensorboardX: pip install 'onrig[log]'", ExitCode.PREFLIGHT)
    except OSError as error:
        return complain("report", f"'{error.filename or out}' cannot be written: {error.strerror or error}")
    print(f"{written} values written; view with: tensorboard --logdir {out}")
    return ExitCode.OK


def report_table(folder: Path, config: RunConfig) -> Table:
    """Return a summary of a run, which omits the parts that an aborted run lacks."""
    train, curve = learning_curves(folder, config)
    summary = read_fields(folder / "summary.json")
    rows = [
        ("configuration", describe_run(config)),
        ("strategy", _strategy(config)),
        *_summary_rows(summary, config),
        *_episode_rows(train, curve, config),
        *_memory_rule_rows(curve, config),
    ]
    return Table(f"run {folder}", (), tuple(rows))


def learning_curves(folder: Path, config: RunConfig) -> tuple[Curve, Curve]:
    """Return the training curve and the performance curve. The latter shows evaluation episodes if there are any;
    otherwise it is the training curve.
    """
    episodes, column = read_episodes(folder), measure_of(config.task).column
    train, evaluation = (episode_columns(episodes, kind) for kind in ("train", "eval"))
    total_steps = np.cumsum(train["steps"])
    training = Curve("train", train["episode"], total_steps, train[column])
    if not len(evaluation["episode"]):
        return training, training
    # An evaluation episode has the number of the preceding training episode.
    preceding = np.searchsorted(train["episode"], evaluation["episode"], "right")
    steps = np.concatenate(([0.0], total_steps))[preceding]
    return training, Curve("eval", evaluation["episode"], steps, evaluation[column])


def rise_time(curve: Curve, level: float = RISE_LEVEL) -> int | None:
    """Return the first episode with a score of at least ``level``, or None if there is none."""
    episodes = np.flatnonzero(curve.score >= level)
    return int(curve.episode[episodes[0]]) if len(episodes) else None


def best_stretch(curve: Curve, length: int = 20) -> tuple[float, int, int] | None:
    """Return the highest mean score over ``length`` consecutive episodes (fewer in a shorter run), with the first and
    last of these episodes. Return None if there are no episodes.
    """
    n = min(length, len(curve.score))
    if not n:
        return None
    cumulative = np.cumsum(np.concatenate(([0.0], curve.score)))
    means = (cumulative[n:] - cumulative[:-n]) / n
    start = int(np.argmax(means))
    return float(means[start]), int(curve.episode[start]), int(curve.episode[start + n - 1])


def _strategy(config: RunConfig) -> str:
    selection = config.selection
    text = selection.strategy
    if selection.write_probability < 1:
        text += f", each experience kept with probability {selection.write_probability:g}"
    synthetic = selection.synthetic
    if synthetic is not None:
        text += f", synthetic: states {synthetic.states:g}, actions {synthetic.actions:g}"
        text += f", refresh {synthetic.refresh:g}"
    return text


def _summary_rows(summary: Summary, config: RunConfig) -> Iterator[tuple[str, str]]:
    if not summary:
        yield "ended", "no summary.json: the run is in progress or was killed"
        return
    facts = facts_from_summary(config, summary).words()
    yield "ended", f"{facts.get('ended', '?')}, episode {facts['episodes']}"
    yield from ((name, facts[name]) for name in _SUMMARY_FACTS if name in facts)
    yield "shield keeps", describe_bounds(config)
    yield "promise", describe_promise(config, withdrawn="promise" in facts)


def _episode_rows(train: Curve, curve: Curve, config: RunConfig) -> Iterator[tuple[str, str]]:
    if not len(train.episode):
        yield "performance", "no complete episode"
        return
    last_scores, measure = train.score[-20:], measure_of(config.task)
    is_raw = config.task.normalization is None
    number_format = measure.number_format if is_raw else ".3f"
    yield f"{'return, ' * is_raw}last 20", f"{np.mean(last_scores):{number_format}} (training, {measure.scale})"
    best = best_stretch(train)
    if best is not None:
        yield f"{'return, ' * is_raw}best 20", f"{best[0]:{number_format}} (training, episodes {best[1]} to {best[2]})"
    if is_raw:
        yield "rise time", f"unknown: {RISE_LEVEL:g} is a normalised reward; set task.normalization"
        return
    rise_episode = rise_time(curve)
    kind = "evaluation" if curve.kind == "eval" else "training"
    yield (
        "rise time",
        f"{RISE_LEVEL:g} first reached in episode {rise_episode} ({kind})"
        if rise_episode
        else f"{RISE_LEVEL:g} was not reached ({kind})",
    )


def _memory_rule_rows(curve: Curve, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield rows with the memory size that the rule of de Bruin et al. 2018, §8.5, suggests, and with the rule's
    caveats.
    """
    if not len(curve.score):
        return  # another row reports that no episode is complete
    if config.task.normalization is None:
        yield "rule of thumb", "not applicable: it needs normalised rewards (task.normalization)"
        return
    result = estimate_buffer_size(curve.steps, curve.score)
    if result is None:
        yield "rule of thumb", "not applicable: the final performance is no better than that of random actions"
        return
    memory = format_size(result.n_experiences * layout_of(config).row_bytes)
    yield "rule of thumb", f"a memory of about {result.n_experiences} experiences ({memory})"
    yield (
        "",
        f"with which the run reached {BUFFER_SIZE_LEVEL:.0%} of its final performance of "
        f"{result.final_performance:.3f} ({_PAPER}, §8.5)",
    )
    if not result.has_converged:
        yield "", "but the performance was still rising: a larger memory may be needed"
    if str(parse_strategy(config.selection.strategy)) != _RULE_STRATEGY:
        yield "", f"but the rule applies only to runs with {_RULE_STRATEGY}"
