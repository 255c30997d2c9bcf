"""Race of candidates over paired trials of full length: scores in, decisions out; no I/O, no clock, no randomness.

After every rung of pairs, a candidate is eliminated only if the upper bound of its paired difference from the leader is
below 0, by Student's t with Bonferroni's correction over rungs and candidates (a t-race: Birattari et al. 2002,
López-Ibáñez et al. 2016).  Elimination by rank or after shorter trials would select candidates that learn early.  If
the budget does not suffice for all, the leader and its closest rivals continue, and the others are paused: undecided,
not worse.
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
"""Minimum standard deviation, so that a few equal pairs decide nothing."""
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
    """10th percentile over the pairs, with percentile-bootstrap bounds of resampled pairs."""

    min_pairs: Final = 14
    _N_RESAMPLES: Final = 20_000
    _QUANTILE: Final = 0.1

    def summarize(self, scores: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        return self._bounds(float(np.quantile(scores, self._QUANTILE)), self._resampled(scores), tail)

    def difference(self, scores: Values, reference: Values, tail: float) -> Interval:
        """Implement ``Statistic``."""
        value = float(np.quantile(scores, self._QUANTILE) - np.quantile(reference, self._QUANTILE))
        return self._bounds(value, self._resampled(scores) - self._resampled(reference), tail)

    def _resampled(self, scores: Values) -> Values:
        indices = np.random.default_rng(len(scores)).integers(len(scores), size=(self._N_RESAMPLES, len(scores)))
        return np.asarray(np.quantile(scores[indices], self._QUANTILE, axis=1))

    def _bounds(self, value: float, resampled: Values, tail: float) -> Interval:
        low, high = np.quantile(resampled, (tail, 1.0 - tail))
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

    def elimination_tail(self, pairs: int, compared: int) -> float:
        """Return the error probability of one comparison at a rung.  The sum over all rungs and rounds is at most 1 -
        COVERAGE: half of it is spent at the first rung that decides, a quarter at the second, and so on.
        """
        decided = sum(self.statistic.min_pairs <= rung <= pairs for rung in self.rungs)
        return (1.0 - COVERAGE) / (self.rounds * 2.0**decided * max(1, compared))

    def bound_tail(self, remaining: int) -> float:
        """Return the error probability of each bound if ``remaining`` candidates have simultaneous bounds."""
        return (1.0 - COVERAGE) / (2 * max(1, remaining))


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

    behind: Interval
    """Paired difference from the leader."""
    leader: str


class State(NamedTuple):
    """State of a race after its last complete rung."""

    active: tuple[str, ...]
    """Candidates that continue, best first."""
    paused: tuple[str, ...]
    """Undecided candidates that are paused to leave the budget to the closest rivals."""
    pairs: Mapping[str, int]
    """Number of pairs by candidate, including eliminated ones."""
    eliminations: Mapping[str, Elimination]
    ended: str
    """Why the race is over: ``one left``, ``alone`` (others are paused), ``equal``, ``budget``, ``pairs`` or ``none
    left``; empty if it continues."""
    next_pairs: Mapping[str, int]
    """Number of pairs for the next rung, by candidate; empty if the race is over."""

    @property
    def remaining(self) -> tuple[str, ...]:
        """Candidates that may still be the best, the leader first."""
        return (*self.active, *self.paused)

    @property
    def leader(self) -> str:
        """Candidate with the best statistic over the most pairs."""
        return self.active[0]


class Standing(NamedTuple):
    """A candidate's place in the ranking."""

    name: str
    figure: Interval
    """Statistic of the scores, with simultaneous 95 % bounds over all remaining candidates."""
    behind: Interval
    """Paired difference from the leader, with simultaneous 95 % bounds."""
    pairs: int
    may_be_best: bool


Scores = Mapping[str, Values]
"""Scores of each candidate's first pairs, (n,) each, higher is better."""


def race(
    newcomers: Sequence[str],
    scores: Scores,
    rules: Rules,
    budget: Budget,
    previous: State | None = None,
    barred: Collection[str] = (),
) -> State:
    """Run a race as far as scores are available.

    ``previous``: finished race that the newcomers join.  They start at the first rung, are compared with the leader
    over the same pairs at each rung, and become active when they have as many pairs.  ``barred``: candidates excluded
    after the first rung, regardless of their scores.
    """
    eliminations, paused = (dict(previous.eliminations), list(previous.paused)) if previous else ({}, [])
    pairs = {**(previous.pairs if previous else {}), **dict.fromkeys(newcomers, 0)}
    active = [*(previous.active if previous else ()), *newcomers]
    reached = previous.pairs[previous.leader] if previous else 0
    for i, rung in enumerate(rules.rungs):
        continuing = active
        if i:
            continuing = _affordable(budget, active, pairs, scores, rules, i)
        elif not budget.covers(_pairs_after(pairs, active, rung)):
            continuing = []
        if not continuing:
            return _state(active, paused, pairs, eliminations, previous, "budget", {})
        paused += [name for name in active if name not in continuing]
        active = continuing
        next_pairs = {name: rung for name in active if pairs[name] < rung}
        if any(len(scores.get(name, ())) < rung for name in next_pairs):
            return _state(active, paused, pairs, eliminations, previous, "", next_pairs)
        pairs = _pairs_after(pairs, active, rung)
        active, eliminated = _eliminate([name for name in active if name not in barred], scores, rung, rules)
        eliminations |= eliminated
        if all(pairs[name] < reached for name in active):  # only newcomers remain
            reached = 0
        if rung >= reached and (reason := _end_reason(active, paused, scores, rung, rules)):
            return _state(active, paused, pairs, eliminations, previous, reason, {})
    return _state(active, paused, pairs, eliminations, previous, "pairs", {})


