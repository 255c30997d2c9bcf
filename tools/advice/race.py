"""Race of candidates over paired trials of full length: scores in, decisions out; no I/O, no clock, no randomness.

After every rung of pairs, a candidate leaves only if the upper bound of its paired difference from the leader is below
0, by Student's t with Bonferroni's correction over rungs and candidates (a t-race: Birattari et al. 2002, López-Ibáñez
et al. 2016).  Nobody leaves by its rank or after shorter trials, which would select candidates that start early.  Where
the budget does not take all of them further, the leader and its closest rivals run on, and the others are paused:
undecided, not worse.
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
"""Pairs at which a race decides: each half more than the one before."""
MARGIN: Final = 0.02
"""Difference of scores below which candidates are equal for practice."""
FLOOR: Final = 0.01
"""Least standard deviation assumed: a few pairs that happen to be equal decide nothing."""
_ROUNDING: Final = 1e-9
"""Of a budget that is used up exactly."""


class Interval(NamedTuple):
    """A figure with its bounds."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Larger distance of a bound from the figure."""
        return max(self.value - self.low, self.high - self.value)


class Statistic(Protocol):
    """Summary of a candidate's scores over pairs, with bounds of either tail."""

    @property
    def fewest(self) -> int:
        """Pairs below which it decides nothing."""

    def of(self, scores: Values, tail: float) -> Interval:
        """Summary of ``scores`` (n,); each bound fails with probability ``tail``."""

    def difference(self, scores: Values, others: Values, tail: float) -> Interval:
        """Difference of the summaries of paired scores, (n,) each."""


class Mean:
    """Mean over the pairs, with Student's t."""

    fewest: Final = 6

    def of(self, scores: Values, tail: float) -> Interval:
        """As in ``Statistic``."""
        n = len(scores)
        mean = float(scores.mean())
        half = student_quantile(1.0 - tail, n - 1) * max(FLOOR, float(scores.std(ddof=1))) / math.sqrt(n)
        return Interval(mean, mean - half, mean + half)

    def difference(self, scores: Values, others: Values, tail: float) -> Interval:
        """As in ``Statistic``."""
        return self.of(scores - others, tail)


class LowTenth:
    """10th percentile over the pairs, with percentile-bootstrap bounds of resampled pairs."""

    fewest: Final = 14
    _RESAMPLES: Final = 20_000
    _SHARE: Final = 0.1

    def of(self, scores: Values, tail: float) -> Interval:
        """As in ``Statistic``."""
        return self._bounds(float(np.quantile(scores, self._SHARE)), self._resampled(scores), tail)

    def difference(self, scores: Values, others: Values, tail: float) -> Interval:
        """As in ``Statistic``."""
        value = float(np.quantile(scores, self._SHARE) - np.quantile(others, self._SHARE))
        return self._bounds(value, self._resampled(scores) - self._resampled(others), tail)

    def _resampled(self, scores: Values) -> Values:
        chosen = np.random.default_rng(len(scores)).integers(len(scores), size=(self._RESAMPLES, len(scores)))
        return np.asarray(np.quantile(scores[chosen], self._SHARE, axis=1))

    def _bounds(self, value: float, resampled: Values, tail: float) -> Interval:
        low, high = np.quantile(resampled, (tail, 1.0 - tail))
        return Interval(value, min(value, float(low)) - FLOOR, max(value, float(high)) + FLOOR)


def statistic_of(objective: str) -> Statistic:
    """How scores of an objective (``onrig.learner.trials.objectives``) are summarised over pairs."""
    return LowTenth() if objective == "robust" else Mean()


class Rules(NamedTuple):
    """How a race decides."""

    statistic: Statistic
    rounds: int = 1
    """Rounds of newcomers, the first included."""
    rungs: tuple[int, ...] = RUNGS
    margin: float = MARGIN

    def elimination_tail(self, pairs: int, compared: int) -> float:
        """Probability with which one of the comparisons at a rung may fail: those of all rungs and rounds together fail
        with 1 - COVERAGE at most, half of it at the first rung that decides, a quarter at the second, and so on."""
        decided = sum(self.statistic.fewest <= rung <= pairs for rung in self.rungs)
        return (1.0 - COVERAGE) / (self.rounds * 2.0**decided * max(1, compared))

    def stated_tail(self, left: int) -> float:
        """Probability with which one of the two bounds of one of the ``left`` candidates may fail."""
        return (1.0 - COVERAGE) / (2 * max(1, left))


