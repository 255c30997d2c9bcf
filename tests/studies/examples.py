"""What the examples of ``docs/examples`` learn: ``python -m tests.studies.examples motor [--seeds N] [--set a.b=c]``.

Each seed is a run in lockstep as its owner starts it, whose last policy then has 20 evaluation episodes with starts and
targets that it has not met.  An episode succeeds by the example's own measure, a seed if 18 of its 20 episodes do.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.evaluate import judge, play
from onrig.tools.load import load

EXAMPLES: Final = Path("docs/examples")
EPISODES: Final = 20
SUCCESSES: Final = 18
_OTHER_SEEDS: Final = 1000
"""Added to a run's seed: starts and targets that its own evaluations have not had."""


class Episode(NamedTuple):
    """One evaluation: signals (t, n) by name, and whether the task ended it."""

    signals: dict[str, NDArray[np.float64]]
    rate_hz: float
    lived: bool
    """To the end of the episode."""


def _followed(e: Episode) -> tuple[bool, float]:
    """Largest error from 0.5 s after each change of the target on, as a share of the 100 rad/s that targets reach."""
    error = np.abs(e.signals["speed"] - e.signals["speed_ref"]) / 100.0
    settled, second = round(0.5 * e.rate_hz), round(e.rate_hz)
    worst = max(float(error[k + settled + 1 : k + second].max()) for k in range(0, len(error) - second, second))
    return worst <= 0.02, worst


def _stood(e: Episode) -> tuple[bool, float]:
    """Seconds that the pole stood."""
    return e.lived, (len(e.signals["angle"]) - 1) / e.rate_hz


def _placed(e: Episode) -> tuple[bool, float]:
    """Largest distance from the place in the episode's last second, m."""
    last = round(e.rate_hz)
    worst = float(np.abs(e.signals["position"] - e.signals["place"])[-last:].max())
    return worst <= 0.005, worst


def _both_stood(e: Episode) -> tuple[bool, float]:
    """Seconds that both poles stood."""
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
    verdict = judge(model, config)
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
    quiet = ("log.mcap=false", "checkpoint_s=3600")  # costs time, and changes nothing of what is learned
    sets = [word for setting in (f"seed={seed}", *quiet, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-m", "onrig.tools.cli", "run", str(config), "--run-dir", str(folder), *sets]
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> int:
    """Run the seeds of one example; returns 0 where 9 of 10 succeed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=sorted(MEASURES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    path = EXAMPLES / options.example / "run.yaml"
    what, measure = MEASURES[options.example]
    good = 0
    print(f"{options.example}: {what}; episodes of {EPISODES} that succeed, median, worst")
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            learn(path, seed, options.set, run)
            config = load(str(path), options.set)
            policies = sorted((run / "policies").glob("*.onnx"), key=lambda p: int(p.stem))
            judged = [measure(e) for e in evaluations(config, policies[-1], seed + _OTHER_SEEDS)]
        n, values = sum(ok for ok, _ in judged), sorted(value for _, value in judged)
        good += n >= SUCCESSES
        print(f"  seed {seed}: {n:2}  {np.median(values):.4g}  {values[0]:.4g} to {values[-1]:.4g}", flush=True)
    print(f"{good} of {options.seeds} seeds succeed in {SUCCESSES} of {EPISODES} episodes")
    return 0 if good >= round(0.9 * options.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
