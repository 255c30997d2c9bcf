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
"""Numbers of pairs after which a race decides, in steps of about a half."""
MARGIN: Final = 0.02
"""Difference of scores below which candidates count as equal."""
FLOOR: Final = 0.01
"""Minimum standard deviation, so that a few equal pairs decide nothing."""
_ROUNDING: Final = 1e-9
"""Relative tolerance of a budget that is used up exactly."""


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
        """Minimum number of pairs for a decision."""

    def of(self, scores: Values, tail: float) -> Interval:
        """Summarise ``scores`` (n,); each bound fails with probability ``tail``."""

    def difference(self, scores: Values, others: Values, tail: float) -> Interval:
        """Return the difference of the summaries of paired scores, (n,) each."""


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
    """Return the summary over pairs for an objective (``onrig.learner.trials.objectives``)."""
    return LowTenth() if objective == "robust" else Mean()


class Rules(NamedTuple):
    """Rules by which a race decides."""

    statistic: Statistic
    rounds: int = 1
    """Rounds of newcomers, the first included."""
    rungs: tuple[int, ...] = RUNGS
    margin: float = MARGIN

    def elimination_tail(self, pairs: int, compared: int) -> float:
        """Return the error probability of one comparison at a rung.  Over all rungs and rounds it adds up to at most
        1 - COVERAGE: half of it at the first rung that decides, a quarter at the second, and so on."""
        decided = sum(self.statistic.fewest <= rung <= pairs for rung in self.rungs)
        return (1.0 - COVERAGE) / (self.rounds * 2.0**decided * max(1, compared))

    def stated_tail(self, left: int) -> float:
        """Return the error probability of one of the two bounds of one of ``left`` candidates."""
        return (1.0 - COVERAGE) / (2 * max(1, left))


class Budget(NamedTuple):
    """Budget of a race."""

    total: float
    each: Mapping[str, float]
    """Cost of one trial of each candidate, in the unit of ``total``: 1 where trials are counted."""

    def spent(self, pairs: Mapping[str, int]) -> float:
        """Return the cost of these numbers of pairs."""
        return sum(self.each[name] * n for name, n in pairs.items())

    def holds(self, pairs: Mapping[str, int]) -> bool:
        """Return whether it suffices for these numbers of pairs."""
        return self.spent(pairs) <= self.total * (1.0 + _ROUNDING)


class Exit(NamedTuple):
    """Elimination of a candidate."""

    behind: Interval
    """Its paired difference from the leader."""
    leader: str


class State(NamedTuple):
    """A race after its last complete rung."""

    active: tuple[str, ...]
    """Candidates that continue, best first."""
    paused: tuple[str, ...]
    """Undecided candidates that are paused to leave the budget to the closest rivals."""
    pairs: Mapping[str, int]
    """Number of pairs by candidate, eliminated ones included."""
    exits: Mapping[str, Exit]
    ended: str
    """Why the race is over: ``one left``, ``alone`` (others are paused), ``equal``, ``budget``, ``pairs`` or ``none
    left``; empty if it continues."""
    wanted: Mapping[str, int]
    """Number of pairs for the next rung, by candidate; empty if the race is over."""

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
    """Its summary; simultaneous 95 % bounds over all candidates that are left."""
    behind: Interval
    """Paired difference from the leader; simultaneous 95 % bounds."""
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
    """Run a race as far as there are scores.

    ``before``: finished race that the newcomers join.  They begin with the first rung, and are compared with the leader
    over the same pairs at each; they become active when they have caught up.  ``barred``: candidates excluded after the
    first rung, regardless of their scores.
    """
    exits, paused = (dict(before.exits), list(before.paused)) if before else ({}, [])
    pairs = {**(before.pairs if before else {}), **dict.fromkeys(newcomers, 0)}
    active = [*(before.active if before else ()), *newcomers]
    reached = before.pairs[before.leader] if before else 0
    for i, rung in enumerate(rules.rungs):
        chosen = active
        if i:
            chosen = _affordable(budget, active, pairs, scores, rules, i)
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
        active, eliminated = _eliminate([name for name in active if name not in barred], scores, rung, rules)
        exits |= eliminated
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
    """Build the state; newcomers with fewer pairs than those ``before`` cannot lead or change their order."""
    old = [name for name in before.active if name in active] if before else []
    behind = [name for name in active if old and pairs[name] < pairs[old[0]]]
    level = old if behind else active
    return State(tuple(level), (*paused, *behind), pairs, exits, ended, wanted)


def _after(pairs: Mapping[str, int], active: Sequence[str], rung: int) -> dict[str, int]:
    return {**pairs, **{name: max(rung, pairs[name]) for name in active}}


def _affordable(
    budget: Budget, active: list[str], pairs: Mapping[str, int], scores: Scores, rules: Rules, i: int
) -> list[str]:
    """Choose the candidates that continue to rung ``i``; the others are paused.

    These are the leader and those with the highest optimistic scores: as many as the budget would take one rung
    further, but at least two that it takes to rung ``i``.
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
    """Rank candidates by their figures over the same pairs, and eliminate those that are significantly worse."""
    figures = {name: rules.statistic.of(scores[name][:pairs], 0.25).value for name in active}
    ranked = sorted(active, key=lambda name: -figures[name])
    eliminated: dict[str, Exit] = {}
    if ranked and pairs >= rules.statistic.fewest:
        leader, tail = ranked[0], rules.elimination_tail(pairs, len(ranked) - 1)
        for name in ranked[1:]:
            behind = rules.statistic.difference(scores[name][:pairs], scores[leader][:pairs], tail)
            if behind.high < 0.0:
                eliminated[name] = Exit(behind, leader)
    return [name for name in ranked if name not in eliminated], eliminated


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
    """Return all candidates that have run: first those left, with the leader, then the eliminated, closest first."""
    found, tail = [], rules.stated_tail(len(state.left))
    for name in state.left:
        if not (n := state.pairs[name]):
            continue
        behind = Interval(0.0, 0.0, 0.0)
        if name != state.leader:
            behind = rules.statistic.difference(scores[name][:n], scores[state.leader][:n], tail)
        found.append(Standing(name, rules.statistic.of(scores[name][:n], tail), behind, n, left=True))
    for name, eliminated in sorted(state.exits.items(), key=lambda item: -item[1].behind.value):
        n = state.pairs[name]
        figure = rules.statistic.of(scores[name][:n], rules.stated_tail(1))
        found.append(Standing(name, figure, eliminated.behind, n, left=False))
    return found


def separable(left: Sequence[Standing], pairs: int, rules: Rules) -> list[str]:
    """Return the candidates that ``pairs`` pairs would eliminate if differences and spreads remain the same."""
    tail = rules.elimination_tail(pairs, len(left) - 1)
    eliminating = student_quantile(1.0 - tail, pairs - 1) / math.sqrt(pairs)
    found = []
    for one in left[1:]:
        stated = student_quantile(1.0 - rules.stated_tail(len(left)), one.pairs - 1) / math.sqrt(one.pairs)
        if -one.behind.value > one.behind.half_width / stated * eliminating:
            found.append(one.name)
    return found