class Budget(NamedTuple):
    """What a race may cost."""

    total: float
    each: Mapping[str, float]
    """Cost of one trial of each candidate, in the unit of ``total``: 1 where trials are counted."""

    def spent(self, pairs: Mapping[str, int]) -> float:
        """Cost of so many pairs of each candidate."""
        return sum(self.each[name] * n for name, n in pairs.items())

    def holds(self, pairs: Mapping[str, int]) -> bool:
        """Whether it is enough for so many pairs of each candidate."""
        return self.spent(pairs) <= self.total * (1.0 + _ROUNDING)


class Exit(NamedTuple):
    """Why a candidate has left."""

    behind: Interval
    """Its paired difference from the leader."""
    leader: str


class State(NamedTuple):
    """A race after its last complete rung."""

    active: tuple[str, ...]
    """Candidates that run on, the best first."""
    paused: tuple[str, ...]
    """Candidates that are not worse with certainty, but would cost the budget that the closest rivals need."""
    pairs: Mapping[str, int]
    """Pairs of each candidate, those that have left included."""
    exits: Mapping[str, Exit]
    ended: str
    """Why the race is over: ``one left``, ``alone`` (others are paused), ``equal``, ``budget``, ``pairs`` or ``none
    left``; empty if it goes on."""
    wanted: Mapping[str, int]
    """Pairs that the next rung needs, by candidate; empty if the race is over."""

    @property
    def left(self) -> tuple[str, ...]:
        """Candidates that may still be the best, the leader first."""
        return (*self.active, *self.paused)

    @property
    def leader(self) -> str:
        """Candidate with the best figure over the most pairs."""
        return self.active[0]


class Standing(NamedTuple):
    """One candidate in the answer."""

    name: str
    figure: Interval
    """Its summary; the bounds of all that are left hold at 95 % together."""
    behind: Interval
    """Paired difference from the leader; so do these bounds."""
    pairs: int
    left: bool
    """Whether it may still be the best."""


Scores = Mapping[str, Values]
"""Scores of each candidate's first pairs, (n,) each, higher is better."""


def race(
    newcomers: Sequence[str],
    scores: Scores,
    rules: Rules,
    budget: Budget,
    before: State | None = None,
    barred: Collection[str] = (),
) -> State:
    """Run a race as far as the scores go.

    ``before``: race over that the newcomers join.  They begin with the first rung, and are compared at each with the
    leader over the same pairs; they are active only once they have caught up.  ``barred``: candidates that are out
    after the first rung, whatever their scores.
    """
    exits, paused = (dict(before.exits), list(before.paused)) if before else ({}, [])
    pairs = {**(before.pairs if before else {}), **dict.fromkeys(newcomers, 0)}
    active = [*(before.active if before else ()), *newcomers]
    reached = before.pairs[before.leader] if before else 0
    for i, rung in enumerate(rules.rungs):
        chosen = active
        if i:
            chosen = _within(budget, active, pairs, scores, rules, i)
        elif not budget.holds(_after(pairs, active, rung)):
            chosen = []
        if not chosen:
            return _state(active, paused, pairs, exits, before, "budget", {})
        paused += [name for name in active if name not in chosen]
        active = chosen
        wanted = {name: rung for name in active if pairs[name] < rung}
        if any(len(scores.get(name, ())) < rung for name in wanted):
            return _state(active, paused, pairs, exits, before, "", wanted)
        pairs = _after(pairs, active, rung)
        active, gone = _eliminate([name for name in active if name not in barred], scores, rung, rules)
        exits |= gone
        if all(pairs[name] < reached for name in active):  # newcomers have beaten all others
            reached = 0
        if rung >= reached and (why := _ended(active, paused, scores, rung, rules)):
            return _state(active, paused, pairs, exits, before, why, {})
    return _state(active, paused, pairs, exits, before, "pairs", {})


def _state(
    active: Sequence[str],
    paused: Sequence[str],
    pairs: dict[str, int],
    exits: dict[str, Exit],
    before: State | None,
    ended: str,
    wanted: dict[str, int],
) -> State:
    """State of a race; newcomers that have fewer pairs than those ``before`` cannot lead, nor change their order."""
    old = [name for name in before.active if name in active] if before else []
    behind = [name for name in active if old and pairs[name] < pairs[old[0]]]
    level = old if behind else active
    return State(tuple(level), (*paused, *behind), pairs, exits, ended, wanted)


