"""Critics of SAC and its descendants: networks, targets, optimisers, and the values derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.sac_settings import SacConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import Dropout, minimum, stack
from onrig.learner.tape.networks import BatchNormalised, ImageMlp, LayerNormalised, Mlp, fan_in_uniform
from onrig.learner.tape.operations import N_SEEDS
from onrig.learner.tape.optimiser import Adam, polyak_average
from onrig.learner.tape.spaces import Group, Layout
from onrig.learner.tape.trace import Tape


class CriticRandomness(NamedTuple):
    """Random choices of an update: dropout, and the target's subset of critics."""

    dropout: Dropout | None
    exclusion: Array | None
    """(1, N): infinite for critics outside the target's subset, else 0; None without a subset."""


class Critics:
    """N critics Q(s, a) and their targets."""

    def __init__(self, state: Layout, config: SacConfig, inputs: int) -> None:
        self._config: Final = config
        self._options: Final = config.resolved_options
        options = self._options
        self.indices: Final = range(1, options.critics + 1)
        has_targets = options.targets == "averaged"
        self._nets = [self._net(state, f"critic{i}", inputs) for i in self.indices]
        self._targets = [self._net(state, f"target_critic{i}", inputs) for i in self.indices if has_targets]
        self._n_drawn_targets: Final = options.subset if options.subset < options.critics else 0
        """Number of critics drawn for the target; 0 for all."""

    def _net(self, state: Layout, name: str, inputs: int) -> Mlp:
        sizes, kind = (inputs, *self._config.hidden, 1), self._options.normalization
        if self._config.image is not None:
            return ImageMlp(state, name, sizes, self._config.image)
        if kind == "batch":
            return BatchNormalised(state, name, sizes)
        return LayerNormalised(state, name, sizes, is_normalised=kind == "layer")

    def optimisers(self, state: Layout) -> list[Adam]:
        """Add an optimiser for each critic."""
        return [adam(state, net.group, self._config) for net in self._nets]

    def draw(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        """Draw one trial's critics; their targets start as copies."""
        for net in self._nets:
            net.draw(row, stream, fan_in_uniform)
        for target, net in zip(self._targets, self._nets, strict=False):
            target.copy(row, net)

    @property
    def fields(self) -> dict[str, tuple[int, int]]:
        """Shapes of the fields that ``draw_fields`` returns for an update's record."""
        exclusion = {"excluded": (1, self._options.critics)} if self._n_drawn_targets else {}
        return exclusion | ({"dropout": (1, 1)} if self._options.dropout else {})

    @property
    def n_uniforms(self) -> int:
        """Number of uniform random numbers per update."""
        return sum(cols for _, cols in self.fields.values())

    def draw_fields(self, numbers: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """Derive the fields of updates from uniform numbers in [0, 1) (..., n_uniforms).

        Dropout is recorded as a seed, because masks would take ten times as much space in a record as the experiences.
        """
        fields = {}
        if self._n_drawn_targets:
            fields["excluded"] = exclusion_offsets(numbers[..., : self._options.critics], self._n_drawn_targets)
        if self._options.dropout:
            fields["dropout"] = np.floor(numbers[..., -1:] * N_SEEDS)
        return fields

    def read_randomness(self, fields: Mapping[str, Array]) -> CriticRandomness:
        """Read the random choices of an update from its record."""
        dropout = Dropout(self._options.dropout, fields["dropout"]) if self._options.dropout else None
        return CriticRandomness(dropout, fields.get("excluded"))

    def values(self, pair: Array, next_pair: Array, randomness: CriticRandomness) -> tuple[list[Array], Array]:
        """Return each critic's values (B, 1) at pairs (B, n + m), and the smallest target value at the next pairs."""
        if self._targets:
            next_values = [q.train(next_pair, randomness.dropout) for q in self._targets]
            values = [q.train(pair, randomness.dropout) for q in self._nets]
        else:  # one batch, so that batch normalisation uses the statistics of both
            B, pairs = pair.shape[0], stack(pair, next_pair)
            joint_values = [q.train(pairs, randomness.dropout) for q in self._nets]
            values = [value.rows(0, B) for value in joint_values]
            next_values = [value.row_view(B, 2 * B) for value in joint_values]
        if randomness.exclusion is not None:
            next_values = [value + randomness.exclusion.columns(i, i + 1) for i, value in enumerate(next_values)]
        return values, reduce(minimum, next_values)

    def actor_value(self, pair: Array, randomness: CriticRandomness) -> Array:
        """Return the value (B, 1) that the actor maximises."""
        normalises_batch = self._options.normalization == "batch"
        values = [q(pair) if normalises_batch else q.train(pair, randomness.dropout) for q in self._nets]
        if self._options.actor_value == "minimum":
            return reduce(minimum, values)
        return total(values) * (1.0 / len(values))

    def average_targets(self, tape: Tape) -> None:
        """Polyak-average the targets."""
        for target, net in zip(self._targets, self._nets, strict=False):
            polyak_average(tape, target.group, net.group, self._config.tau)


def adam(state: Layout, group: Group, config: SacConfig) -> Adam:
    """Add an optimiser for a group of parameters."""
    return Adam(state, group, lr=config.lr, betas=(config.resolved_options.beta1, 0.999))


def total(values: Sequence[Array]) -> Array:
    """Return the sum of arrays of the same shape."""
    return reduce(lambda a, b: a + b, values)


def exclusion_offsets(numbers: NDArray[np.floating], subset: int) -> NDArray[np.floating]:
    """Return offsets, infinite or 0, that exclude all but ``subset`` of N critics, chosen by uniform numbers in [0, 1)
    (..., N)."""
    rank = numbers.argsort(axis=-1).argsort(axis=-1)
    return np.where(rank < subset, 0.0, np.inf)
