"""Experiments with made-up results that look like those of the paper: rising, degrading, noisy, paired by seed."""

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
Make = Callable[[Cell, int], Trial]


def cell(config: str = "pendulum", *overrides: str, strategy: str = "FIFO[Uniform]", episodes: int = EPISODES) -> Cell:
    """A cell of one of the shipped runs."""
    made = load(config, [f"episodes={episodes}", *overrides, f"selection.strategy='{strategy}'"])
    digest = hashlib.sha256(msgspec.json.encode(made)).hexdigest()[:12]
    return Cell(digest, {"config": config, "strategy": strategy}, made)


def noise(sigma: float) -> tuple[str, str]:
    """Overrides for noise of sensors and actuators."""
    return f"device.twin.sensor_noise={sigma}", f"device.twin.actuator_noise={sigma}"


def write_experiment(
    folder: Path,
    cells: Sequence[Cell],
    trials: int = 12,
    *,
    make: Make | None = None,
    done: Callable[[Cell, int], bool] = lambda cell, seed: True,
    figures: Sequence[int | str] = (),
    title: str = "Made-up results",
) -> Path:
    """Write the folder of an experiment with its trials where ``done``."""
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
    for one in cells:
        for seed in range(trials):
            if done(one, seed):
                write_trial(folder, one, seed, (make or a_trial)(one, seed))
    return folder


def raw(config: Cell, mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean raw rewards per step that give a normalised performance."""
    n = config.config.task.normalization
    assert n is not None
    return n.random_reward + mu * (n.reference_reward - n.random_reward)


def flat(value: float) -> Make:
    """Trials that always perform alike, ``value`` plus a hundredth of their seed."""
    return lambda cell, seed: Trial(*(raw(cell, np.full(cell.config.episodes, value + 0.01 * seed)),) * 2, None)


def a_trial(one: Cell, seed: int) -> Trial:
    """A trial that looks like one."""
    config = one.config
    strategy = parse_strategy(config.selection.strategy)
    magman, episodes = config.rig.name == "magman", config.episodes
    common = np.random.default_rng(seed)
    own = np.random.default_rng(int.from_bytes(one.id.encode()[:6], "big") + seed)
    synthetic = config.selection.synthetic
    fraction = synthetic.states + synthetic.actions if synthetic else 0.0
    top = {"FIFO": 0.97, "FULL": 0.95, "Resv": 0.95, "TDE": 0.93, "Expl": 0.94}[strategy.retention] - 0.1 * (
        config.rate_hz > 60
    )
    rise = {"FIFO": 0.12, "FULL": 0.22, "Resv": 0.2, "TDE": 0.2, "Expl": 0.16}[strategy.retention]
    decay = 0.0
    if not magman:
        rise, decay = 0.12, {"FIFO": 0.45, "TDE": 0.25, "Expl": 0.1}.get(strategy.retention, 0.0)
        decay *= (1 - fraction) ** 2
        decay += 0.1 * (strategy.alpha is not None) * (1.5 - (strategy.alpha or 0))
    elif fraction:
        top -= 0.3 * fraction**2
    if "PER" in strategy.sampling:
        rise *= 0.75
        top -= 0.02
    rise *= float(np.exp(0.2 * common.standard_normal() + 0.1 * own.standard_normal())) * episodes
    t = np.arange(1, episodes + 1)
    mu = top / (1 + np.exp(-(t - rise) / (0.04 * episodes))) - 0.3 * np.exp(-t / (0.03 * episodes))
    late = np.clip(t / episodes - 0.3, 0, 1) * decay * float(common.gamma(2.0, 0.7))
    jitter = 0.05 * own.standard_normal(episodes) * np.exp(0.5 * own.standard_normal(episodes))
    mu = mu - late - np.abs(jitter) * (0.3 + late)
    return Trial(raw(one, mu - 0.1), raw(one, mu), _batch_noise(one, own, strategy.retention, strategy.sampling))


def _batch_noise(one: Cell, own: np.random.Generator, retention: str, sampling: str) -> NDArray[np.float64] | None:
    twin = one.config.device.twin or {}
    sigma = float(msgspec.convert(twin.get("sensor_noise", 0.0), float))
    if not sigma:
        return None
    d = len(one.config.rig.signals) + len(one.config.rig.actuators)
    level = 0.798 * sigma * (1 + 0.05 * (retention == "TDE") + 0.05 * ("PER" in sampling))
    return level * (1 + 0.01 * own.standard_normal(d))
