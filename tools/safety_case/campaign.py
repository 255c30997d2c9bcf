"""A campaign of adversarial episodes: the plants drawn for it, how they move, and what it came to per policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onrig.runtime.record import Rule
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array, rk4

SUBSTEPS: Final = 8
"""Runge-Kutta steps per period; near a magnet the twin's two are not enough to tell a breach from an error."""
State = tuple[Array, ...]


def draw(nominal: Array, spread: float, n: int, rng: np.random.Generator) -> Array:
    """Parameters (p, n): half of them vertices of the box, half anywhere in it."""
    inside = rng.uniform(-1.0, 1.0, (len(nominal), n))
    corners = rng.choice([-1.0, 1.0], (len(nominal), n))
    return np.asarray(nominal[:, None] * (1.0 + spread * np.where(rng.random(n) < 0.5, corners, inside)))


def advance(
    plant: Plant, state: State, command: tuple[Array, ...], duration_s: Array, substeps: int
) -> tuple[State, Array]:
    """State after each one's duration (n,) under a held command, and the largest |velocity| (n,) on the way."""
    h = duration_s / substeps
    peak = np.abs(state[-1])
    for _ in range(substeps):
        state = rk4(BATCHED, plant, state, command, h)
        peak = np.maximum(peak, np.abs(state[-1]))
    return state, peak


@dataclass
class Tally:
    """Counts of one policy; margins are shares of the envelope, negative beyond it."""

    episodes: int = 0
    ticks: int = 0
    rules: Counter[Rule] = field(default_factory=Counter)
    """Ticks in which each rule acted."""
    breaches: int = 0
    """Episodes in which the velocity left its envelope."""
    worst_margin: float = 1.0

    def add(self, margin: float) -> None:
        """Close an episode whose worst margin this was."""
        self.episodes += 1
        self.breaches += margin < 0
        self.worst_margin = min(self.worst_margin, margin)


Campaign = dict[str, Tally]


def table(campaign: Campaign) -> str:
    """Per policy and in all: episodes, ticks, breaches, worst margin, and how often each rule acted."""
    shown = [r for r in Rule if r is not Rule.NONE and any(t.rules[r] for t in campaign.values())]
    heads = ["policy", "episodes", "ticks", "breaches", "worst margin", *[r.name.lower() for r in shown]]
    total = Tally()
    for t in campaign.values():
        total.episodes += t.episodes
        total.ticks += t.ticks
        total.breaches += t.breaches
        total.worst_margin = min(total.worst_margin, t.worst_margin)
        total.rules.update(t.rules)
    rows = [heads]
    for name, t in [*campaign.items(), ("all", total)]:
        shares = [f"{t.rules[r] / max(t.ticks, 1):.2%}" for r in shown]
        rows.append([name, str(t.episodes), str(t.ticks), str(t.breaches), f"{t.worst_margin:.2%}", *shares])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *[c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]])
        for row in rows
    )
