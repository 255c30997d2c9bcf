"""A sampling model-predictive controller on the exact model, for any plant: the cross-entropy method.

In every period it draws plans of actions around its last one, follows each on the model, and moves to the best (de
Boer et al. 2005; samples correlated in time, elites kept and plans shifted as in Pinneri et al. 2020, iCEM).  The model
is deterministic, so the actions of the best of several episodes can be repeated: its score is a lower bound on the
optimum.  More samples and other horizons show how much higher the optimum may be.  Episodes and samples are one batch
of the plant's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from onrig.sim.baselines.task_model import Draws, Episodes, TaskModel, Values

_ELITE: Final = 0.1
"""Share of the samples that the next round is drawn around."""
_KEPT: Final = 0.3
"""Share of those that remain among the samples of the next round."""
_WIDTH: Final = 0.6
"""Standard deviation of the first round of a period, of actions from -1 to 1."""
_LEAST_WIDTH: Final = 0.03
_CORRELATIONS: Final = (0.5, 0.8, 0.95)
"""Of a sample's deviations from one period to the next, by turns: fine corrections and long swings."""
_STARTS: Final = 16
"""Populations that search for the first plan, apart from each other; the best goes on."""
_FIRST: Final = 3
"""Factor on the rounds of the first period, which has no plan to begin with."""


class Effort(NamedTuple):
    """Computation of the controller in each period."""

    samples: int
    """Plans in a round."""
    horizon: int
    """Periods that a plan looks ahead."""
    rounds: int
    """Rounds of samples in a period."""


def play(
    model: TaskModel,
    effort: Effort,
    unlived: float,
    draws: Draws,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Play episodes with these starts and targets under the controller, side by side.

    ``unlived``: reward of each step that a termination cuts off.
    """
    rng = np.random.default_rng(seed)
    half, m = 0.5 * (model.action_high - model.action_low), len(model.action_low)
    centre = model.action_low + half
    rest = (model.safe - centre) / half
    states, targets = draws
    episodes = len(states)
    alive = np.ones(episodes, bool)
    total, lived = np.zeros(episodes), np.zeros(episodes)
    before = np.tile(model.safe, (episodes, 1))
    plans = np.tile(rest, (episodes, effort.horizon, 1))
    for t in range(model.steps):
        ahead = min(effort.horizon, model.steps - t)
        course = targets[:, t + 1 : t + 1 + ahead]
        objective = _Objective(model, states, before, course, centre, half, unlived)
        if t == 0:
            plans = _first(objective, plans[:, :ahead], effort, rng)
        else:
            plans = _improved(objective, plans[:, :ahead], effort.samples, effort.rounds, rng)
        actions = centre + half * plans[:, 0]
        states, reward, over = model.follow(states, actions, before, course[:, 0])
        before = actions
        total += np.where(alive, reward, 0.0)
        lived += alive
        alive = alive & ~over
        if progress is not None:
            progress(t + 1, model.steps)
        if not alive.any():
            break
        plans = np.concatenate([plans[:, 1:], np.broadcast_to(rest, (episodes, 1, m))], axis=1)
    return Episodes(total, lived)


class _Objective(NamedTuple):
    """Sum of rewards of plans from given states."""

    model: TaskModel
    states: Values
    """(E, d)."""
    before: Values
    """Actions in force so far (E, m)."""
    targets: Values
    """Targets at the samples to come (E, H, q)."""
    centre: Values
    half: Values
    unlived: float

    def __call__(self, plans: Values) -> Values:
        """Sums (E, S) of plans (E, S, H, m), of actions from -1 to 1."""
        E, S, H, m = plans.shape
        states, alive = np.repeat(self.states, S, axis=0), np.ones(E * S, bool)
        total, before = np.zeros(E * S), np.repeat(self.before, S, axis=0)
        targets = np.repeat(self.targets, S, axis=0)
        for k in range(H):
            actions = self.centre + self.half * plans[:, :, k].reshape(-1, m)
            total[~alive] += self.unlived
            states[alive], reward, over = self.model.follow(
                states[alive], actions[alive], before[alive], targets[alive, k]
            )
            before = actions
            total[alive] += reward
            alive[alive] = ~over
        return np.where(np.isfinite(total), total, -np.inf).reshape(E, S)


def _first(objective: _Objective, plans: Values, effort: Effort, rng: np.random.Generator) -> Values:
    """The best plan (E, H, m) of several populations, which would each end in a local optimum."""
    E = len(plans)
    many = objective._replace(
        states=np.repeat(objective.states, _STARTS, axis=0),
        before=np.repeat(objective.before, _STARTS, axis=0),
        targets=np.repeat(objective.targets, _STARTS, axis=0),
    )
    found = _improved(many, np.repeat(plans, _STARTS, axis=0), effort.samples, effort.rounds * _FIRST, rng)
    sums = many(found[:, None]).reshape(E, _STARTS)
    best: Values = found.reshape(E, _STARTS, *plans.shape[1:])[np.arange(E), sums.argmax(axis=1)]
    return best


def _improved(objective: _Objective, plans: Values, samples: int, rounds: int, rng: np.random.Generator) -> Values:
    """The best plan (E, H, m) of some rounds that begin at ``plans``."""
    E, H, m = plans.shape
    n_elite, at = max(2, round(_ELITE * samples)), np.arange(E)[:, None]
    mean, width = plans, np.full(plans.shape, _WIDTH)
    kept = plans[:, None]
    for _ in range(rounds):
        drawn = np.clip(mean[:, None] + width[:, None] * _correlated(rng, (E, samples, H, m)), -1.0, 1.0)
        every = np.concatenate([kept, mean[:, None], drawn], axis=1)
        order = np.argsort(-objective(every), axis=1, kind="stable")
        elite = every[at, order[:, :n_elite]]
        mean, width = elite.mean(axis=1), np.maximum(elite.std(axis=1), _LEAST_WIDTH)
        kept = elite[:, : max(1, round(_KEPT * n_elite))]
    best: Values = kept[:, 0]
    return best


def _correlated(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Standard normal deviations (E, S, H, m), correlated along H."""
    noise = rng.standard_normal(shape)
    rho = np.resize(np.array(_CORRELATIONS), shape[1])[:, None]
    for k in range(1, shape[2]):
        noise[:, :, k] = rho * noise[:, :, k - 1] + np.sqrt(1.0 - rho**2) * noise[:, :, k]
    return noise
