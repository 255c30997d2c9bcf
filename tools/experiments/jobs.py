"""A job (some trials of one cell) and its execution, identical in a local worker and on a cluster."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.native import Executor, difference_from_this_process, executor
from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.learner.trials.step_run import REPLAY_MEASURES, SHIELD_COUNTS, StepRun
from onrig.runtime.config.pieces import register_resolved
from onrig.runtime.run_config import RunConfig
from onrig.tools.experiments.spec import cell_id
from onrig.tools.experiments.store import AnyCell, Cell, Trial
from onrig.tools.workers import Channel, Unavailable

ENGINE: Final = "onrig.learner.trials.engine"
"""Module of the trials engine: its ``run_trials`` creates the trials of a run, ``world_trials`` those in a world."""


class Scores(Protocol):
    """Scores of S trials: ``onrig.learner.trials.engine.Scores``."""

    @property
    def train(self) -> NDArray[np.float64]:
        """(S,)"""

    @property
    def evaluation(self) -> NDArray[np.float64]:
        """(S,)"""

    @property
    def batch_noise(self) -> NDArray[np.float64] | None:
        """(S, n + m)"""

    @property
    def replay_measures(self) -> NDArray[np.float64] | None:
        """(S, k)"""

    @property
    def shield_counts(self) -> NDArray[np.float64] | None:
        """(S, 2)"""


class Trials(Protocol):
    """S jointly advanced trials: ``onrig.learner.trials.engine.Trials``."""

    def advance(self) -> Scores:
        """Train until the next scores."""


Engine = Callable[[RunConfig, LearnerSettings, Sequence[int]], Trials]


class Unit(NamedTuple):
    """Work unit: jointly trained trials of one cell."""

    cell: AnyCell
    seeds: tuple[int, ...]

    @property
    def work(self) -> float:
        """Total number of batch updates in the unit's trials, which take most of its time."""
        return self.work_until(self.cell.points)

    def work_until(self, points: int) -> float:
        """Return the total number of updates in the unit's trials until their first ``points`` scores."""
        return self.cell.updates_until(points) * len(self.seeds)


class Job(msgspec.Struct, frozen=True, tag=True):
    """A unit of a run, in the format sent to a worker."""

    executor: Executor
    """Required executor."""
    config: RunConfig
    seeds: tuple[int, ...]


class WorldJob(msgspec.Struct, frozen=True, tag=True):
    """A unit in a world, in the format sent to a worker. ``cell`` is the cell's digest, which includes the run that
    defines a plant's world.
    """

    executor: Executor
    cell: str
    config: StepRun
    seeds: tuple[int, ...]


AnyJob = Job | WorldJob
_JOB: Final = msgspec.json.Decoder(AnyJob)


class TrialResult(msgspec.Struct, frozen=True):
    """A trial in the format that a worker returns: float64 arrays as bytes, which preserve every bit."""

    train: bytes
    evaluation: bytes
    batch_noise: bytes | None
    replayed: bytes | None = None
    shield: bytes | None = None


def create_job(unit: Unit) -> AnyJob:
    """Return the job of a unit for a worker."""
    cell = unit.cell
    by = executor()
    return (
        Job(by, cell.config, unit.seeds) if isinstance(cell, Cell) else WorldJob(by, cell.id, cell.config, unit.seeds)
    )


def decode_job(line: bytes | msgspec.Raw) -> AnyJob:
    """Decode a job, and register the plugins that its configuration reads from files. Raises ValueError if it is
    invalid.
    """
    register_resolved(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["config"])
    job: AnyJob = _JOB.decode(line)
    return job


def load_engine(module: str) -> Engine:
    """Return the trials engine in a module."""
    engine: Engine = importlib.import_module(module).run_trials
    return engine


def run_job(job: AnyJob, engine: Engine, on_episode: Callable[[int], None]) -> tuple[TrialResult, ...]:
    """Run the trials of a job, and return their results in the order of its seeds.

    ``on_episode`` receives the number of finished episodes (in a world, evaluations) after each. Raises Unavailable if
    this process has a different executor, and ValueError if a world's run has changed since the experiment began.
    """
    if difference := difference_from_this_process(job.executor):
        raise Unavailable(f"the worker on {platform.node()} is unsuitable: trials are {difference}")
    if isinstance(job, Job):
        settings = learner_settings(job.config.learner)
        return _advance_and_gather(
            engine(job.config, settings, job.seeds).advance, job.config.episodes, len(job.seeds), on_episode
        )
    from onrig.learner.trials.engine import world_trials
    from onrig.learner.trials.worlds.factory import run_of_world

    if cell_id(job.config, run_of_world(job.config)) != job.cell:
        raise ValueError(f"'{job.config.world}' has changed since the experiment began")
    trials = world_trials(job.config, job.seeds)
    try:
        return _advance_and_gather(trials.advance, job.config.points, len(job.seeds), on_episode)
    finally:
        trials.close()


def _advance_and_gather(
    advance: Callable[[], Scores], E: int, S: int, on_episode: Callable[[int], None]
) -> tuple[TrialResult, ...]:
    """Advance S trials E times and collect their scores."""
    train, evaluation = np.empty((S, E)), np.empty((S, E))
    noise: NDArray[np.float64] | None = None
    noisy_episodes = 0
    replay_measures: list[NDArray[np.float64]] = []
    shield_counts: list[NDArray[np.float64]] = []
    for episode in range(E):
        scores = advance()
        train[:, episode] = scores.train
        evaluation[:, episode] = scores.evaluation
        if scores.batch_noise is not None:  # none before the first minibatches
            noise = scores.batch_noise if noise is None else noise + scores.batch_noise
            noisy_episodes += 1
        if scores.replay_measures is not None:
            replay_measures.append(scores.replay_measures)
        if scores.shield_counts is not None:
            shield_counts.append(scores.shield_counts)
        on_episode(episode + 1)
    mean = None if noise is None else noise / noisy_episodes
    curves = np.stack(replay_measures, axis=2) if replay_measures else None
    counts = np.stack(shield_counts, axis=2) if shield_counts else None
    return tuple(
        TrialResult(
            train[s].tobytes(),
            evaluation[s].tobytes(),
            None if mean is None else mean[s].tobytes(),
            None if curves is None else curves[s].tobytes(),
            None if counts is None else counts[s].tobytes(),
        )
        for s in range(S)
    )


def decode_trials(trials: Sequence[TrialResult]) -> list[Trial]:
    """Return the trials of a finished job as arrays."""
    return [
        Trial(
            np.frombuffer(result.train),
            np.frombuffer(result.evaluation),
            None if result.batch_noise is None else np.frombuffer(result.batch_noise),
            None if result.replayed is None else np.frombuffer(result.replayed).reshape(len(REPLAY_MEASURES), -1),
            None if result.shield is None else np.frombuffer(result.shield).reshape(len(SHIELD_COUNTS), -1),
        )
        for result in trials
    ]


class JobWorker:
    """Methods that a worker offers to its caller."""

    def __init__(self, engine: Engine, report_progress: Callable[[int], None]) -> None:
        self._engine: Final = engine
        self._report_progress: Final = report_progress

    def run_job(self, job: msgspec.Raw) -> tuple[TrialResult, ...]:
        """Run a job's trials, and report the number of finished episodes."""
        return run_job(decode_job(job), self._engine, self._report_progress)


if __name__ == "__main__":
    channel = Channel()
    channel.serve(lambda: JobWorker(load_engine(sys.argv[1]), channel.note))
