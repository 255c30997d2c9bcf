"""A sampling model-predictive controller on the exact model, for any plant: the cross-entropy method.

In each period it samples action plans around the previous one, simulates each on the model, and moves towards the best
(de Boer et al. 2005; time-correlated samples, kept elites and shifted plans as in Pinneri et al. 2020, iCEM).  The
model is deterministic, so the actions of the best of several episodes can be repeated: its score is a lower bound on
the optimum.  These actions are then polished by small random deviations.  More samples and other horizons show how much higher the optimum may be.  Episodes and samples form one
batch of the plant's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from onrig.sim.baselines.task_model import Draws, Episodes, TaskModel, Values

_ELITE: Final = 0.1
"""Share of the samples that define the next round's distribution."""
_KEPT_ELITE: Final = 0.3
"""Share of the elites that are kept among the next round's samples."""
_WIDTH: Final = 0.6
"""Standard deviation of a period's first round, for actions in [-1, 1]."""
_MIN_WIDTH: Final = 0.03
_CORRELATIONS: Final = (0.5, 0.8, 0.95)
"""Correlations of a sample's deviations between periods, used in turn: fine corrections and long swings."""
_SCALES: Final = (1.0, 0.3, 0.1)
"""Factors on the deviations of samples, in turn."""
_LENGTHS: Final = (None, None, 3, 8)
"""Lengths of the deviations in periods, in turn (None: the horizon): a nearly optimal long plan is improved only by small
and brief ones."""
_POLISHING_SAMPLES: Final = 64
_POLISHING_ROUNDS: Final = 600
_POLISHING_SCALE: Final = 0.3
"""Largest standard deviation in polishing; smaller ones are as frequent on a logarithmic scale, down to a hundredth."""
_STARTS: Final = 16
"""Number of independent populations in the search for the first plan; the best one is kept."""
_FIRST: Final = 3
"""Factor on the number of rounds in the first period, which has no previous plan."""


class Effort(NamedTuple):
    """Computation of the controller in each period."""

    samples: int
    """Plans per round."""
    horizon: int
    """Horizon of a plan in periods."""
    rounds: int
    """Rounds per period."""


