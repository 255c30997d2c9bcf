"""Critics of SAC and its descendants: their networks, targets and optimisers, and the values made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.sac_settings import SacConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import Dropout, minimum, stack
from onrig.learner.tape.networks import BatchNormalised, LayerNormalised, Mlp, by_inputs
from onrig.learner.tape.operations import SEEDS
from onrig.learner.tape.optimiser import Adam, follow
from onrig.learner.tape.spaces import Group, Layout
from onrig.learner.tape.trace import Tape


class Chance(NamedTuple):
    """What is random about the critics in an update."""

    dropout: Dropout | None
    excluded: Array | None
    """(1, N): infinite for critics outside of the target's subset, else 0; None if there are none."""


class Critics:
    """N critics Q(s, a) and their targets."""

    def __init__(self, state: Layout, config: SacConfig, inputs: int) -> None:
        self._config: Final = config
        self._options: Final = config.settled
        of = self._options
        self.numbers: Final = range(1, of.critics + 1)
        averaged = of.targets == "averaged"
        self._nets = [self._net(state, f"critic{i}", inputs) for i in self.numbers]
        self._targets = [self._net(state, f"target_critic{i}", inputs) for i in self.numbers if averaged]
        self._subset: Final = of.subset if of.subset < of.critics else 0
        """Critics drawn for the target; 0 for all of them."""

    def _net(self, state: Layout, name: str, inputs: int) -> Mlp:
        sizes, kind = (inputs, *self._config.hidden, 1), self._options.normalization
        if kind == "batch":
            return BatchNormalised(state, name, sizes)
        return LayerNormalised(state, name, sizes, normalised=kind == "layer")

    def optimisers(self, state: Layout) -> list[Adam]:
        """Add an optimiser for each critic."""
        return [adam(state, net.group, self._config) for net in self._nets]

    def begin(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        """Draw the networks of one trial; the targets begin as copies."""
        for net in self._nets:
            net.draw(row, stream, by_inputs)
        for target, net in zip(self._targets, self._nets, strict=False):
            target.copy(row, net)

    @property
    def fields(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of what ``chances`` returns for the record of an update."""
        excluded = {"excluded": (1, self._options.critics)} if self._subset else {}
        return excluded | ({"dropout": (1, 1)} if self._options.dropout else {})

    @property
    def uniforms(self) -> int:
        """Random numbers of an update."""
        return sum(cols for _, cols in self.fields.values())

    def chances(self, numbers: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """Derive the fields of updates from numbers over [0, 1) (..., uniforms).

        Dropout has a seed in place of masks, of which a record would hold ten times as much as of experiences.
        """
        found = {}
        if self._subset:
            found["excluded"] = excluded(numbers[..., : self._options.critics], self._subset)
        if self._options.dropout:
            found["dropout"] = np.floor(numbers[..., -1:] * SEEDS)
        return found

    def chance(self, fields: Mapping[str, Array]) -> Chance:
        """Return the chance of an update from its record."""
        dropout = Dropout(self._options.dropout, fields["dropout"]) if self._options.dropout else None
        return Chance(dropout, fields.get("excluded"))

    def values(self, pair: Array, next_pair: Array, chance: Chance) -> tuple[list[Array], Array]:
        """Values (B, 1) of each critic at pairs (B, n + m), and the smallest target value at the next ones."""
        if self._targets:
            following = [q.train(next_pair, chance.dropout) for q in self._targets]
            values = [q.train(pair, chance.dropout) for q in self._nets]
        else:  # in one batch, whose statistics then are those of both
            B, both = pair.shape[0], stack(pair, next_pair)
            joint = [q.train(both, chance.dropout) for q in self._nets]
            values = [value.rows(0, B) for value in joint]
            following = [value.row_view(B, 2 * B) for value in joint]
        if chance.excluded is not None:
            following = [value + chance.excluded.columns(i, i + 1) for i, value in enumerate(following)]
        return values, reduce(minimum, following)

    def worth(self, pair: Array, chance: Chance) -> Array:
        """Value (B, 1) that the actor maximises."""
        by_batch = self._options.normalization == "batch"
        values = [q(pair) if by_batch else q.train(pair, chance.dropout) for q in self._nets]
        if self._options.actor_value == "minimum":
            return reduce(minimum, values)
        return total(values) * (1.0 / len(values))

    def follow(self, tape: Tape) -> None:
        """Move the targets towards the critics."""
        for target, net in zip(self._targets, self._nets, strict=False):
            follow(tape, target.group, net.group, self._config.tau)


def adam(state: Layout, group: Group, config: SacConfig) -> Adam:
    """Add the optimiser of a group."""
    return Adam(state, group, lr=config.lr, betas=(config.settled.beta1, 0.999))


def total(values: Sequence[Array]) -> Array:
    """Sum of arrays of the same shape."""
    return reduce(lambda a, b: a + b, values)


def excluded(numbers: NDArray[np.floating], subset: int) -> NDArray[np.floating]:
    """Exclude all but ``subset`` of N critics, by numbers over [0, 1) (..., N): infinite where excluded, else 0."""
    rank = numbers.argsort(axis=-1).argsort(axis=-1)
    return np.where(rank < subset, 0.0, np.inf)
