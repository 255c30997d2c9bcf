"""Reward terms in addition to the paper's form (``onrig.runtime.task``), chosen by ``kind``.

The replay process computes them, because the tick needs no reward; trials, environments and baselines compute them
themselves. A term applies numpy functions to batches of any shape, so that a transition has the same reward alone as in
a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.hw.units import same_unit
from onrig.runtime import registry
from onrig.runtime.config.problem import describe_unknown_name
from onrig.runtime.config.registered import registered

Values = NDArray[np.float64]
Bools = NDArray[np.bool_]
Problems = Iterator[tuple[str, str]]
"""Problems as (path in the section, message) pairs."""


class Transitions(NamedTuple):
    """Batch (...,) of transitions that reward terms receive, in SI units and float64."""

    observation: Values
    """Observations (..., n) after the action, in the order of ``Rig.signals``."""
    action: Values
    """Applied actions (..., m), in the order of ``Rig.actuators``."""
    previous_action: Values
    """Outputs (..., m) in force when the action was chosen: the last applied action or, for an episode's first action,
    the output at the first sample (the safe output after a reset)."""
    terminated: Bools
    """Whether the task terminates the episode after the action, shape (...,)."""


class RewardTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of reward terms; a subclass declares its settings as fields and its name as the tag."""

    def problems(self, rig: Rig) -> Problems:
        """List the reasons why the term cannot be used on a rig."""
        return iter(())

    def uses_previous_action(self, rig: Rig) -> bool:
        """Return whether the term depends on the previous action, which is not part of the state."""
        return False

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build a stateless function that maps transitions (...,) to rewards (...,)."""
        raise NotImplementedError


Cost = Literal["absolute", "squared"]


def build_cost(shape: str, delta: float = 0.0) -> Callable[[Values], Values]:
    """Build the cost function of differences e (...,): |e|, e^2, or Huber's cost (e^2 / 2, linear beyond ``delta``)."""
    if shape == "absolute":
        return np.abs
    if shape == "squared":
        return lambda e: e * e

    def huber(e: Values) -> Values:
        distance = np.abs(e)
        return np.where(distance <= delta, 0.5 * (e * e), delta * (distance - 0.5 * delta))

    return huber


class Distance(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="distance"):
    """Minus ``weight`` times the distance of an observation from its target."""

    observation: str
    """Name of the observation."""
    weight: NotNegative
    """Weight per unit of the observation, or of its square."""
    target: Quantity | str = 0.0
    """Target in the observation's unit, or the name of a target of the task or of another observation."""
    folded: bool = False
    """Whether to compare the observation's absolute value.  If not, the distance of a wrapped angle is the shorter way
    around."""
    shape: Literal["absolute", "squared", "huber"] = "absolute"
    """Cost of a distance e: ``absolute`` e, ``squared`` e², ``huber`` e²/2 up to ``delta`` and linear beyond."""
    delta: Positive | msgspec.UnsetType = msgspec.UNSET
    """Distance at which ``huber`` becomes linear, in the observation's unit."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing observation, and a ``delta`` that is missing or has no effect."""
        yield from unknown_name_problems("observation", self.observation, rig)
        if isinstance(self.target, str):
            yield from self._target_problems(self.target, rig)
        if self.shape == "huber" and self.delta is msgspec.UNSET:
            yield "shape", "huber needs delta, the distance at which it becomes linear"
        elif self.shape != "huber" and self.delta is not msgspec.UNSET:
            yield "delta", f"only huber uses it; the shape is {self.shape}"

    def _target_problems(self, target: str, rig: Rig) -> Problems:
        """Report a target that is missing, is in a different unit, or is the observation itself."""
        units = {o.name: o.unit for o in rig.signals}
        if target not in units:
            yield "target", describe_unknown_name(f"the task on rig '{rig.name}'", "target", target, list(units))
        elif target == self.observation:
            yield "target", f"'{target}' would be compared with itself"
        elif not same_unit(units[target], unit := units.get(self.observation, units[target])):
            yield "target", f"'{target}' is in {units[target]!r}, but '{self.observation}' is in {unit!r}"

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the weighted distance."""
        index = observation_index(rig)
        column, cost = (
            index[self.observation],
            build_cost(self.shape, 0.0 if self.delta is msgspec.UNSET else self.delta),
        )
        value, target_column = (0.0, index[self.target]) if isinstance(self.target, str) else (self.target, None)
        is_wrapped = rig.wraps(self.observation) and not self.folded and self.target != 0.0

        def distance(transitions: Transitions) -> Values:
            x = transitions.observation[..., column]
            e = (np.abs(x) if self.folded else x) - (
                value if target_column is None else transitions.observation[..., target_column]
            )
            return np.asarray(-self.weight * cost((e + np.pi) % (2.0 * np.pi) - np.pi if is_wrapped else e))

        return distance


class Effort(RewardTerm, frozen=True, forbid_unknown_fields=True, tag="effort"):
    """Minus ``weight`` times the absolute or squared applied action of an actuator."""

    actuator: str
    """Name of the actuator."""
    weight: NotNegative
    """Weight per unit of the actuator, or of its square."""
    shape: Cost = "absolute"
    """Cost of the action: its absolute value or its square."""

    def problems(self, rig: Rig) -> Problems:
        """Report a missing actuator."""
        yield from unknown_name_problems("actuator", self.actuator, rig)

    def build(self, rig: Rig) -> Callable[[Transitions], Values]:
        """Build the weighted effort."""
        index, cost = actuator_index(rig)[self.actuator], build_cost(self.shape)
        return lambda transitions: np.asarray(-self.weight * cost(transitions.action[..., index]))


if TYPE_CHECKING:
    AnyTerm = RewardTerm
else:
    AnyTerm = Annotated[Any, registered(registry.REWARDS)]
Terms = Mapping[str, RewardTerm] | msgspec.UnsetType
"""Reward terms, keyed by their names in the task."""


class TermFailed(Exception):
    """Exception in a term's code, or an invalid result; the message names the term, the file and the line."""