def play(
    model: TaskModel,
    effort: Effort,
    unlived: float,
    draws: Draws,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Play parallel episodes with these starts and targets under the controller.

    ``unlived``: reward counted for each step that a termination cuts off.
    """
    rng = np.random.default_rng(seed)
    half, m = 0.5 * (model.action_high - model.action_low), len(model.action_low)
    centre = model.action_low + half
    safe_action = (model.safe - centre) / half
    states, targets = draws
    episodes = len(states)
    previous = np.tile(model.safe, (episodes, 1))
    start = _Objective(model, states, previous, targets[:, 0], centre, half, unlived)
    plans = np.tile(safe_action, (episodes, effort.horizon, 1))
    chosen: list[Values] = []
    for t in range(model.steps):
        ahead = min(effort.horizon, model.steps - t)
        objective = start._replace(states=states, previous=previous, targets=targets[:, t])
        if t == 0:
            plans = _first(objective, plans[:, :ahead], effort, rng)
        else:
            plans = _improve(objective, plans[:, :ahead], effort.samples, effort.rounds, rng)
        chosen.append(plans[:, 0])
        previous = centre + half * plans[:, 0]
        states = model.follow(states, previous, previous, targets[:, t + 1])[0]
        if progress is not None:
            progress(t + 1, model.steps)
        plans = np.concatenate([plans[:, 1:], np.broadcast_to(safe_action, (episodes, 1, m))], axis=1)
    actions = np.stack(chosen, axis=1)
    if not model.task.targets:  # a policy does not know those to come
        actions = _polish(start, actions, rng)
    return _follow(model, draws, centre + half * actions)


class _Objective(NamedTuple):
    """Sum of rewards of plans from given states."""

    model: TaskModel
    states: Values
    """(E, d)."""
    previous: Values
    """(E, m): actions in force so far."""
    targets: Values
    """(E, q): present targets; plans assume that they stay, because a policy does not know the future ones either."""
    centre: Values
    half: Values
    unlived: float

    def __call__(self, plans: Values) -> Values:
        """Return sums (E, S) of plans (E, S, H, m) with actions in [-1, 1]."""
        E, S, H, m = plans.shape
        states, active = np.repeat(self.states, S, axis=0), np.ones(E * S, bool)
        total, previous = np.zeros(E * S), np.repeat(self.previous, S, axis=0)
        targets = np.repeat(self.targets, S, axis=0)
        for k in range(H):
            actions = self.centre + self.half * plans[:, :, k].reshape(-1, m)
            total[~active] += self.unlived
            states[active], reward, over = self.model.follow(
                states[active], actions[active], previous[active], targets[active]
            )
            previous = actions
            total[active] += reward
            active[active] = ~over
        return np.where(np.isfinite(total), total, -np.inf).reshape(E, S)


def _first(objective: _Objective, plans: Values, effort: Effort, rng: np.random.Generator) -> Values:
    """Return the best plan (E, H, m) of several populations, each of which would end in a local optimum."""
    E = len(plans)
    many = objective._replace(
        states=np.repeat(objective.states, _STARTS, axis=0),
        previous=np.repeat(objective.previous, _STARTS, axis=0),
        targets=np.repeat(objective.targets, _STARTS, axis=0),
    )
    populations = _improve(many, np.repeat(plans, _STARTS, axis=0), effort.samples, effort.rounds * _FIRST, rng)
    sums = many(populations[:, None]).reshape(E, _STARTS)
    best: Values = populations.reshape(E, _STARTS, *plans.shape[1:])[np.arange(E), sums.argmax(axis=1)]
    return best


def _improve(objective: _Objective, plans: Values, samples: int, rounds: int, rng: np.random.Generator) -> Values:
    """Return the best plan (E, H, m) after some rounds that start from ``plans``."""
    E, H, m = plans.shape
    n_elite, rows = max(2, round(_ELITE * samples)), np.arange(E)[:, None]
    mean, width = plans, np.full(plans.shape, _WIDTH)
    elites = plans[:, None]
    for _ in range(rounds):
        samples_drawn = np.clip(mean[:, None] + width[:, None] * _draw_deviations(rng, (E, samples, H, m)), -1.0, 1.0)
        every = np.concatenate([elites, mean[:, None], samples_drawn], axis=1)
        order = np.argsort(-objective(every), axis=1, kind="stable")
        elite = every[rows, order[:, :n_elite]]
        mean, width = elite.mean(axis=1), np.maximum(elite.std(axis=1), _MIN_WIDTH)
        elites = elite[:, : max(1, round(_KEPT_ELITE * n_elite))]
    best: Values = elites[:, 0]
    return best


def _draw_deviations(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw normal deviations (E, S, H, m), correlated along H, of several scales and lengths."""
    noise = rng.standard_normal(shape)
    rho = np.resize(np.array(_CORRELATIONS), shape[1])[:, None]
    for k in range(1, shape[2]):
        noise[:, :, k] = rho * noise[:, :, k - 1] + np.sqrt(1.0 - rho**2) * noise[:, :, k]
    n = len(_CORRELATIONS)
    scale = np.resize(np.repeat(_SCALES, n), shape[1])
    lengths = np.repeat([shape[2] if length is None else length for length in _LENGTHS], n * len(_SCALES))
    within = np.arange(shape[2]) < np.resize(lengths, shape[1])[:, None]
    return np.asarray((scale[:, None] * within)[:, :, None] * noise)


def _polish(objective: _Objective, plans: Values, rng: np.random.Generator) -> Values:
    """Improve plans (E, H, m) of whole episodes by the best of many random deviations from them, round by round."""
    E, H, m = plans.shape
    shape, at = (E, _POLISHING_SAMPLES), np.arange(E)
    for _ in range(_POLISHING_ROUNDS):
        first, length = rng.integers(0, H, shape), np.rint(H ** rng.uniform(0.0, 1.0, shape))
        ahead = np.arange(H) - first[..., None]
        within = (ahead >= 0) & (ahead < length[..., None])
        size = _POLISHING_SCALE * 10.0 ** rng.uniform(-2.0, 0.0, shape) * rng.choice([-1.0, 1.0], shape)
        direction = rng.standard_normal((*shape, 1, m))
        deviation = within[..., None] * size[..., None, None] * direction
        every = np.concatenate([plans[:, None], np.clip(plans[:, None] + deviation, -1.0, 1.0)], axis=1)
        plans = every[at, objective(every).argmax(axis=1)]
    return plans


def _follow(model: TaskModel, draws: Draws, actions: Values) -> Episodes:
    """Play episodes with given actions (E, steps, m), SI units."""
    states, targets = draws
    active = np.ones(len(states), bool)
    total, n_steps = np.zeros(len(states)), np.zeros(len(states))
    previous = np.tile(model.safe, (len(states), 1))
    for t in range(model.steps):
        states, reward, over = model.follow(states, actions[:, t], previous, targets[:, t + 1])
        previous = actions[:, t]
        total += np.where(active, reward, 0.0)
        n_steps += active
        active = active & ~over
        if not active.any():
            break
    return Episodes(total, n_steps)