def _state(
    active: Sequence[str],
    paused: Sequence[str],
    pairs: dict[str, int],
    eliminations: dict[str, Elimination],
    previous: State | None,
    ended: str,
    next_pairs: dict[str, int],
) -> State:
    """Build the state.  Newcomers with fewer pairs than the candidates of ``previous`` can neither lead nor change the
    order.
    """
    previous_active = [name for name in previous.active if name in active] if previous else []
    trailing = [name for name in active if previous_active and pairs[name] < pairs[previous_active[0]]]
    leading = previous_active if trailing else active
    return State(tuple(leading), (*paused, *trailing), pairs, eliminations, ended, next_pairs)


def _pairs_after(pairs: Mapping[str, int], active: Sequence[str], rung: int) -> dict[str, int]:
    return {**pairs, **{name: max(rung, pairs[name]) for name in active}}


def _affordable(
    budget: Budget, active: list[str], pairs: Mapping[str, int], scores: Scores, rules: Rules, i: int
) -> list[str]:
    """Choose the candidates that continue to rung ``i``; the others are paused.

    The leader and the candidates with the highest optimistic scores continue: as many as the budget allows for one rung
    more, but at least two if it allows these for rung ``i``.
    """
    rungs = rules.rungs
    previous_rung, target = rungs[i - 1], rungs[min(i + 1, len(rungs) - 1)] if i > 1 else rungs[i]
    leader = scores[active[0]][:previous_rung]

    def optimistic(name: str) -> float:
        difference = scores[name][:previous_rung] - leader
        return float(difference.mean() + max(MIN_STD, difference.std(ddof=1)) / math.sqrt(previous_rung))

    order = [active[0], *sorted(active[1:], key=lambda name: -optimistic(name))]
    for k in range(len(order), 2, -1):
        if budget.covers(_pairs_after(pairs, order[:k], target)):
            return [name for name in active if name in order[:k]]
    return (
        [name for name in active if name in order[:2]]
        if budget.covers(_pairs_after(pairs, order[:2], rungs[i]))
        else []
    )


def _eliminate(active: list[str], scores: Scores, pairs: int, rules: Rules) -> tuple[list[str], dict[str, Elimination]]:
    """Rank candidates by their statistics over the same pairs, and eliminate those that are significantly worse."""
    figures = {name: rules.statistic.summarize(scores[name][:pairs], 0.25).value for name in active}
    ranked = sorted(active, key=lambda name: -figures[name])
    eliminated: dict[str, Elimination] = {}
    if ranked and pairs >= rules.statistic.min_pairs:
        leader, tail = ranked[0], rules.elimination_tail(pairs, len(ranked) - 1)
        for name in ranked[1:]:
            behind = rules.statistic.difference(scores[name][:pairs], scores[leader][:pairs], tail)
            if behind.high < 0.0:
                eliminated[name] = Elimination(behind, leader)
    return [name for name in ranked if name not in eliminated], eliminated


def _end_reason(active: list[str], paused: Sequence[str], scores: Scores, pairs: int, rules: Rules) -> str:
    if not active:
        return "none left"
    if len(active) == 1:
        return "alone" if paused else "one left"
    if paused or pairs < rules.statistic.min_pairs:
        return ""
    leader, tail = scores[active[0]][:pairs], rules.bound_tail(len(active))
    differences = (rules.statistic.difference(scores[name][:pairs], leader, tail) for name in active[1:])
    return "equal" if all(max(-a.low, a.high) <= rules.margin for a in differences) else ""


def standings(state: State, scores: Scores, rules: Rules) -> list[Standing]:
    """Return the ranking of all candidates with trials: the leader, the other remaining ones, then the eliminated,
    closest first.
    """
    ranking, tail = [], rules.bound_tail(len(state.remaining))
    for name in state.remaining:
        if not (n := state.pairs[name]):
            continue
        behind = Interval(0.0, 0.0, 0.0)
        if name != state.leader:
            behind = rules.statistic.difference(scores[name][:n], scores[state.leader][:n], tail)
        ranking.append(Standing(name, rules.statistic.summarize(scores[name][:n], tail), behind, n, may_be_best=True))
    for name, eliminated in sorted(state.eliminations.items(), key=lambda item: -item[1].behind.value):
        n = state.pairs[name]
        figure = rules.statistic.summarize(scores[name][:n], rules.bound_tail(1))
        ranking.append(Standing(name, figure, eliminated.behind, n, may_be_best=False))
    return ranking


def predict_eliminations(remaining: Sequence[Standing], pairs: int, rules: Rules) -> list[str]:
    """Return the candidates that ``pairs`` pairs would eliminate if differences and spreads remained the same."""
    tail = rules.elimination_tail(pairs, len(remaining) - 1)
    eliminating = student_quantile(1.0 - tail, pairs - 1) / math.sqrt(pairs)
    names = []
    for standing in remaining[1:]:
        stated = student_quantile(1.0 - rules.bound_tail(len(remaining)), standing.pairs - 1) / math.sqrt(
            standing.pairs
        )
        if -standing.behind.value > standing.behind.half_width / stated * eliminating:
            names.append(standing.name)
    return names
