"""Critics of SAC and its descendants: their networks, targets and optimisers, and the values made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.sac_settings import SacConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import minimum
from onrig.learner.tape.networks import Mlp, by_inputs
from onrig.learner.tape.optimiser import Adam, follow
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape


class Critics:
    """N critics Q(s, a) and their targets."""

    def __init__(self, state: Layout, config: SacConfig, inputs: int) -> None:
        self._config: Final = config
        self.numbers: Final = range(1, config.critics + 1)
        self.nets, self._targets = (
            [Mlp(state, f"{name}{i}", (inputs, *config.hidden, 1)) for i in self.numbers]
            for name in ("critic", "target_critic")
        )

    def optimisers(self, state: Layout) -> list[Adam]:
        return [Adam(state, net.group, lr=self._config.lr) for net in self.nets]

    def begin(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        """Draw the networks of one trial; the targets begin as copies."""
        for net in self.nets:
            net.draw(row, stream, by_inputs)
        for target, net in zip(self._targets, self.nets, strict=True):
            target.copy(row, net)

    @property
    def draws_subset(self) -> bool:
        return self._config.subset < self._config.critics

    def target(self, pair: Array, excluded: Array | None) -> Array:
        """Smallest target value (B, 1) at pairs (B, n + m); ``excluded`` (1, N): infinite for critics outside of the
        subset, else 0."""
        values = [q(pair) for q in self._targets]
        if excluded is not None:
            values = [value + excluded.columns(i, i + 1) for i, value in enumerate(values)]
        return reduce(minimum, values)

    def errors(self, pair: Array, target: Array) -> list[Array]:
        """TD errors (B, 1) of each critic."""
        return [target - q(pair) for q in self.nets]

    def worth(self, pair: Array) -> Array:
        """Value (B, 1) that the actor maximises."""
        values = [q(pair) for q in self.nets]
        if self._config.actor_value == "minimum":
            return reduce(minimum, values)
        return total(values) * (1.0 / len(values))

    def follow(self, tape: Tape) -> None:
        """Move the targets towards the critics."""
        for target, net in zip(self._targets, self.nets, strict=True):
            follow(tape, target.group, net.group, self._config.tau)


def total(values: Sequence[Array]) -> Array:
    """Sum of arrays of the same shape."""
    return reduce(lambda a, b: a + b, values)


def excluded(numbers: NDArray[np.floating], subset: int) -> NDArray[np.floating]:
    """Exclude all but ``subset`` critics at random, from numbers over [0, 1) (..., N): infinite where excluded, else
    0."""
    rank = numbers.argsort(axis=-1).argsort(axis=-1)
    return np.where(rank < subset, 0.0, np.inf)