def _after(pairs: Mapping[str, int], active: Sequence[str], rung: int) -> dict[str, int]:
    return {**pairs, **{name: max(rung, pairs[name]) for name in active}}


def _within(
    budget: Budget, active: list[str], pairs: Mapping[str, int], scores: Scores, rules: Rules, i: int
) -> list[str]:
    """Choose who runs on to rung ``i``: as many as the budget would take to the rung after it, too, but at least two
    that it takes to this one; the leader, and those that may still be closest to it or ahead.

    Nobody leaves by this: the others are paused.
    """
    rungs = rules.rungs
    before, target = rungs[i - 1], rungs[min(i + 1, len(rungs) - 1)] if i > 1 else rungs[i]
    leader = scores[active[0]][:before]

    def optimistic(name: str) -> float:
        difference = scores[name][:before] - leader
        return float(difference.mean() + max(FLOOR, difference.std(ddof=1)) / math.sqrt(before))

    order = [active[0], *sorted(active[1:], key=lambda name: -optimistic(name))]
    for k in range(len(order), 2, -1):
        if budget.holds(_after(pairs, order[:k], target)):
            return [name for name in active if name in order[:k]]
    return [name for name in active if name in order[:2]] if budget.holds(_after(pairs, order[:2], rungs[i])) else []


def _eliminate(active: list[str], scores: Scores, pairs: int, rules: Rules) -> tuple[list[str], dict[str, Exit]]:
    """Rank candidates by their figures over the same pairs; those that are worse with certainty leave."""
    figures = {name: rules.statistic.of(scores[name][:pairs], 0.25).value for name in active}
    ranked = sorted(active, key=lambda name: -figures[name])
    gone: dict[str, Exit] = {}
    if ranked and pairs >= rules.statistic.fewest:
        leader, tail = ranked[0], rules.elimination_tail(pairs, len(ranked) - 1)
        for name in ranked[1:]:
            behind = rules.statistic.difference(scores[name][:pairs], scores[leader][:pairs], tail)
            if behind.high < 0.0:
                gone[name] = Exit(behind, leader)
    return [name for name in ranked if name not in gone], gone


def _ended(active: list[str], paused: Sequence[str], scores: Scores, pairs: int, rules: Rules) -> str:
    if not active:
        return "none left"
    if len(active) == 1:
        return "alone" if paused else "one left"
    if paused or pairs < rules.statistic.fewest:
        return ""
    leader, tail = scores[active[0]][:pairs], rules.stated_tail(len(active))
    apart = (rules.statistic.difference(scores[name][:pairs], leader, tail) for name in active[1:])
    return "equal" if all(max(-a.low, a.high) <= rules.margin for a in apart) else ""


def standings(state: State, scores: Scores, rules: Rules) -> list[Standing]:
    """Every candidate that has run: those left, the leader first, then the others, those that came closest first."""
    found, tail = [], rules.stated_tail(len(state.left))
    for name in state.left:
        if not (n := state.pairs[name]):
            continue
        behind = Interval(0.0, 0.0, 0.0)
        if name != state.leader:
            behind = rules.statistic.difference(scores[name][:n], scores[state.leader][:n], tail)
        found.append(Standing(name, rules.statistic.of(scores[name][:n], tail), behind, n, left=True))
    for name, gone in sorted(state.exits.items(), key=lambda item: -item[1].behind.value):
        n = state.pairs[name]
        figure = rules.statistic.of(scores[name][:n], rules.stated_tail(1))
        found.append(Standing(name, figure, gone.behind, n, left=False))
    return found


def separable(left: Sequence[Standing], pairs: int, rules: Rules) -> list[str]:
    """Candidates that ``pairs`` pairs would separate from the leader, if differences and spreads stay as they are."""
    tail = rules.elimination_tail(pairs, len(left) - 1)
    eliminating = student_quantile(1.0 - tail, pairs - 1) / math.sqrt(pairs)
    found = []
    for one in left[1:]:
        stated = student_quantile(1.0 - rules.stated_tail(len(left)), one.pairs - 1) / math.sqrt(one.pairs)
        if -one.behind.value > one.behind.half_width / stated * eliminating:
            found.append(one.name)
    return found
