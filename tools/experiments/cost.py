"""Estimates of the processor time of trials, from a few updates for each kind of cell."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from onrig.learner.on_policy_settings import PpoConfig
from onrig.learner.settings import learner_settings
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.worlds.factory import spaces_of_world
from onrig.runtime import registry
from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.experiments.grid import cell_text
from onrig.tools.experiments.store import AnyCell, WorldCell, write_atomically
from onrig.tools.progress import progress_for

COSTS: Final = "costs.json"
"""Name of the file in an experiment's folder."""
PROBE_S: Final = 0.3
_MAX_EPISODE_STEPS: Final = 1000
_N_EPISODES: Final = 4
"""Number of episodes in the probe of a run, small enough to limit the probe's memory."""
_MAX_GROUPS: Final = 50
"""Maximum number of timed groups of updates."""
_N_PARTS: Final = (16, 8, 5, 4, 2, 1)
"""Possible numbers of equal parts into which a PPO batch is divided; one part is timed."""


class Cost(msgspec.Struct, frozen=True):
    """Processor time of a cell's jointly trained trials (s, on one thread)."""

    acting_s: float
    """Time of a training step in a world, or of an episode of a run with its evaluation and one update."""
    update_s: float
    """Time of an update, or of an iteration for on-policy algorithms."""
    evaluation_s: float
    """Time of an evaluation in a world."""
    updates: int
    """Number of timed updates or iterations."""

    def trial_s(self, cell: AnyCell) -> float:
        """Return the total time (s) of the cell's jointly timed trials, or of a single trial if only one was timed."""
        cost_s = self.acting_s * _steps_or_episodes(cell) + self.update_s * count_updates(cell)
        return cost_s + self.evaluation_s * cell.points * isinstance(cell, WorldCell)


def count_updates(cell: AnyCell, steps: int | None = None) -> int:
    """Return the number of updates or iterations in a trial or, in a world, in its first ``steps`` steps."""
    if not isinstance(cell, WorldCell):
        return round(cell.updates_until(cell.points))
    return cell.config.updates_until(cell.config.steps if steps is None else steps)


def estimate_costs(cells: Sequence[AnyCell], n_joint_trials: int) -> dict[str, Cost]:
    """Measure the cost of ``n_joint_trials`` jointly trained trials of each cell, and return the costs by cell id.

    Cells of the same kind share a probe. Progress is shown on stderr. Probes are untrained and have small memories; in
    a real trial, evaluations that at first end early and updates that scan the memory take longer later on.
    """
    kinds = {cost_key(cell.config): cell for cell in reversed(cells)}
    progress = progress_for(len(kinds))
    costs = {}
    try:
        for kind, cell in reversed(kinds.items()):
            progress.begin_step(f"measuring {cell_text(cell)}")
            if isinstance(cell, WorldCell):
                costs[kind] = _world_cost(cell.config, n_joint_trials)
            else:
                costs[kind] = _run_cost(cell.config, n_joint_trials)
            progress.finish_step(1)
    finally:
        progress.close()
    return {cell.id: costs[cost_key(cell.config)] for cell in cells}


def write_costs(folder: Path, costs: Mapping[str, Cost]) -> None:
    """Write the costs of single trials by cell id. Raises OSError."""
    write_atomically(folder / COSTS, msgspec.json.format(msgspec.json.encode(costs), indent=1) + b"\n")


def read_costs(folder: Path) -> dict[str, Cost]:
    """Read the costs of single trials by cell id. Return an empty dictionary if none were measured.

    Raises OSError, and ValueError for a damaged file.
    """
    path = folder / COSTS
    try:
        return msgspec.json.decode(read_file(path, MAX_JSON_BYTES), type=dict[str, Cost])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ValueError(f"'{path}' is damaged ({error}): delete it and measure again with --costs") from None


def describe_basis(cells: Sequence[AnyCell], costs: Mapping[str, Cost], n_joint_trials: int) -> str:
    """Describe what an estimate is based on."""
    kinds = len({cost_key(cell.config) for cell in cells})
    min_updates = min(cost.updates for cost in costs.values())
    basis = f"at least {min_updates} updates of {n_joint_trials} trials for each kind of cell"
    return f"estimated from {basis} ({kinds} in all)"


def cost_key(run: StepRun | RunConfig) -> bytes:
    """Return a key that is equal for cells with equal update cost, which depends neither on fractions (rates,
    exponents) nor on memory size."""
    document = msgspec.to_builtins(run)
    for sampling in registry.load_available(registry.SAMPLERS).values():
        options = document["learner"].get(sampling.section)
        if options is not None and not any(isinstance(value, int | list | tuple) for value in options.values()):
            del document["learner"][sampling.section]  # the section contains no sizes
    document["selection"]["capacity"] = None
    document["selection"]["strategy"] = re.sub(r"\(\d+\.\d+\)", "", document["selection"]["strategy"])
    horizon = None if isinstance(run, StepRun) else episode_steps(run.task, run.rate_hz)
    return msgspec.json.encode([_without_fractions(document), horizon], order="sorted")