def observation_index(rig: Rig) -> dict[str, int]:
    """Return the column of each observation."""
    return {o.name: i for i, o in enumerate(rig.signals)}


def actuator_index(rig: Rig) -> dict[str, int]:
    """Return the column of each actuator."""
    return {a.name: j for j, a in enumerate(rig.actuators)}


def unknown_name_problems(kind: str, name: str, rig: Rig) -> Problems:
    """Report a name that is not an ``observation`` or ``actuator`` of a rig."""
    names = [a.name for a in rig.actuators] if kind == "actuator" else [o.name for o in rig.signals]
    if name not in names:
        yield kind, describe_unknown_name(f"rig '{rig.name}'", kind, name, names)


def uses_previous_action(terms: Terms, rig: Rig) -> bool:
    """Return whether a reward depends on the previous action, so that state and action alone do not determine it."""
    return any(_uses_previous_action(term, rig) for term in (terms or {}).values())


def _uses_previous_action(term: RewardTerm, rig: Rig) -> bool:
    try:
        return term.uses_previous_action(rig)
    except Exception:  # error in third-party code, reported when the term is built
        return False


def build_term_reward(terms: Terms, rig: Rig) -> Callable[[Transitions, Values], Values] | None:
    """Build ``add(transitions, rewards)``, which adds the terms to rewards (...,) in the task's order; return None if
    the task has no terms.

    ``add`` raises TermFailed if a term raises an exception or returns a result of the wrong shape.
    """
    if terms is msgspec.UNSET or not terms:
        return None
    term_functions = [(name, _build_term(name, term, rig)) for name, term in terms.items()]

    def add(transitions: Transitions, rewards: Values) -> Values:
        for name, term in term_functions:
            try:
                rewards = rewards + np.broadcast_to(np.asarray(term(transitions), np.float64), rewards.shape)
            except Exception as error:
                raise TermFailed(f"the reward term '{name}' raises {registry.describe_exception(error)}") from error
        return rewards

    return add


def _build_term(name: str, term: RewardTerm, rig: Rig) -> Callable[[Transitions], Values]:
    try:
        return term.build(rig)
    except Exception as error:
        raise TermFailed(f"the reward term '{name}' raises {registry.describe_exception(error)}") from error


class BaseReward(Protocol):
    """Reward of one transition without the named terms."""

    __name__: str

    def __call__(
        self, observation: Sequence[float], action: Sequence[float], terminated: bool | None = None, /
    ) -> float:
        """Return the reward for the ``observation`` (n,) of s' and the applied ``action`` (m,), in SI units;
        ``terminated``: whether s' ends the episode, if already known."""


class ScalarReward(Protocol):
    """Reward of one transition."""

    def __call__(
        self,
        observation: Sequence[float],
        action: Sequence[float],
        terminated: bool | None = None,
        previous: Sequence[float] | None = None,
        /,
    ) -> float:
        """Return the reward; ``previous`` (m,) is the output in force at s, by default the safe output, and the other
        arguments are those of ``BaseReward``."""


class BatchedReward(Protocol):
    """Rewards of many transitions."""

    def __call__(
        self,
        observations: NDArray[np.floating[Any]],
        actions: NDArray[np.floating[Any]],
        previous: NDArray[np.floating[Any]] | None = None,
        /,
    ) -> NDArray[np.float64]:
        """Return the rewards (...) for ``observations`` (..., n), ``actions`` and ``previous`` (..., m), as in
        ``ScalarReward``."""


_MAX_CORNERS: Final = 256


def probe_points(rig: Rig) -> Transitions:
    """Return k test transitions, with observations (k, n) and actions (k, m): the middle of the ranges with the safe
    action, then corners of the ranges with extreme actions, each after a previous action at the opposite end. None of
    them is terminal."""
    signals, actuators = rig.signals, rig.actuators
    middle_values, safe_action = tuple(0.5 * (o.low + o.high) for o in signals), tuple(a.safe for a in actuators)
    low, high = tuple(a.low for a in actuators), tuple(a.high for a in actuators)
    corners = itertools.product(itertools.product(*[(o.low, o.high) for o in signals]), ((low, high), (high, low)))
    points = [
        (middle_values, safe_action, safe_action),
        *((observations, *applied_action) for observations, applied_action in itertools.islice(corners, _MAX_CORNERS)),
    ]
    observations, applied_action, previous = (np.array(column, np.float64) for column in zip(*points, strict=True))
    return Transitions(observations, applied_action, previous, np.zeros(len(observations), np.bool_))
