"""Pretraining in a terminal: a line per evaluation, the expected score, and the command for a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.run_config import RunConfig
from onrig.runtime.scoring import measure_of
from onrig.tools.load import print_problems
from onrig.tools.pretrained import N_HELD_OUT_PLANTS, Pretraining, Scores, total_improvement
from onrig.tools.pretraining.attempts import attempt_folder
from onrig.tools.pretraining.pretrain import DEFAULT_MINUTES, MAX_EPISODES, PretrainingStopped, pretrain, resume
from onrig.tools.quantity import format_estimate
from onrig.tools.terminal import complain


def show_pretraining(
    name: str | None,
    overrides: Sequence[str],
    out: Path | None,
    minutes: float | None,
    episodes: int | None,
    resumed_folder: Path | None,
) -> int:
    """Start or continue a pretraining, print the expected score on the rig, and return the exit code."""
    folder = resumed_folder or out or Path(f"pretrained-{Path(str(name)).resolve().stem}")

    def show(config: RunConfig, scores: Scores) -> None:
        measure = measure_of(config.task).title
        print(
            f"episode {scores.episode:5d}: {measure} {format_estimate(scores.median, 3)}, {_format_range(scores)}",
            flush=True,
        )

    def show_failed_attempt(record: Pretraining) -> None:
        n_failed, last_scores = len(record.failed_attempts), record.failed_attempts[-1][-1]
        print(
            f"no better than the first policy after {last_scores.episode} episodes: learning starts again with another "
            f"seed and a longer horizon (attempt {n_failed + 1}); "
            f"the episodes so far are in {attempt_folder(folder, n_failed)}",
            flush=True,
        )

    try:
        if resumed_folder is not None:
            record = resume(resumed_folder, on_evaluation=show, on_failed_attempt=show_failed_attempt, signals=True)
        else:
            record = pretrain(
                str(name), overrides, out=folder, minutes=minutes or DEFAULT_MINUTES, episodes=episodes or MAX_EPISODES,
                on_evaluation=show, on_failed_attempt=show_failed_attempt, signals=True,
            )  # fmt: skip
    except ConfigError as error:
        return print_problems(error)
    except PretrainingStopped as failure:
        return complain("pretrain", f"{failure}; continue with `onrig pretrain --resume {folder}`", failure.code)
    except Failure as failure:
        return complain("pretrain", str(failure), failure.code)
    last_scores = record.evaluations[-1]
    print(f"\n{record.ended} after {last_scores.episode} episodes, {record.seconds:.0f} s")
    print(f"expected on the rig: {_format_range(last_scores)} (95 %), median {format_estimate(last_scores.median, 3)}")
    if total_improvement(record.evaluations).low > 0:
        print(f"start a run from this pretraining: onrig run {record.config} --pretrained {folder}")
    else:
        print("the policy is no better than the first one: allow more time (--minutes), or choose another recipe")
    return ExitCode.OK


def _format_range(scores: Scores) -> str:
    low, high = scores.range
    return f"{low:.3f} to {high:.3f} on {N_HELD_OUT_PLANTS} plants"
