"""A sampling model-predictive controller on the exact model, for any plant: the cross-entropy method.

In each period it samples action plans around the previous plan, simulates each on the model, and moves towards the best
ones (de Boer et al. 2005; time-correlated samples, kept elites and shifted plans as in Pinneri et al. 2020, iCEM).  The
model is deterministic, so the actions of the best of several episodes can be repeated, and the score of that episode is
a lower bound on the optimum.  More samples and different horizons show how much higher the optimum may be.  Episodes
and samples form one batch of the plant's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from onrig.sim.baselines.task_model import Draws, Episodes, TaskModel, Values

_ELITE_FRACTION: Final = 0.1
"""Share of the samples that define the next round's distribution."""
_KEPT_ELITE_FRACTION: Final = 0.3
"""Share of the elites that are kept among the next round's samples."""
_INITIAL_STD: Final = 0.6
"""Standard deviation of a period's first round, for actions in [-1, 1]."""
_MIN_STD: Final = 0.03
_CORRELATIONS: Final = (0.5, 0.8, 0.95)
"""Correlations between a sample's deviations in successive periods, assigned in turn: for fine corrections and long
swings."""
_DEVIATION_SCALES: Final = (1.0, 0.1)
"""Factors on the samples' deviations, assigned in turn."""
_DEVIATION_LENGTHS: Final = (None, None, 1, 4)
"""Lengths of the deviations in periods, assigned in turn (None: the horizon).  A long plan near the optimum, especially
for an unstable plant, is improved only by small and brief deviations."""
_N_POPULATIONS: Final = 16
"""Number of independent populations for the first plan; the best one is kept."""
_FIRST_PERIOD_ROUNDS: Final = 3
"""Factor on the number of rounds in the first period, which has no previous plan."""


class Effort(NamedTuple):
    """Amount of computation per period of the controller."""

    samples: int
    """Plans per round."""
    horizon: int
    """Horizon of a plan in periods."""
    rounds: int
    """Rounds per period."""


