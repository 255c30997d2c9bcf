"""Reference scores of a task on successively finer grids, cached on disk.

They cover the random controller, fuzzy Q-iteration with and without noise, the finite-horizon optimum and, for any
plant, a sampling controller.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from onrig.runtime.files import open_file
from onrig.sim.baselines import corridor, finite_horizon, fuzzy_q_iteration, sampling, under_noise
from onrig.sim.baselines.finite_horizon import LEVEL_FACTOR, Progress
from onrig.sim.baselines.fuzzy_q_iteration import EPSILON, GAMMA, Grid, PolicyScores
from onrig.sim.baselines.sampling import Effort
from onrig.sim.baselines.task_model import EPISODES, Draws, Episodes, Estimate, TaskModel, random_reward

Fineness = Literal["coarse", "fine"]

_GRIDS_ONE_ACTUATOR: Final = tuple(Grid((n, n + 1), 9) for n in (30, 60, 120, 200, 300))
_GRIDS_SEVERAL_ACTUATORS: Final = tuple(Grid((n, n), 5) for n in (21, 41, 61, 91, 121))
_N_COARSE: Final = 2
_HORIZON_GRIDS_ONE_ACTUATOR: Final = tuple(
    Grid((n, n + 1), m) for n, m in ((60, 9), (120, 17), (200, 33), (400, 33), (600, 33))
)
_HORIZON_GRIDS_SEVERAL_ACTUATORS: Final = tuple(
    Grid((n, n), m) for n, m in ((60, 9), (120, 17), (200, 17), (400, 17), (400, 33))
)
_SAMPLES: Final[tuple[int, ...]] = (64, 128, 256, 512)
_HORIZONS: Final = (15, 30, 75)
"""Horizons (periods): long ones for swings, short ones for holding a position with few samples."""
_UNBATCHED_EFFORTS: Final = tuple(Effort(s, h, 2) for s, h in ((24, 15), (32, 20), (64, 30), (128, 40)))
"""Efforts for plants that are simulated one at a time."""
_SOURCES: Final = (
    "sim/baselines",
    "sim/plants",
    "runtime/expressions",
    "runtime/maths.py",
    "runtime/normalisation.py",
    "runtime/reward_terms.py",
    "runtime/rewards.py",
    "runtime/task.py",
    "runtime/terminations.py",
    "runtime/random_streams.py",
)
ATTEMPTS: Final = 8
"""Number of episodes of the sampling controller with the same start and targets; the best one counts."""
_ATTEMPTS_PER_START: Final = 2
_N_STARTS: Final = 8
"""Number of starts and targets if they vary between episodes."""
_MAX_UNBATCHED_EPISODES: Final = 200
"""Maximum number of episodes of the random controller on a plant that is simulated one at a time."""
_ROOT: Final = Path(__file__).parents[2]


class Row(msgspec.Struct, frozen=True):
    """Scores of fuzzy Q-iteration on one grid."""

    grid: Grid
    iterations: int
    scores: PolicyScores


class Optimum(msgspec.Struct, frozen=True):
    """Mean rewards per step of the finite-horizon optimum on one grid."""

    grid: Grid
    estimate: float
    """V_0 at the start; interpolation errs in either direction, so this is not a bound."""
    look_ahead: float
    """Score of the one-step look-ahead policy on the exact plant."""
    polished: float
    """Score of the same episode after polishing, on the exact plant: the reference, a lower bound on the optimum."""


def grids_for(model: TaskModel, fineness: Fineness) -> tuple[Grid, ...]:
    """Return the grids to solve, coarsest first; ``coarse`` takes seconds, ``fine`` under a minute."""
    ladder = _GRIDS_ONE_ACTUATOR if model.plant.n_actions == 1 else _GRIDS_SEVERAL_ACTUATORS
    return ladder[:_N_COARSE] if fineness == "coarse" else ladder[_N_COARSE:]


def horizon_grids_for(model: TaskModel, fineness: Fineness) -> tuple[Grid, ...]:
    """Return the grids of the finite-horizon optimum, coarsest first; ``coarse`` takes about a minute, ``fine``
    several."""
    ladder = _HORIZON_GRIDS_ONE_ACTUATOR if model.plant.n_actions == 1 else _HORIZON_GRIDS_SEVERAL_ACTUATORS
    return ladder[:_N_COARSE] if fineness == "coarse" else ladder[_N_COARSE:]


def efforts_for(model: TaskModel, fineness: Fineness) -> tuple[Effort, ...]:
    """Return the sampling controller's efforts, fewest samples first; ``coarse`` takes minutes, ``fine`` longer."""
    rungs = slice(_N_COARSE) if fineness == "coarse" else slice(_N_COARSE, None)
    if model.plant.batched:
        efforts = [Effort(samples, horizon, 3) for samples in _SAMPLES[rungs] for horizon in _HORIZONS]
    else:
        efforts = list(_UNBATCHED_EFFORTS[rungs])
    return tuple(dict.fromkeys(effort._replace(horizon=min(effort.horizon, model.steps)) for effort in efforts))


def cache_folder() -> Path:
    """Return the cache folder: ``$XDG_CACHE_HOME/onrig/baselines``, by default under ``~/.cache``."""
    cache_root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_root) if os.path.isabs(cache_root) else Path.home() / ".cache") / "onrig" / "baselines"


