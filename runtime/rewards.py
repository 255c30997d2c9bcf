"""Terms of a reward beside the paper's form (``onrig.runtime.task``): descriptions, chosen by ``kind``.

The replay process computes them, as the tick needs no reward; trials, environments and baselines do so themselves.  A
term is written once, with numpy's functions, for any number of transitions, so that one alone has the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import NotNegative, Quantity
from onrig.hw.rig import Rig
from onrig.runtime import registry
from onrig.runtime.config.problem import unknown_name
from onrig.runtime.config.registered import registered

Values = NDArray[np.float64]
Problems = Iterator[tuple[str, str]]
"""(path in the section, message) of each."""


class Moves(NamedTuple):
    """What terms see of transitions, any number at once (...,): SI units, float64."""

    observation: Values
    """(..., n) after the action, in the order of ``Rig.signals``."""
    action: Values
    """(..., m) applied, in the order of ``Rig.actuators``."""


class RewardTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Description of a reward term; a subclass adds its settings as fields, and its name as the tag."""

    def problems(self, rig: Rig) -> Problems:
        """List what keeps the term from a rig."""
        return iter(())

    def build(self, rig: Rig) -> Callable[[Moves], Values]:
        """The term as a function of transitions (...,) to rewards (...,), without state."""
        raise NotImplementedError


class Distance(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="distance"):
    """Minus ``weight`` times the distance of an observation from its target."""

    observation: str
    """Of the rig, by name."""
    weight: NotNegative
    """Per unit of the observation."""
    target: Quantity = 0.0
    """In the unit of the observation."""
    folded: bool = False
    """Whether the observation's absolute value is compared."""

    def problems(self, rig: Rig) -> Problems:
        """A missing observation."""
        yield from missing("observation", self.observation, rig)

    def build(self, rig: Rig) -> Callable[[Moves], Values]:
        """The weighted distance."""
        at = observation_index(rig)[self.observation]

        def distance(moves: Moves) -> Values:
            x = moves.observation[..., at]
            return np.asarray(-self.weight * np.abs((np.abs(x) if self.folded else x) - self.target))

        return distance


class Effort(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="effort"):
    """Minus ``weight`` times the absolute applied action of an actuator."""

    actuator: str
    """Of the rig, by name."""
    weight: NotNegative
    """Per unit of the actuator."""

    def problems(self, rig: Rig) -> Problems:
        """A missing actuator."""
        yield from missing("actuator", self.actuator, rig)

    def build(self, rig: Rig) -> Callable[[Moves], Values]:
        """The weighted effort."""
        at = [a.name for a in rig.actuators].index(self.actuator)
        return lambda moves: np.asarray(-self.weight * np.abs(moves.action[..., at]))


if TYPE_CHECKING:
    AnyTerm = RewardTerm
else:
    AnyTerm = Annotated[Any, registered(registry.REWARDS)]
Terms = Mapping[str, RewardTerm] | msgspec.UnsetType
"""By the names that the task gives them."""


class TermFailed(Exception):
    """Exception, or unusable result, of a term's code; the message names the term, and file and line."""


def observation_index(rig: Rig) -> dict[str, int]:
    """Column of each observation."""
    return {o.name: i for i, o in enumerate(rig.signals)}


def missing(kind: str, name: str, rig: Rig) -> Problems:
    """The problem of a name that is no ``observation`` or ``actuator`` of a rig."""
    names = [a.name for a in rig.actuators] if kind == "actuator" else [o.name for o in rig.signals]
    if name not in names:
        yield kind, unknown_name(f"rig '{rig.name}'", kind, name, names)


def term_reward(terms: Terms, rig: Rig) -> Callable[[Moves, Values], Values] | None:
    """Build ``add(moves, rewards)``: rewards (...,) with those of the terms added, in the task's order; None for none.

    It raises TermFailed for an exception of a term, and for a result of another shape.
    """
    if terms is msgspec.UNSET or not terms:
        return None
    built = [(name, _built(name, term, rig)) for name, term in terms.items()]

    def add(moves: Moves, rewards: Values) -> Values:
        for name, term in built:
            try:
                rewards = rewards + np.broadcast_to(np.asarray(term(moves), np.float64), rewards.shape)
            except Exception as error:
                raise TermFailed(f"the reward term '{name}' raises {registry.blame(error)}") from error
        return rewards

    return add


def _built(name: str, term: RewardTerm, rig: Rig) -> Callable[[Moves], Values]:
    try:
        return term.build(rig)
    except Exception as error:
        raise TermFailed(f"the reward term '{name}' raises {registry.blame(error)}") from error


_MOST_CORNERS: Final = 256


def corners(rig: Rig) -> Moves:
    """Middle of the ranges under the safe action, then corners of the ranges under the extreme ones: (k, n), (k, m)."""
    signals, actuators = rig.signals, rig.actuators
    middle = tuple(0.5 * (o.low + o.high) for o in signals)
    ends = [tuple(a.low for a in actuators), tuple(a.high for a in actuators)]
    pairs = [(middle, tuple(a.safe for a in actuators))]
    pairs += itertools.islice(
        itertools.product(itertools.product(*[(o.low, o.high) for o in signals]), ends), _MOST_CORNERS
    )
    seen, acted = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    return Moves(seen, acted)
