"""Experiments with synthetic results that resemble those of the paper: rising, degrading, noisy, paired by seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.memory.strategy import parse_strategy
from onrig.tools.experiments.store import SPEC, Cell, Trial, write_cells, write_trial
from onrig.tools.load import load

EPISODES = 120
TrialFactory = Callable[[Cell, int], Trial]


def cell(config: str = "pendulum", *overrides: str, strategy: str = "FIFO[Uniform]", episodes: int = EPISODES) -> Cell:
    """A cell of one of the shipped runs."""
    run_config = load(config, [f"episodes={episodes}", *overrides, f"selection.strategy='{strategy}'"])
    digest = hashlib.sha256(msgspec.json.encode(run_config)).hexdigest()[:12]
    return Cell(digest, {"config": config, "strategy": strategy}, run_config)


def noise(sigma: float) -> tuple[str, str]:
    """Overrides for noise of sensors and actuators."""
    return f"device.twin.sensor_noise={sigma}", f"device.twin.actuator_noise={sigma}"


def write_experiment(
    folder: Path,
    cells: Sequence[Cell],
    trials: int = 12,
    *,
    make_trial: TrialFactory | None = None,
    is_done: Callable[[Cell, int], bool] = lambda cell, seed: True,
    figures: Sequence[int | str] = (),
    title: str = "Made-up results",
) -> Path:
    """Write the folder of an experiment with its trials where ``is_done``."""
    spec = {
        "name": "made-up",
        "title": title,
        "trials": trials,
        "episodes": cells[0].config.episodes,
        "figures": list(figures),
        "blocks": [{"config": "pendulum"}],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC).write_text(dump_yaml(spec), encoding="utf-8")
    write_cells(folder, list(cells))
    for trial_cell in cells:
        for seed in range(trials):
            if is_done(trial_cell, seed):
                write_trial(folder, trial_cell, seed, (make_trial or random_trial)(trial_cell, seed))
    return folder


def raw(config: Cell, mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean raw rewards per step that correspond to a normalised performance."""
    n = config.config.task.normalization
    assert n is not None
    return n.random_reward + mu * (n.reference_reward - n.random_reward)


def constant_trials(value: float) -> TrialFactory:
    """Trials with constant performance, ``value`` plus a hundredth of their seed."""
    return lambda cell, seed: Trial(*(raw(cell, np.full(cell.config.episodes, value + 0.01 * seed)),) * 2, None)


def random_trial(trial_cell: Cell, seed: int) -> Trial:
    """A realistic-looking trial."""
    config = trial_cell.config
    strategy = parse_strategy(config.selection.strategy)
    is_magman, episodes = config.rig.name == "magman", config.episodes
    shared_rng = np.random.default_rng(seed)
    cell_rng = np.random.default_rng(int.from_bytes(trial_cell.id.encode()[:6], "big") + seed)
    synthetic = config.selection.synthetic
    fraction = synthetic.states + synthetic.actions if synthetic else 0.0
    final_level = {"FIFO": 0.97, "FULL": 0.95, "Resv": 0.95, "TDE": 0.93, "Expl": 0.94}[strategy.retention] - 0.1 * (
        config.rate_hz > 60
    )
    rise_time = {"FIFO": 0.12, "FULL": 0.22, "Resv": 0.2, "TDE": 0.2, "Expl": 0.16}[strategy.retention]
    decay = 0.0
    if not is_magman:
        rise_time, decay = 0.12, {"FIFO": 0.45, "TDE": 0.25, "Expl": 0.1}.get(strategy.retention, 0.0)
        decay *= (1 - fraction) ** 2
        decay += 0.1 * (strategy.alpha is not None) * (1.5 - (strategy.alpha or 0))
    elif fraction:
        final_level -= 0.3 * fraction**2
    if "PER" in strategy.sampling:
        rise_time *= 0.75
        final_level -= 0.02
    rise_time *= float(np.exp(0.2 * shared_rng.standard_normal() + 0.1 * cell_rng.standard_normal())) * episodes
    t = np.arange(1, episodes + 1)
    mu = final_level / (1 + np.exp(-(t - rise_time) / (0.04 * episodes))) - 0.3 * np.exp(-t / (0.03 * episodes))
    late_decay = np.clip(t / episodes - 0.3, 0, 1) * decay * float(shared_rng.gamma(2.0, 0.7))
    jitter = 0.05 * cell_rng.standard_normal(episodes) * np.exp(0.5 * cell_rng.standard_normal(episodes))
    mu = mu - late_decay - np.abs(jitter) * (0.3 + late_decay)
    return Trial(
        raw(trial_cell, mu - 0.1),
        raw(trial_cell, mu),
        _batch_noise(trial_cell, cell_rng, strategy.retention, strategy.sampling),
    )


def _batch_noise(
    trial_cell: Cell, cell_rng: np.random.Generator, retention: str, sampling: str
) -> NDArray[np.float64] | None:
    twin = trial_cell.config.device.twin or {}
    sigma = float(msgspec.convert(twin.get("sensor_noise", 0.0), float))
    if not sigma:
        return None
    d = len(trial_cell.config.rig.signals) + len(trial_cell.config.rig.actuators)
    level = 0.798 * sigma * (1 + 0.05 * (retention == "TDE") + 0.05 * ("PER" in sampling))
    return level * (1 + 0.01 * cell_rng.standard_normal(d))
