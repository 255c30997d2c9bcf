"""Learning of the examples of ``docs/examples``: ``python -m tests.studies.examples motor [--seeds N] [--set a.b=c]``.

Each seed is a lockstep run as a user would start it; its last policy then has 20 evaluation episodes with new starts
and targets.  An episode succeeds by the example's own measure, a seed if 18 of its 20 episodes do.  ``--trials`` uses
the trials of ``experiment.yaml`` instead, without their shield and all in one process: a minute or two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from onrig.learner.settings import learner_settings
from onrig.learner.trials.engine import run_trials, world_trials
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.supported import trials_problems
from onrig.learner.trials.worlds.factory import make_world
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role
from onrig.runtime.record import Flag
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.sim.evaluation import admission_verdict, play
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import WorldCell
from onrig.tools.load import load

EXAMPLES: Final = Path("docs/examples")
EPISODES: Final = 20
SUCCESSES: Final = 18
_OTHER_SEEDS: Final = 1000
"""Added to a run's seed: starts and targets that did not occur in its own evaluations."""


class Episode(NamedTuple):
    """One evaluation: signals (t, n) by name, and whether the task ended it."""

    signals: dict[str, NDArray[np.float64]]
    rate_hz: float
    lived: bool
    """From here to the end of the episode."""


def _followed(e: Episode) -> tuple[bool, float]:
    """Largest error later than 0.5 s after each change of the target, relative to their maximum of 100 rad/s."""
    error = np.abs(e.signals["speed"] - e.signals["speed_ref"]) / 100.0
    settled, second = round(0.5 * e.rate_hz), round(e.rate_hz)
    worst = max(float(error[k + settled + 1 : k + second].max()) for k in range(0, len(error) - second, second))
    return worst <= 0.02, worst


def _stood(e: Episode) -> tuple[bool, float]:
    """Time for which the pole was upright, s."""
    return e.lived, (len(e.signals["angle"]) - 1) / e.rate_hz


def _placed(e: Episode) -> tuple[bool, float]:
    """Largest distance from the target position in the last second of the episode, m."""
    last = round(e.rate_hz)
    worst = float(np.abs(e.signals["position"] - e.signals["place"])[-last:].max())
    return worst <= 0.005, worst


def _both_stood(e: Episode) -> tuple[bool, float]:
    """Time for which both poles were upright, s."""
    return e.lived, (len(e.signals["position"]) - 1) / e.rate_hz


MEASURES: Final[dict[str, tuple[str, Callable[[Episode], tuple[bool, float]]]]] = {
    "motor": ("largest error later than 0.5 s after a change, of 100 rad/s", _followed),
    "cartpole": ("seconds upright", _stood),
    "beam": ("largest distance in the last second, m", _placed),
    "inverted-double-pendulum": ("seconds upright", _both_stood),
}


def evaluations(config: RunConfig, policy: Path, seed: int) -> list[Episode]:
    """Evaluation episodes of a policy."""
    model = policy.read_bytes()
    verdict = admission_verdict(model, config)
    session = PolicySession(model, native=getattr(verdict, "native", False))
    names = [o.name for o in config.rig.signals]
    steps = episode_steps(config.task, config.rate_hz)
    found = []
    for records in play(config, session, EPISODES, seed):
        observation: Any = records["observation"].astype(np.float64)
        ended = bool(records["flags"][-1] & Flag.TERMINATED)
        signals = dict(zip(names, observation.T, strict=True))
        found.append(Episode(signals, config.rate_hz, lived=not ended and len(records) == steps + 1))
    return found


def learn(config: Path, seed: int, settings: list[str], folder: Path) -> None:
    """One run in lockstep; raises CalledProcessError."""
    quiet = ("log.mcap=false", "checkpoint_s=3600")  # costs time, and has no effect on learning
    sets = [word for setting in (f"seed={seed}", *quiet, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-m", "onrig.tools.cli", "run", str(config), "--run-dir", str(folder), *sets]
    subprocess.run(command, check=True, capture_output=True, text=True)


def trials(example: str, seeds: range, settings: list[str]) -> Iterator[list[Episode]]:
    """Evaluations of each seed's trial, all trained in one batch."""
    spec = load_spec(EXAMPLES / example / "experiment.yaml")
    given = dict(setting.split("=", 1) for setting in settings)
    values = {**spec.spec.set, **{name: yaml.safe_load(value) for name, value in given.items()}}
    changed = msgspec.structs.replace(spec.spec, set=values)
    (cell,) = expand_spec(spec._replace(spec=changed), trials_problems)
    if isinstance(cell, WorldCell):
        trained = world_trials(cell.config, seeds)
        trained.train(cell.config.steps)
    else:
        trained = run_trials(cell.config, learner_settings(cell.config.learner), seeds)
        for _ in range(cell.config.episodes):
            trained.advance()
    path = EXAMPLES / example / "run.yaml"
    config, actors = load(str(path)), (len(seeds), EPISODES)
    world = make_world(
        StepRun(f"plant:{path}", 1), [seed + _OTHER_SEEDS for seed in seeds], [Role.PLANT_EVAL] * EPISODES
    )
    policy, playing = trained.policy(actors), np.ones(actors, np.bool_)
    seen = [world.begin(playing)]
    terminated, lived = np.zeros(actors, np.bool_), np.ones(actors, np.int64)
    while playing.any():
        stepped = world.step(policy(seen[-1]), playing)
        lived += playing
        terminated |= stepped.terminated
        playing = playing & ~(stepped.terminated | stepped.truncated)
        seen.append(stepped.observation)
    values_si = Normalisation.from_signals(config.signals).to_si(np.stack(seen))
    names = [signal.name for signal in config.signals]
    for s in range(len(seeds)):
        episodes = [values_si[: lived[s, e], s, e].astype(np.float64).T for e in range(EPISODES)]
        yield [
            Episode(dict(zip(names, found, strict=True)), config.rate_hz, lived=not terminated[s, e])
            for e, found in enumerate(episodes)
        ]


def runs(path: Path, seeds: range, settings: list[str]) -> Iterator[list[Episode]]:
    """Evaluations of the last policy of each seed's run."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            learn(path, seed, settings, run)
            policies = sorted((run / "policies").glob("*.onnx"), key=lambda p: int(p.stem))
            yield evaluations(load(str(path), settings), policies[-1], seed + _OTHER_SEEDS)


def main() -> int:
    """Judge the seeds of one example; returns 0 if 9 of 10 succeed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=sorted(MEASURES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--trials", action="store_true")
    options = parser.parse_args()
    what, measure = MEASURES[options.example]
    seeds, good = range(options.first, options.first + options.seeds), 0
    print(f"{options.example}: {what}; episodes of {EPISODES} that succeed, median, least and largest", flush=True)
    if options.trials:
        found = trials(options.example, seeds, options.set)
    else:
        found = runs(EXAMPLES / options.example / "run.yaml", seeds, options.set)
    for seed, episodes in zip(seeds, found, strict=True):
        judged = [measure(episode) for episode in episodes]
        n, values = sum(ok for ok, _ in judged), sorted(value for _, value in judged)
        good += n >= SUCCESSES
        print(f"  seed {seed}: {n:2}  {np.median(values):.4g}  {values[0]:.4g} to {values[-1]:.4g}", flush=True)
    print(f"{good} of {options.seeds} seeds succeed in {SUCCESSES} of {EPISODES} episodes")
    return 0 if good >= round(0.9 * options.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