def _without_fractions(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_fractions(v) for name, v in value.items()}
    return None if isinstance(value, float) else value


def _steps_or_episodes(cell: AnyCell) -> int:
    """Return the number of steps of a trial in a world, or of episodes of a run."""
    return cell.config.steps if isinstance(cell, WorldCell) else cell.config.episodes


def _time_call(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _world_cost(run: StepRun, n_joint_trials: int) -> Cost:
    return (
        _on_policy_cost(run, n_joint_trials)
        if run.learner.algorithm_config.batch_steps
        else _off_policy_cost(run, n_joint_trials)
    )


def _off_policy_cost(run: StepRun, n_joint_trials: int) -> Cost:
    """Measure the cost of an off-policy algorithm."""
    from onrig.learner.trials.engine import world_trials

    batch = run.learner.batch
    n_fill = max(min(spaces_of_world(run).horizon, _MAX_EPISODE_STEPS), batch)
    # Acting without learning, and capacity for the experiences that the probe adds.
    steps = run.steps + n_fill + _MAX_GROUPS * run.update_every
    # Randomly dropped experiences would fill memories slowly; FULL must also hold the probe's experiences.
    keeps_all, capacity = parse_strategy(run.selection.strategy).keeper.keeps_all, run.selection.capacity
    capacity = steps if keeps_all and capacity is not None else capacity
    selection = msgspec.structs.replace(run.selection, write_probability=1.0, capacity=capacity)
    evaluation = msgspec.structs.replace(run.evaluation, every=steps)
    probe_settings = {"steps": steps, "random_steps": run.steps, "evaluation": evaluation, "selection": selection}
    trials = world_trials(msgspec.structs.replace(run, **probe_settings), range(n_joint_trials))
    try:
        acting_s = _time_call(lambda: trials.train(n_fill)) / n_fill
        steps_per_update = run.update_every / run.updates
        update_s, n_updates = _time_updates(
            lambda k: trials.train(math.ceil(k * steps_per_update)), trials.replay.learn, run.updates
        )
        return Cost(acting_s, update_s, _time_call(trials.evaluate), n_updates)
    finally:
        trials.close()


def _on_policy_cost(run: StepRun, n_joint_trials: int) -> Cost:
    """Measure the cost of an on-policy algorithm; for PPO, only a part of a batch is timed."""
    from onrig.learner.trials.engine import world_trials

    algorithm, n_parts = run.learner.algorithm_config, 1
    n_batches = 2
    if isinstance(algorithm, PpoConfig):
        min_steps = math.lcm(algorithm.batch, algorithm.actors)
        n_parts = next(k for k in _N_PARTS if algorithm.steps % (k * min_steps) == 0)
        algorithm, n_batches = (
            msgspec.structs.replace(algorithm, steps=algorithm.steps // n_parts),
            max(2, algorithm.depth),
        )
        run = msgspec.structs.replace(run, learner=msgspec.structs.replace(run.learner, ppo=algorithm))
    n_gathered, n_parallel = algorithm.batch_steps - algorithm.parallel, algorithm.parallel
    trials = world_trials(run, range(n_joint_trials))
    try:
        for _ in range(n_batches - 1):
            trials.train(algorithm.batch_steps)
        acting_s = _time_call(lambda: trials.train(n_gathered)) / max(1, n_gathered)
        update_s = max(0.0, _time_call(lambda: trials.train(n_parallel)) - acting_s * n_parallel) * n_parts
        return Cost(acting_s, update_s, _time_call(trials.evaluate), 1)
    finally:
        trials.close()


def _run_cost(config: RunConfig, n_joint_trials: int) -> Cost:
    from onrig.learner.trials.engine import run_trials

    selection = msgspec.structs.replace(config.selection, capacity=None)
    learner = learner_settings(config.learner)
    trials = run_trials(
        msgspec.structs.replace(config, episodes=_N_EPISODES, selection=selection),
        msgspec.structs.replace(learner, updates_per_episode=1),
        range(n_joint_trials),
    )
    trials.advance()
    episode_s = _time_call(trials.advance)
    trials.replay.n_consecutive_updates = 0
    update_s, n_updates = _time_updates(
        lambda k: trials.advance(), trials.replay.learn, learner.updates_per_episode or 1
    )
    return Cost(episode_s, update_s, 0.0, n_updates)


def _time_updates(act: Callable[[int], Any], learn: Callable[[int], Any], max_group: int) -> tuple[float, int]:
    """Return the median time of an update in groups of at most ``max_group``, and the number of timed updates.

    ``act`` receives the size of the group, since some algorithms first evaluate new experiences. The first update is
    discarded.
    """
    learn(1)
    single_s = _time_call(lambda: learn(1))
    k = max(1, min(max_group, round(0.5 * PROBE_S / max(single_s, 1e-9))))
    durations: list[float] = []
    while not durations or (sum(durations) < PROBE_S and len(durations) < _MAX_GROUPS):
        act(k)
        durations.append(_time_call(lambda: learn(k)))
    return statistics.median(durations) / k, len(durations) * k
