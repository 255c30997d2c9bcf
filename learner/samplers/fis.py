"""Full importance sampling: weights from the number of replays of an experience (de Bruin et al. 2018, §7.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.samplers import Draw, Sampler, State
from onrig.learner.samplers.importance import LinearSchedule
from onrig.runtime.memory.keepers.keeper import Signal


def replay_tail(n: int, p: float) -> NDArray[np.float64]:
    """Tabulate T(K) = Pr(X >= K), X ~ Binomial(n, p), for K = 0, 1, ... until negligible; at least 2 entries.

    This follows the paper's text; its equation has Pr(X > K) (docs/methods.md, "Replay tail").
    """
    mean = n * p
    n_entries = min(n, math.ceil(mean + 12.0 * math.sqrt(mean) + 40.0)) + 1
    k = np.arange(n_entries, dtype=np.float64)
    mass = np.zeros(n_entries + 1)
    if p >= 1.0:
        mass[-2] = 1.0
    else:
        steps = np.log((n - k[:-1]) / (k[:-1] + 1.0)) + math.log(p) - math.log1p(-p)
        mass[:-1] = np.exp(n * math.log1p(-p) + np.concatenate(([0.0], np.cumsum(steps))))
    # Summed from the tail, smallest terms first, for accuracy.
    tail: NDArray[np.float64] = np.cumsum(mass[::-1])[::-1]
    return tail


def fis_weights(n: int, p: float, beta: float) -> NDArray[np.float64]:
    """Tabulate w(K) = (T(K) / (sum over j = 1 ... ceil(np) of T(j) / (np)))^beta for K = 0, 1, ...; w(0) is unused.

    In the first updates of a run np is below 1 and so is every weight, as in the formula.
    """
    tail = replay_tail(n, p)
    # np should be exactly 8; the product may differ by a rounding error.
    expected_replays = math.ceil(n * p - 1e-9)
    total = float(tail[1 : expected_replays + 1].sum())
    weights: NDArray[np.float64] = (tail * (n * p / total)) ** beta
    return weights


@lru_cache(maxsize=16)
def _table(n: int, p: float, beta: float) -> NDArray[np.float32]:
    """Return ``fis_weights`` as float32, cached so that trials in lockstep compute them only once."""
    table = fis_weights(n, p, beta).astype(np.float32)
    table.flags.writeable = False
    return table


class Fis:
    """Wrapper that weights any sampler's draws by each experience's number of replays K, including the current one.

    ``replays`` is the expected number of replays of an experience under FIFO (np in the paper, where it is 8).  The
    lifetime n is the number of updates so far, at most ``capacity * replays / batch``; p = batch / stored.  K restarts
    when a slot is rewritten.
    """

    def __init__(self, sampler: Sampler, capacity: int, *, beta: LinearSchedule, replays: float) -> None:
        self._sampler: Final = sampler
        self._capacity: Final = capacity
        self._beta: Final = beta
        self._replays: Final = replays
        self._counts: Final = np.zeros(capacity, np.int64)
        self._n_stored = 0
        self._updates = 0
        self._episode = 1
        self._table_key: tuple[int, float, float] = (0, 0.0, 0.0)
        self._table: NDArray[np.float32] = np.zeros(0, np.float32)

    @property
    def required_signals(self) -> frozenset[Signal]:
        return self._sampler.required_signals

    def begin_episode(self, episode: int) -> None:
        self._episode = episode
        self._sampler.begin_episode(episode)

    def on_write(self, slots: NDArray[np.int64]) -> None:
        """Reset the replay counts of rewritten slots."""
        if len(slots):
            self._counts[slots] = 0
            self._n_stored = max(self._n_stored, int(slots.max()) + 1)
        self._sampler.on_write(slots)

    def on_update(self, slots: NDArray[np.int64], signals: Signals) -> None:
        self._sampler.on_update(slots, signals)

    def on_episode_end(self, episode_return: float) -> None:
        self._sampler.on_episode_end(episode_return)

    def draw(self, batch: int, updates: int = 1) -> Draw:
        """Draw ``updates`` weighted minibatches, (updates, batch).

        Raises ValueError while fewer than ``batch`` experiences are stored.
        """
        slots = self._sampler.draw(batch, updates).slots
        weights = np.empty(slots.shape, np.float32)
        for row, row_weights in zip(slots, weights, strict=True):
            self._updates += 1
            counts = self._counts.take(row)
            counts += 1
            self._counts[row] = counts
            self._weights_for(batch).take(counts, out=row_weights, mode="clip")
        return Draw(slots, weights)

    def _weights_for(self, batch: int) -> NDArray[np.float32]:
        lifetime = min(self._updates, max(1, round(self._capacity * self._replays / batch)))
        key = (lifetime, batch / self._n_stored, self._beta.value_at(self._episode))
        if key != self._table_key:
            self._table_key = key
            self._table = _table(*key)
        return self._table

    def state(self) -> State:
        fis_state: State = {
            "counts": self._counts.copy(),
            "stored": np.array(self._n_stored, np.int64),
            "updates": np.array(self._updates, np.int64),
            "episode": np.array(self._episode, np.int64),
        }
        return fis_state | {f"within/{name}": value for name, value in self._sampler.state().items()}

    def learned_state(self) -> State:
        return {f"within/{name}": value for name, value in self._sampler.learned_state().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``; the next draws are then the same.

        Raises ValueError if the capacity differs.
        """
        counts = state["counts"]
        if counts.shape != self._counts.shape:
            raise ValueError(f"counts of {counts.shape[0]} slots, expected {self._capacity}")
        self._sampler.restore({k.removeprefix("within/"): v for k, v in state.items() if k.startswith("within/")})
        self._counts[:] = counts
        self._n_stored, self._updates = int(state["stored"]), int(state["updates"])
        self._episode = int(state["episode"])
