"""The floating-point operations of one trial-update: those of its matrix products, which are nearly all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onrig.learner.networks import NETWORK_SIZES, Layer, actor_layout, critic_layout, padded
from onrig.tools.benchmarks.learner_cases import LearnerCase


class Product(NamedTuple):
    """(rows, inner) times (inner, columns)."""

    rows: int
    inner: int
    columns: int

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


class _Sizes(NamedTuple):
    """One layer as products see it."""

    inputs: int
    """What the layer below hands on: the width of the gradient that goes back to it."""
    rows: int
    """Inputs, actions and bias."""
    columns: int
    actions: int
    """Rows of the actions that enter here."""


def products(case: LearnerCase, *, padding: bool) -> list[Product]:
    """List the products of one update of one trial, as ``learner.ddpg`` does them.

    Both policies and the three passes through the critics (that of the policy's actions only where it differs from the
    other), then the gradients.  Without ``padding`` the sizes are those of the networks, with it those of the blocks.
    """
    n, m = case.shape.n_obs, case.shape.n_act
    size = NETWORK_SIZES[case.network]
    actor = [_sizes(layer, padding) for layer in actor_layout(n, m, size.actor).layers]
    critic = [_sizes(layer, padding) for layer in critic_layout(n, m, size.critic).layers]
    batch = padded(case.config.batch) if padding else case.config.batch
    return [*_actor(actor, batch), *_critic(critic, batch)]


def _sizes(layer: Layer, padding: bool) -> _Sizes:
    if padding:
        return _Sizes(layer.rows, layer.rows, layer.cols, padded(layer.action_rows))
    return _Sizes(layer.inputs, layer.inputs + layer.action_rows + 1, layer.outputs, layer.action_rows)


def _actor(layers: list[_Sizes], batch: int) -> Iterator[Product]:
    for i, layer in enumerate(layers):
        yield from 2 * [Product(batch, layer.rows, layer.columns)]
        yield Product(layer.rows, batch, layer.columns)
        if i > 0:
            yield Product(batch, layer.columns, layer.inputs)


def _critic(layers: list[_Sizes], batch: int) -> Iterator[Product]:
    last = len(layers) - 1
    for i, layer in enumerate(layers):
        # On (s, a) and (s', pi-(s')); the gradient of the parameters.
        yield from 2 * [Product(batch, layer.rows, layer.columns)]
        yield Product(layer.rows, batch, layer.columns)
        if i == 1:  # where the actions enter: forwards to (s, pi(s)), back from it to the action
            yield Product(batch, layer.actions, layer.columns)
            yield Product(batch, layer.columns, layer.actions)
        if 1 < i < last:  # on (s, pi(s)), forwards and back
            yield Product(batch, layer.rows, layer.columns)
            yield Product(batch, layer.columns, layer.inputs)
        if 0 < i < last:
            yield Product(batch, layer.columns, layer.inputs)


def mega_flop(case: LearnerCase, *, padding: bool) -> float:
    """Return the millions of floating-point operations of one trial-update."""
    return sum(product.flop for product in products(case, padding=padding)) / 1e6