def random_baseline(model: TaskModel, folder: Path, episodes: int = EPISODES) -> Estimate:
    """Return the mean reward of the random controller, cached."""
    episodes = episodes if model.plant.batched else min(episodes, _MAX_UNBATCHED_EPISODES)
    key = _key(model, "random", [episodes])
    return Estimate(*_cached(folder, key, 2, lambda: list(random_reward(model, episodes))))


def fuzzy_baseline(model: TaskModel, grid: Grid, folder: Path) -> Row:
    """Solve one grid and return the scores of its policies, cached."""

    def compute() -> list[float]:
        solution = fuzzy_q_iteration.solve(model, grid)
        return [solution.iterations, *fuzzy_q_iteration.mean_rewards(model, solution)]

    key = _key(model, fuzzy_q_iteration.__name__, [*grid.nodes, grid.levels, GAMMA, EPSILON])
    iterations, look_ahead_score, interpolated_score = _cached(folder, key, 3, compute)
    return Row(grid, round(iterations), PolicyScores(look_ahead_score, interpolated_score))


def noisy_baseline(model: TaskModel, grid: Grid, sigma: Sequence[float], folder: Path) -> Estimate:
    """Return the score of the best noisy episodes of one grid's controller (``under_noise.best_under_noise``),
    cached."""

    def compute() -> list[float]:
        return list(under_noise.best_under_noise(model, fuzzy_q_iteration.solve(model, grid), np.array(sigma)))

    settings = [*grid.nodes, grid.levels, GAMMA, EPSILON, *sigma, under_noise.EPISODES, under_noise.REPETITIONS]
    return Estimate(*_cached(folder, _key(model, under_noise.__name__, settings), 2, compute))


def optimum_baseline(model: TaskModel, grid: Grid, folder: Path, progress: Progress | None = None) -> Optimum:
    """Apply the induction over one grid; return the scores of its policy and of the polished actions, cached."""

    def compute() -> list[float]:
        induction = finite_horizon.induce(model, grid, progress)
        trajectory = finite_horizon.look_ahead(model, induction)
        return [induction.start_mean(model), trajectory.mean_reward, corridor.polish(model, trajectory).mean_reward]

    key = _key(model, finite_horizon.__name__, [*grid.nodes, grid.levels, LEVEL_FACTOR, corridor.N_PASSES])
    return Optimum(grid, *_cached(folder, key, 3, compute))


def sampling_baseline(
    model: TaskModel, effort: Effort, cut_off_reward: float, folder: Path, progress: Progress | None = None
) -> Episodes:
    """Play episodes under the sampling controller; return the best attempt for each start and targets, cached."""
    n_starts, attempts = (_N_STARTS, _ATTEMPTS_PER_START) if model.has_varying_episodes else (1, ATTEMPTS)

    def compute() -> list[float]:
        draws = Draws(*(np.repeat(values, attempts, axis=0) for values in model.draw(n_starts)))
        episodes = sampling.play_episodes(model, effort, cut_off_reward, draws, progress=progress)
        scores = episodes.mean_rewards(model.steps, cut_off_reward).reshape(n_starts, attempts)
        best_episodes = np.arange(n_starts) * attempts + scores.argmax(axis=1)
        return [*episodes.total[best_episodes].tolist(), *episodes.n_steps[best_episodes].tolist()]

    key = _key(model, sampling.__name__, [*effort, n_starts, attempts, cut_off_reward])
    values = np.array(_cached(folder, key, 2 * n_starts, compute))
    return Episodes(values[:n_starts], values[n_starts:])


def _key(model: TaskModel, method: str, settings: list[float]) -> str:
    """Return a hash of everything that affects a result: the model (without name and reference scores), settings,
    sources and numpy's version."""
    task = msgspec.to_builtins(model.task)
    del task["name"], task["normalization"]
    identity = {**msgspec.to_builtins(model), "task": task, "method": method, "settings": settings}
    digest = hashlib.sha256(msgspec.json.encode(identity, order="deterministic"))
    digest.update(np.__version__.encode())
    for source in _SOURCES:
        path = _ROOT / source
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    for kind in sorted(set(_kinds(model)), key=str):
        module = inspect.getmodule(kind)
        if module is not None and not module.__name__.startswith("onrig."):  # third-party package or user file
            with suppress(OSError, TypeError):
                digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()


def _kinds(value: object) -> Iterator[type]:
    """Yield the types of the structs in a value, such as the plant, reward terms and terminations."""
    if isinstance(value, msgspec.Struct):
        yield type(value)
        yield from (kind for field in value.__struct_fields__ for kind in _kinds(getattr(value, field)))
    elif isinstance(value, dict):
        yield from (kind for part in value.values() for kind in _kinds(part))
    elif isinstance(value, tuple | list):
        yield from (kind for part in value for kind in _kinds(part))


def _cached(folder: Path, key: str, size: int, compute: Callable[[], list[float]]) -> list[float]:
    """Return the cached values of a key, or compute and cache them.

    An unreadable file is recomputed, and an unwritable folder is tolerated.
    """
    path = folder / f"{key}.npz"
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), open_file(path, None) as file:
        # Opened here because numpy does not close a damaged file.
        with np.load(file, allow_pickle=False) as entry:
            cached_values = np.asarray(entry["values"], dtype=np.float64)
        if cached_values.shape == (size,) and np.isfinite(cached_values).all():
            return [float(v) for v in cached_values]
    values = compute()
    with suppress(OSError):
        _store(path, values)
    return values


def _store(path: Path, values: list[float]) -> None:
    """Write atomically through a temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, values=np.array(values, dtype=np.float64))
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
