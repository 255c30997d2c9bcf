"""Symmetric sampling: a fixed share of each minibatch comes from experiences of an earlier run
(RLPD, Ball et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Sampler, SamplerContext, State, sampler_of, sub_state
from onrig.runtime.memory.keepers.keeper import Signal


class _SlotRange(NamedTuple):
    """Range of slots with a sampler that draws only from them."""

    name: str
    sampler: Sampler
    first: int
    end: int

    def mask(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (slots >= self.first) & (slots < self.end)


class Prior(Sampler):
    """Sampler that draws from two parts of the memory, each with a sampler of its own: prior experiences, then this
    run's.

    Importance weights are computed within each part.  While a part holds less than its share, the other part fills up
    the minibatch.
    """

    def __init__(self, prior_sampler: Sampler, run_sampler: Sampler, context: SamplerContext, fraction: float) -> None:
        """``fraction``: share of prior experiences in each minibatch, rounded to a whole number of experiences."""
        self._parts: Final = (
            _SlotRange("prior", prior_sampler, 0, context.reserved),
            _SlotRange("own", run_sampler, context.reserved, context.capacity),
        )
        self._prior_fraction: Final = fraction
        self._n_stored = [0, 0]

    @classmethod
    def build(cls, context: SamplerContext, stream: np.random.Generator, *, weighted: bool) -> Sampler:
        """Build the sampler, or only the inner one if there are no prior experiences."""
        if not context.reserved or context.argument is None:
            return sampler_of(context.inner_sampling, stream, context)
        fraction, streams, n = context.argument, stream.spawn(2), context.reserved
        batch = round(fraction * context.batch)
        # The parts have no view, because their slots are not those of the memory.
        prior_context = context._replace(capacity=n, batch=batch, steps=n, write_probability=1.0, view=None, reserved=0)
        run_context = context._replace(
            capacity=context.capacity - n, batch=context.batch - batch, view=None, reserved=0
        )
        prior_sampler, run_sampler = (
            sampler_of(context.inner_sampling, s, part_context)
            for s, part_context in zip(streams, (prior_context, run_context), strict=True)
        )
        return cls(prior_sampler, run_sampler, context, fraction)

    @property
    def required_signals(self) -> frozenset[Signal]:
        return self._parts[1].sampler.required_signals

    def begin_episode(self, episode: int) -> None:
        for part in self._parts:
            part.sampler.begin_episode(episode)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        for i, part in enumerate(self._parts):
            part_slots = slots[part.mask(slots)] - part.first
            if len(part_slots):
                part.sampler.on_write(part_slots)
                self._n_stored[i] = max(self._n_stored[i], int(part_slots.max()) + 1)

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        for part in self._parts:
            mask = part.mask(slots)
            if mask.any():
                part_signals = (None if field is None else field[mask] for field in signals)
                part.sampler.on_update(slots[mask] - part.first, Signals(*part_signals))  # type: ignore[arg-type]

    def on_episode_end(self, episode_return: float) -> None:
        for part in self._parts:
            part.sampler.on_episode_end(episode_return)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` minibatches, (updates, batch), each with its prior experiences first.

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        n_prior, n_run = self._n_stored
        n = max(batch - n_run, min(round(self._prior_fraction * batch), n_prior))
        draws = [
            (part.first, part.sampler.draw(size, updates))
            for part, size in zip(self._parts, (n, batch - n), strict=True)
            if size
        ]
        weights = [draw.weights for _, draw in draws if draw.weights is not None]
        slots = np.concatenate([first + draw.slots for first, draw in draws], axis=1)
        return Draw(slots, np.concatenate(weights, axis=1) if weights else None)

    def state(self) -> State:
        state: State = {"stored": np.array(self._n_stored)}
        for part in self._parts:
            state |= {f"{part.name}/{name}": value for name, value in part.sampler.state().items()}
        return state

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``; the next draws are then the same."""
        for part in self._parts:
            part.sampler.restore(sub_state(state, f"{part.name}/"))
        self._n_stored = state["stored"].tolist()

    def learned_state(self) -> State:
        return {
            f"{part.name}/{name}": value for part in self._parts for name, value in part.sampler.learned_state().items()
        }
