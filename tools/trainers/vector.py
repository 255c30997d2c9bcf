"""Twins as a vector environment: n plants, simulated as arrays in this process, much faster than real time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium
import msgspec
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from onrig.learner.trials.worlds.plants import PlantOptions, PlantWorld, world_config
from onrig.runtime.random_streams import Role
from onrig.runtime.run_config import RunConfig
from onrig.sim.identification.result import drawn_plants, read_result
from onrig.sim.plants import Plant
from onrig.sim.twin.options import TwinOptions
from onrig.tools.load import load
from onrig.tools.trainers.spaces import action_space, observation_space

Observations = NDArray[np.float32]
Flags = NDArray[np.bool_]
Infos = dict[str, Any]


def make_vec(
    config: str | Path,
    n: int,
    *,
    overrides: Sequence[str] = (),
    parameters: Mapping[str, float | NDArray[np.float64]] | None = None,
    posterior: str | Path | None = None,
    shield: bool = False,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
) -> VecTwins:
    """Return n twins of a configuration as one vector environment.

    ``parameters`` maps the names of plant parameters to numbers or arrays (n,), which replace the configuration's.
    ``posterior`` is a result file of `onrig identify`; each twin's plant is drawn from its joint distribution. With
    ``shield``, the configuration's limits apply, as in trials; without them (default), a policy first encounters the
    shield on the rig. Raises ConfigError, NoSuchTask for a device without a twin, and ValueError for parameters out of
    bounds.
    """
    if n < 1:
        raise ValueError(f"n: expected at least 1, got {n}")
    run = world_config(load(str(config), overrides), str(config))
    plant: Plant = msgspec.convert(run.device.twin, TwinOptions).plant
    if posterior is not None:
        plant = _draw_parameters(Path(posterior), plant, n, run.seed)
    if parameters is not None:
        plant = plant.varied({name: np.broadcast_to(value, (n,)).copy() for name, value in parameters.items()})
    mode = AutoresetMode(autoreset_mode)
    return VecTwins(run, n, plant, shield=shield, autoreset_mode=mode)


def _draw_parameters(path: Path, plant: Plant, n: int, seed: int) -> Plant:
    """Return ``plant`` with arrays (n,) of parameters, drawn with replacement from the samples of a result file."""
    samples = drawn_plants(read_result(path), plant)
    columns: dict[str, Any] = {}
    indices: NDArray[np.int64] | None = None
    rng = np.random.default_rng(seed)
    for name in plant.__struct_fields__:
        value = getattr(samples, name)
        if isinstance(value, np.ndarray):
            indices = rng.integers(len(value), size=n) if indices is None else indices
            columns[name] = value[indices]
    return msgspec.structs.replace(samples, **columns)


class VecTwins(VectorEnv[Observations, NDArray[np.floating], NDArray[Any]]):
    """Episodes of a task on n plants.

    Observations (n, k) float32 and actions (n, m) are normalised by the rig's ranges. Actions beyond [-1, 1] are
    clipped. Rewards (n,) are the task's rewards in raw units. ``infos`` of a shielded environment contains
    ``intervened`` (n,).
    """

    def __init__(
        self,
        config: RunConfig,
        n: int,
        plant: Plant,
        *,
        shield: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        """Prepare the spaces; the parameters of ``plant`` are numbers or arrays (n,)."""
        self.config, self.num_envs, self.plant = config, n, plant
        self._mode, self._options = autoreset_mode, PlantOptions(shield=shield, counts=True)
        self.metadata = {"render_modes": [], "autoreset_mode": autoreset_mode}
        self.single_observation_space = observation_space(config, si=False)
        self.single_action_space = action_space(config, si=False)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space: gymnasium.spaces.Space[NDArray[np.floating]] = batch_space(self.single_action_space, n)
        self._world: PlantWorld | None = None
        self._is_over: Final = np.zeros(n, np.bool_)
        self._all_plants: Final = np.ones((n, 1), np.bool_)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Infos]:
        """Begin an episode of every plant, or of the plants in ``options["reset_mask"]`` (n,).

        ``seed`` is an integer s, which stands for the seeds s, s+1, ..., or one seed per plant. Like the seed of a run,
        it determines starts, targets and noise from then on.
        """
        mask = None if options is None else options.get("reset_mask")
        if mask is not None and (seed is not None or self._world is None):
            raise ValueError("reset_mask: call reset() without it first, and pass no seed with it")
        if seed is not None or self._world is None:
            self._world = self._begin_episodes(self.config.seed if seed is None else seed)
        is_selected = self._all_plants if mask is None else np.asarray(mask, np.bool_).reshape(-1, 1)
        self._is_over[is_selected[:, 0]] = False
        return self._rows(self._world.begin(is_selected)), {}

    def step(self, actions: NDArray[np.floating]) -> tuple[Observations, NDArray[np.float64], Flags, Flags, Infos]:
        """Advance every plant by one period.

        Depending on ``autoreset_mode``, a finished episode restarts in the next step (which ignores the action), in the
        same step (with ``infos["final_obs"]``) or not at all. Raises ValueError for a non-finite action, and
        RuntimeError before ``reset``.
        """
        world, is_over = self._world, self._is_over
        if world is None:
            raise RuntimeError("no episode: call reset() first")
        any_over = is_over.any()
        if any_over and self._mode is AutoresetMode.DISABLED:
            raise RuntimeError(
                f"{int(is_over.sum())} episodes are over: call reset(options={{'reset_mask': ...}}) first"
            )
        is_selected = self._all_plants if not any_over else ~is_over[:, None]
        outcome = world.step(np.asarray(actions).reshape(self.num_envs, 1, -1), is_selected)
        observation, terminated, truncated = outcome.observation, outcome.terminated[:, 0], outcome.truncated[:, 0]
        infos: Infos = {"intervened": outcome.intervened[:, 0]} if self._options.shield else {}
        if any_over:
            observation = world.begin(is_over[:, None].copy())
        np.logical_or(terminated, truncated, out=is_over)
        if self._mode is AutoresetMode.SAME_STEP and is_over.any():
            infos |= {"final_obs": self._rows(observation), "_final_obs": is_over.copy(), "final_info": {}}
            infos["_final_info"] = infos["_final_obs"]
            observation = world.begin(is_over[:, None].copy())
            is_over[:] = False
        return self._rows(observation), outcome.reward[:, 0], terminated.copy(), truncated.copy(), infos

    def _begin_episodes(self, seed: int | Sequence[int]) -> PlantWorld:
        n = self.num_envs
        seeds = [seed + i for i in range(n)] if isinstance(seed, int) else [int(plant_seed) for plant_seed in seed]
        if len(seeds) != n:
            raise ValueError(f"seed: expected {n} numbers, got {len(seeds)}")
        self._is_over[:] = False
        return PlantWorld(self.config, seeds, [Role.PLANT_TRAIN], options=self._options, plant=self.plant)

    def _rows(self, values: NDArray[np.floating]) -> Observations:
        rows: Observations = values.reshape(self.num_envs, -1).astype(np.float32, copy=False)
        return rows
