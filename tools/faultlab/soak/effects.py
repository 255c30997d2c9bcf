"""Faults that last: several may hold at once on one line or network, and each ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onrig.tools.faultlab.network import LossyLink
from onrig.tools.faultlab.soak.plan import Kind

Say = Callable[[str], object]
BASE_DELAY_S: Final = 0.002
_MODES: Final = (
    (Kind.CABLE_PULLED, "cut"),
    (Kind.CABLE_LOOSE, "cut"),
    (Kind.LINE_FROZEN, "freeze"),
    (Kind.FROZEN_FRAMES, "freeze"),
    (Kind.CORRUPTED_BURST, "garble"),
)
"""The worst first."""


class LineEffects:
    """What the line does: the worst of what holds."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._held: list[Kind] = []

    def hold(self, kind: Kind, amount: float = 0.0) -> None:
        """Let a fault begin."""
        self._held.append(kind)
        self._apply()

    def release(self, kind: Kind, amount: float = 0.0) -> None:
        """Let it end."""
        self._held.remove(kind)
        self._apply()

    def lose(self, frames: int) -> None:
        """Lose the next state frames."""
        self._say(f"lose {frames}")

    def _apply(self) -> None:
        self._say(next((mode for kind, mode in _MODES if kind in self._held), "carry"))


class NetworkEffects:
    """What the network does: cut before silent, delays added up, the greatest loss."""

    def __init__(self, link: LossyLink) -> None:
        self._link = link
        self._held: list[tuple[Kind, float]] = []

    def hold(self, kind: Kind, amount: float = 0.0) -> None:
        """Let a fault begin; ``amount`` is a delay in s or a share of the pieces that stall."""
        self._held.append((kind, amount))
        self._apply()

    def release(self, kind: Kind, amount: float = 0.0) -> None:
        """Let it end."""
        self._held.remove((kind, amount))
        self._apply()

    def _apply(self) -> None:
        kinds = {kind for kind, _ in self._held}
        delays = [amount for kind, amount in self._held if kind is Kind.NETWORK_DELAY]
        losses = [amount for kind, amount in self._held if kind is Kind.NETWORK_LOSS]
        self._link.behave(delay_s=BASE_DELAY_S + sum(delays), loss=max(losses, default=0.0))
        self._link.mend()
        if Kind.NETWORK_SILENT in kinds:
            self._link.freeze()
        if Kind.NETWORK_CUT in kinds:
            self._link.cut()
