"""Race of candidates over full-length paired trials, as pure functions from scores to decisions: no I/O, clock or
randomness.

After every rung of pairs, a candidate is eliminated only if the upper bound of its paired difference from the leader is
below 0, by Student's t with Bonferroni's correction over rungs and candidates (a t-race: Birattari et al. 2002,
López-Ibáñez et al. 2016). Elimination by rank or after shorter trials would select candidates that learn early. If the
budget does not suffice for all, the leader and its closest rivals continue. The others are paused, which means that
they are undecided, not worse.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.intervals import COVERAGE, student_quantile

Values = NDArray[np.float64]

RUNGS: Final = (4, 6, 9, 14, 21, 32, 48, 64)
"""Numbers of pairs after which a race decides, each about 1.5 times the previous one."""
MARGIN: Final = 0.02
"""Difference in score below which candidates count as equal."""
MIN_STD: Final = 0.01
"""Minimum standard deviation, so that a few equal pairs cannot decide a race."""
_BUDGET_TOLERANCE: Final = 1e-9
"""Relative rounding tolerance of the budget."""


class Interval(NamedTuple):
    """Estimate with its bounds."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Distance from the value to the farther bound."""
        return max(self.value - self.low, self.high - self.value)


class Statistic(Protocol):
    """Statistic of a candidate's scores over pairs, with a lower and an upper bound."""

    @property
    def min_pairs(self) -> int:
        """Minimum number of pairs for a decision."""

    def summarize(self, scores: Values, tail: float) -> Interval:
        """Estimate the statistic of ``scores`` (n,); each bound fails with probability ``tail``."""

    def difference(self, scores: Values, reference: Values, tail: float) -> Interval:
        """Estimate the difference between the statistics of paired scores, (n,) each."""