def play_episodes(
    model: TaskModel,
    effort: Effort,
    cut_off_reward: float,
    draws: Draws,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Play parallel episodes with these starts and targets under the controller.

    ``cut_off_reward``: reward counted for each step that a termination cuts off.
    """
    rng = np.random.default_rng(seed)
    half_range, m = 0.5 * (model.action_high - model.action_low), len(model.action_low)
    centre = model.action_low + half_range
    safe_action = (model.safe_action - centre) / half_range
    states, targets = draws
    episodes = len(states)
    is_active = np.ones(episodes, bool)
    total_reward, n_steps = np.zeros(episodes), np.zeros(episodes)
    previous_actions = np.tile(model.safe_action, (episodes, 1))
    plans = np.tile(safe_action, (episodes, effort.horizon, 1))
    for t in range(model.steps):
        n_ahead = min(effort.horizon, model.steps - t)
        objective = _Objective(model, states, previous_actions, targets[:, t], centre, half_range, cut_off_reward)
        if t == 0:
            plans = _plan_first_period(objective, plans[:, :n_ahead], effort, rng)
        else:
            plans = _improve(objective, plans[:, :n_ahead], effort.samples, effort.rounds, rng)
        actions = centre + half_range * plans[:, 0]
        states, reward, has_ended = model.follow(states, actions, previous_actions, targets[:, t + 1])
        previous_actions = actions
        total_reward += np.where(is_active, reward, 0.0)
        n_steps += is_active
        is_active = is_active & ~has_ended
        if progress is not None:
            progress(t + 1, model.steps)
        if not is_active.any():
            break
        plans = np.concatenate([plans[:, 1:], np.broadcast_to(safe_action, (episodes, 1, m))], axis=1)
    return Episodes(total_reward, n_steps)


class _Objective(NamedTuple):
    """Sum of rewards of plans from given states."""

    model: TaskModel
    states: Values
    """(E, d)."""
    previous_actions: Values
    """(E, m): actions in force before the plans."""
    targets: Values
    """(E, q): current targets, which plans assume constant, because a policy does not know future ones either."""
    centre: Values
    half_range: Values
    cut_off_reward: float

    def __call__(self, plans: Values) -> Values:
        """Return the sums of rewards (E, S) of plans (E, S, H, m) with actions in [-1, 1]."""
        E, S, H, m = plans.shape
        states, is_active = np.repeat(self.states, S, axis=0), np.ones(E * S, bool)
        total_reward, previous_actions = np.zeros(E * S), np.repeat(self.previous_actions, S, axis=0)
        targets = np.repeat(self.targets, S, axis=0)
        for k in range(H):
            actions = self.centre + self.half_range * plans[:, :, k].reshape(-1, m)
            total_reward[~is_active] += self.cut_off_reward
            states[is_active], reward, has_ended = self.model.follow(
                states[is_active], actions[is_active], previous_actions[is_active], targets[is_active]
            )
            previous_actions = actions
            total_reward[is_active] += reward
            is_active[is_active] = ~has_ended
        return np.where(np.isfinite(total_reward), total_reward, -np.inf).reshape(E, S)


def _plan_first_period(objective: _Objective, plans: Values, effort: Effort, rng: np.random.Generator) -> Values:
    """Return the best plan (E, H, m) of several populations, because a single one may end in a local optimum."""
    E = len(plans)
    repeated_objective = objective._replace(
        states=np.repeat(objective.states, _N_POPULATIONS, axis=0),
        previous_actions=np.repeat(objective.previous_actions, _N_POPULATIONS, axis=0),
        targets=np.repeat(objective.targets, _N_POPULATIONS, axis=0),
    )
    populations = _improve(
        repeated_objective,
        np.repeat(plans, _N_POPULATIONS, axis=0),
        effort.samples,
        effort.rounds * _FIRST_PERIOD_ROUNDS,
        rng,
    )
    sums = repeated_objective(populations[:, None]).reshape(E, _N_POPULATIONS)
    best_plans: Values = populations.reshape(E, _N_POPULATIONS, *plans.shape[1:])[np.arange(E), sums.argmax(axis=1)]
    return best_plans


def _improve(objective: _Objective, plans: Values, samples: int, rounds: int, rng: np.random.Generator) -> Values:
    """Return the best plan (E, H, m) after some rounds that start from ``plans``."""
    E, H, m = plans.shape
    n_elite, rows = max(2, round(_ELITE_FRACTION * samples)), np.arange(E)[:, None]
    mean, width = plans, np.full(plans.shape, _INITIAL_STD)
    kept_plans = plans[:, None]
    for _ in range(rounds):
        sampled_plans = np.clip(mean[:, None] + width[:, None] * _draw_deviations(rng, (E, samples, H, m)), -1.0, 1.0)
        candidate_plans = np.concatenate([kept_plans, mean[:, None], sampled_plans], axis=1)
        order = np.argsort(-objective(candidate_plans), axis=1, kind="stable")
        elite_plans = candidate_plans[rows, order[:, :n_elite]]
        mean, width = elite_plans.mean(axis=1), np.maximum(elite_plans.std(axis=1), _MIN_STD)
        kept_plans = elite_plans[:, : max(1, round(_KEPT_ELITE_FRACTION * n_elite))]
    best_plans: Values = kept_plans[:, 0]
    return best_plans


def _draw_deviations(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw normal deviations (E, S, H, m), correlated along H, of several scales and lengths."""
    noise = rng.standard_normal(shape)
    rho = np.resize(np.array(_CORRELATIONS), shape[1])[:, None]
    for k in range(1, shape[2]):
        noise[:, :, k] = rho * noise[:, :, k - 1] + np.sqrt(1.0 - rho**2) * noise[:, :, k]
    n = len(_CORRELATIONS)
    scale = np.resize(np.repeat(_DEVIATION_SCALES, n), shape[1])
    lengths = np.repeat(
        [shape[2] if length is None else length for length in _DEVIATION_LENGTHS], n * len(_DEVIATION_SCALES)
    )
    is_within_length = np.arange(shape[2]) < np.resize(lengths, shape[1])[:, None]
    return np.asarray((scale[:, None] * is_within_length)[:, :, None] * noise)
