"""TDE and Expl: the least useful experience is the likeliest to make room, by its rank (000 §7.1.2, (7))."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.replay.keepers.keeper import Arrays, check_state
from onrig.runtime.replay.layout import Slots
from onrig.runtime.replay.order.rank_law import RankLaw
from onrig.runtime.replay.order.ranked import INFINITE, RankedSlots, float_bits
from onrig.runtime.replay.order.uniforms import Uniforms


class _Ranked:
    """Victim by P ~ rank^-alpha, rank 1 = smallest key, ties by insertion order; the new experience is always written.

    The rank is drawn from the exact law (:class:`RankLaw`), not from bins of equal probability as in the author's code.
    """

    kind: str
    cyclic: Final = False

    def __init__(self, capacity: int, alpha: float, rng: np.random.Generator) -> None:
        self.capacity: Final = capacity
        self.refused: Final = 0
        self._law: Final = RankLaw(capacity, alpha)
        self._uniforms: Final = Uniforms(rng)
        self._uniform: Final = self._uniforms.next
        self._order: Final = RankedSlots(capacity)
        self._filled = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._order.nbytes

    def place(self) -> int:
        """Return the next free slot, or take out a victim once there is none."""
        if self._filled < self.capacity:
            self._filled += 1
            return self._filled - 1
        return self._order.pop(self._law.draw(self._uniform) - 1)

    def replayed(self, slots: Slots) -> None:
        """Nothing to note."""

    def state(self) -> Arrays:
        """Return the order, its keys by slot, and the position in the random stream."""
        return {
            "kind": np.array(self.kind),
            "capacity": np.array(self.capacity),
            "alpha": np.array(self._law.alpha),
            "keys": self._order.keys.copy(),
            "uniforms": self._uniforms.state(),
        }

    def restore(self, state: Arrays) -> None:
        """Take up ``state``."""
        check_state(state, self.kind, self.capacity)
        if float(state["alpha"]) != self._law.alpha:
            raise ValueError(f"state of {self.kind}({state['alpha']}), expected {self.kind}({self._law.alpha})")
        keys = state["keys"].astype(np.uint64)
        filled = int(np.count_nonzero(keys))
        if not keys[:filled].all():
            raise ValueError("state with a free slot below an occupied one")
        self._order.load(keys)
        self._uniforms.restore(state["uniforms"].astype(np.uint64))
        self._filled = filled


class TdError(_Ranked):
    """TDE(alpha): keeps what surprised most when it was last replayed; never replayed counts as +inf (000 §7.1.1)."""

    kind = "TDE"

    def written(self, slot: int, exploration: float) -> None:
        """Note a new experience, the most useful of all until it is replayed."""
        self._order.insert(slot, INFINITE)

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Rank by the latest |TD error|."""
        bits = float_bits(abs_td)
        if len(set(slots.tolist())) < len(slots):
            # The last error of a slot counts.
            slots, last = np.unique(slots[::-1], return_index=True)
            bits = bits[::-1][last]
        self._order.move(slots, bits)


class Exploration(_Ranked):
    """Expl(alpha): keeps what was explored most boldly, as measured when it was collected (000 §7.1.1)."""

    kind = "Expl"

    def __init__(self, capacity: int, alpha: float, rng: np.random.Generator) -> None:
        super().__init__(capacity, alpha, rng)
        value = np.zeros(1, np.float32)
        self._value: Final = value.data.cast("B").cast("f")
        self._bits: Final = value.data.cast("B").cast("I")

    def written(self, slot: int, exploration: float) -> None:
        """Rank by the exploration magnitude; what is no number counts as 0, for nothing speaks in its favour."""
        self._value[0] = abs(exploration)
        bits = self._bits[0]
        self._order.insert(slot, bits if bits <= INFINITE else 0)

    def td_updated(self, slots: Slots, abs_td: NDArray[np.float32]) -> None:
        """Nothing to note."""