class Mean:
    """Mean over the pairs, with Student's t."""

    min_pairs: Final = 6

    def summarize(self, scores: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        n = len(scores)
        mean = float(scores.mean())
        half_width = student_quantile(1.0 - tail, n - 1) * max(MIN_STD, float(scores.std(ddof=1))) / math.sqrt(n)
        return Interval(mean, mean - half_width, mean + half_width)

    def difference(self, scores: Values, reference: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        return self.summarize(scores - reference, tail)


class LowTenth:
    """10th percentile over the pairs, with bounds from a percentile bootstrap over the pairs."""

    min_pairs: Final = 14
    _N_RESAMPLES: Final = 20_000
    _QUANTILE: Final = 0.1

    def summarize(self, scores: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        return self._bounds(float(np.quantile(scores, self._QUANTILE)), self._resample(scores), tail)

    def difference(self, scores: Values, reference: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        value = float(np.quantile(scores, self._QUANTILE) - np.quantile(reference, self._QUANTILE))
        return self._bounds(value, self._resample(scores) - self._resample(reference), tail)

    def _resample(self, scores: Values) -> Values:
        indices = np.random.default_rng(len(scores)).integers(len(scores), size=(self._N_RESAMPLES, len(scores)))
        return np.asarray(np.quantile(scores[indices], self._QUANTILE, axis=1))

    def _bounds(self, value: float, resampled_values: Values, tail: float) -> Interval:
        low, high = np.quantile(resampled_values, (tail, 1.0 - tail))
        return Interval(value, min(value, float(low)) - MIN_STD, max(value, float(high)) + MIN_STD)


def statistic_for(objective: str) -> Statistic:
    """Return the statistic for an objective (``onrig.learner.trials.objectives``)."""
    return LowTenth() if objective == "robust" else Mean()


class Rules(NamedTuple):
    """Decision rules of a race."""

    statistic: Statistic
    rounds: int = 1
    """Number of rounds, including the first."""
    rungs: tuple[int, ...] = RUNGS
    margin: float = MARGIN

    def elimination_tail(self, n_pairs: int, n_compared: int) -> float:
        """Return the error probability of one comparison at a rung.  The sum over all rungs and rounds is at most 1 -
        COVERAGE: half of it is spent at the first rung that decides, a quarter at the second, and so on.
        """
        n_decisions = sum(self.statistic.min_pairs <= rung <= n_pairs for rung in self.rungs)
        return (1.0 - COVERAGE) / (self.rounds * 2.0**n_decisions * max(1, n_compared))

    def bound_tail(self, n_remaining: int) -> float:
        """Return the error probability of each bound if ``n_remaining`` candidates have simultaneous bounds."""
        return (1.0 - COVERAGE) / (2 * max(1, n_remaining))


class Budget(NamedTuple):
    """Budget of a race."""

    total: float
    trial_costs: Mapping[str, float]
    """Cost of one trial of each candidate, in the unit of ``total``; 1 if the budget is a number of trials."""

    def cost_of(self, pairs: Mapping[str, int]) -> float:
        """Return the cost of the given numbers of pairs."""
        return sum(self.trial_costs[name] * n for name, n in pairs.items())

    def covers(self, pairs: Mapping[str, int]) -> bool:
        """Return whether the budget suffices for the given numbers of pairs."""
        return self.cost_of(pairs) <= self.total * (1.0 + _BUDGET_TOLERANCE)


class Elimination(NamedTuple):
    """Elimination of a candidate, and the leader at the time."""

    deficit: Interval
    """Paired difference from the leader."""
    leader: str


class State(NamedTuple):
    """State of a race after its last complete rung."""

    active_names: tuple[str, ...]
    """Candidates that continue, best first."""
    paused_names: tuple[str, ...]
    """Undecided candidates that are paused to leave the budget to the closest rivals."""
    pairs: Mapping[str, int]
    """Number of pairs by candidate, including eliminated ones."""
    eliminations: Mapping[str, Elimination]
    end_reason: str
    """Why the race is over: ``one left``, ``alone`` (others are paused), ``equal``, ``budget``, ``pairs`` or ``none
    left``; empty if it continues."""
    next_pairs: Mapping[str, int]
    """Number of pairs for the next rung, by candidate; empty if the race is over."""

    @property
    def remaining_names(self) -> tuple[str, ...]:
        """Candidates that may still be the best, the leader first."""
        return (*self.active_names, *self.paused_names)

    @property
    def leader(self) -> str:
        """Candidate with the best statistic over the most pairs."""
        return self.active_names[0]


class Standing(NamedTuple):
    """A candidate's place in the ranking."""

    name: str
    figure: Interval
    """Statistic of the scores, with simultaneous 95 % bounds over all remaining candidates."""
    deficit: Interval
    """Paired difference from the leader, with simultaneous 95 % bounds."""
    n_pairs: int
    may_be_best: bool


Scores = Mapping[str, Values]
"""Scores of each candidate's first pairs, (n,) each, higher is better."""


def race(
    newcomers: Sequence[str],
    scores: Scores,
    rules: Rules,
    budget: Budget,
    previous_state: State | None = None,
    excluded_names: Collection[str] = (),
) -> State:
    """Run a race as far as scores are available.

    ``previous_state`` is a finished race that the newcomers join. They start at the first rung, are compared with the
    leader over the same pairs at each rung, and become active when they have as many pairs as the leader.
    ``excluded_names`` are candidates that are excluded after the first rung, regardless of their scores.
    """
    eliminations, paused_names = (
        (dict(previous_state.eliminations), list(previous_state.paused_names)) if previous_state else ({}, [])
    )
    pairs = {**(previous_state.pairs if previous_state else {}), **dict.fromkeys(newcomers, 0)}
    active_names = [*(previous_state.active_names if previous_state else ()), *newcomers]
    reached_rung = previous_state.pairs[previous_state.leader] if previous_state else 0
    for i, rung in enumerate(rules.rungs):
        next_names = active_names
        if i:
            next_names = _select_affordable(budget, active_names, pairs, scores, rules, i)
        elif not budget.covers(_pairs_after(pairs, active_names, rung)):
            next_names = []
        if not next_names:
            return _state(active_names, paused_names, pairs, eliminations, previous_state, "budget", {})
        paused_names += [name for name in active_names if name not in next_names]
        active_names = next_names
        next_pairs = {name: rung for name in active_names if pairs[name] < rung}
        if any(len(scores.get(name, ())) < rung for name in next_pairs):
            return _state(active_names, paused_names, pairs, eliminations, previous_state, "", next_pairs)
        pairs = _pairs_after(pairs, active_names, rung)
        active_names, new_eliminations = _eliminate(
            [name for name in active_names if name not in excluded_names], scores, rung, rules
        )
        eliminations |= new_eliminations
        if all(pairs[name] < reached_rung for name in active_names):  # only newcomers remain
            reached_rung = 0
        if rung >= reached_rung and (reason := _end_reason(active_names, paused_names, scores, rung, rules)):
            return _state(active_names, paused_names, pairs, eliminations, previous_state, reason, {})
    return _state(active_names, paused_names, pairs, eliminations, previous_state, "pairs", {})


def _state(
    active_names: Sequence[str],
    paused_names: Sequence[str],
    pairs: dict[str, int],
    eliminations: dict[str, Elimination],
    previous_state: State | None,
    end_reason: str,
    next_pairs: dict[str, int],
) -> State:
    """Build the state. Newcomers with fewer pairs than the candidates of ``previous_state`` can neither lead nor change
    the order.
    """
    previous_names = [name for name in previous_state.active_names if name in active_names] if previous_state else []
    trailing_names = [name for name in active_names if previous_names and pairs[name] < pairs[previous_names[0]]]
    leading_names = previous_names if trailing_names else active_names
    return State(tuple(leading_names), (*paused_names, *trailing_names), pairs, eliminations, end_reason, next_pairs)


def _pairs_after(pairs: Mapping[str, int], active_names: Sequence[str], rung: int) -> dict[str, int]:
    return {**pairs, **{name: max(rung, pairs[name]) for name in active_names}}


def _select_affordable(
    budget: Budget, active_names: list[str], pairs: Mapping[str, int], scores: Scores, rules: Rules, i: int
) -> list[str]:
    """Choose the candidates that continue to rung ``i``; the others are paused.

    The leader and the candidates with the highest optimistic scores continue: as many as the budget can take one rung
    beyond ``i`` (for ``i`` = 1, only to ``i``), but at least two if the budget can take two to rung ``i``.
    """
    rungs = rules.rungs
    previous_rung, target = rungs[i - 1], rungs[min(i + 1, len(rungs) - 1)] if i > 1 else rungs[i]
    leader = scores[active_names[0]][:previous_rung]

    def optimistic_score(name: str) -> float:
        difference = scores[name][:previous_rung] - leader
        return float(difference.mean() + max(MIN_STD, difference.std(ddof=1)) / math.sqrt(previous_rung))

    order = [active_names[0], *sorted(active_names[1:], key=lambda name: -optimistic_score(name))]
    for k in range(len(order), 2, -1):
        if budget.covers(_pairs_after(pairs, order[:k], target)):
            return [name for name in active_names if name in order[:k]]
    return (
        [name for name in active_names if name in order[:2]]
        if budget.covers(_pairs_after(pairs, order[:2], rungs[i]))
        else []
    )


def _eliminate(
    active_names: list[str], scores: Scores, n_pairs: int, rules: Rules
) -> tuple[list[str], dict[str, Elimination]]:
    """Rank candidates by their statistics over the same pairs, and eliminate those that are significantly worse."""
    figures = {name: rules.statistic.summarize(scores[name][:n_pairs], 0.25).value for name in active_names}
    ranking = sorted(active_names, key=lambda name: -figures[name])
    new_eliminations: dict[str, Elimination] = {}
    if ranking and n_pairs >= rules.statistic.min_pairs:
        leader, tail = ranking[0], rules.elimination_tail(n_pairs, len(ranking) - 1)
        for name in ranking[1:]:
            deficit = rules.statistic.difference(scores[name][:n_pairs], scores[leader][:n_pairs], tail)
            if deficit.high < 0.0:
                new_eliminations[name] = Elimination(deficit, leader)
    return [name for name in ranking if name not in new_eliminations], new_eliminations


def _end_reason(
    active_names: list[str], paused_names: Sequence[str], scores: Scores, n_pairs: int, rules: Rules
) -> str:
    if not active_names:
        return "none left"
    if len(active_names) == 1:
        return "alone" if paused_names else "one left"
    if paused_names or n_pairs < rules.statistic.min_pairs:
        return ""
    leader, tail = scores[active_names[0]][:n_pairs], rules.bound_tail(len(active_names))
    differences = (rules.statistic.difference(scores[name][:n_pairs], leader, tail) for name in active_names[1:])
    return "equal" if all(max(-a.low, a.high) <= rules.margin for a in differences) else ""


def standings(state: State, scores: Scores, rules: Rules) -> list[Standing]:
    """Return the ranking of all candidates with trials: the leader, the other remaining ones, then the eliminated
    ones, closest first.
    """
    ranking, tail = [], rules.bound_tail(len(state.remaining_names))
    for name in state.remaining_names:
        if not (n := state.pairs[name]):
            continue
        deficit = Interval(0.0, 0.0, 0.0)
        if name != state.leader:
            deficit = rules.statistic.difference(scores[name][:n], scores[state.leader][:n], tail)
        ranking.append(Standing(name, rules.statistic.summarize(scores[name][:n], tail), deficit, n, may_be_best=True))
    for name, elimination in sorted(state.eliminations.items(), key=lambda item: -item[1].deficit.value):
        n = state.pairs[name]
        figure = rules.statistic.summarize(scores[name][:n], rules.bound_tail(1))
        ranking.append(Standing(name, figure, elimination.deficit, n, may_be_best=False))
    return ranking


def predict_eliminations(contenders: Sequence[Standing], n_pairs: int, rules: Rules) -> list[str]:
    """Return the candidates that ``n_pairs`` pairs would eliminate if differences and spreads remained the same."""
    tail = rules.elimination_tail(n_pairs, len(contenders) - 1)
    elimination_factor = student_quantile(1.0 - tail, n_pairs - 1) / math.sqrt(n_pairs)
    names = []
    for standing in contenders[1:]:
        bound_factor = student_quantile(1.0 - rules.bound_tail(len(contenders)), standing.n_pairs - 1) / math.sqrt(
            standing.n_pairs
        )
        if -standing.deficit.value > standing.deficit.half_width / bound_factor * elimination_factor:
            names.append(standing.name)
    return names
