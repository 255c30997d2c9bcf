"""Adversarial campaign against the shield: policies, sampled plants and counts.

The tick evaluates these policies like any others. They know the rig's limits and may query the shield's prediction.
Each kind of plant defines its hostile actions.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onrig.hw.rig import Rig
from onrig.runtime.record import Rule
from onrig.runtime.safety.plant_box import PlantBox, Prediction, PredictionContext
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array, effective_action, rk4
from onrig.sim.plants.plant import Command
from onrig.sim.plants.registry import plant_type_for
from onrig.tools.terminal import align

Proposal = Sequence[float] | None
Law = Callable[[Sequence[float]], Proposal]

_N_HALVINGS: Final = 12
"""Number of bisections in the search for the strongest command that passes."""
_INVALID_ACTIONS: Final[tuple[Callable[[int], Proposal], ...]] = (
    lambda m: (math.nan,) * m,
    lambda m: (math.inf,) * m,
    lambda m: (-math.inf,) * m,
    lambda m: (1.7e308,) * m,
    lambda m: (5e-324,) * m,
    lambda m: (0.0,) * (m + 1),
    lambda m: (),
    lambda m: None,
)


class Adversary:
    """Hostile control law with the interface of a policy session."""

    has_basic_ports: Final = True
    native: Final = False

    def __init__(self, law: Law) -> None:
        self._law = law

    def act(self, question: Sequence[float]) -> tuple[float, ...]:
        """Return the action for an observation."""
        proposal = self._law(question)
        if proposal is None:
            raise RuntimeError("no answer")
        return tuple(proposal)


def laws(box: PlantBox, context: PredictionContext) -> dict[str, Callable[[random.Random], Law]]:
    """Return the factories of all control laws, keyed by name.

    Each factory is called once per episode with a random generator. Raises ValueError for plants without hostile
    actions.
    """
    rig, prediction = context.rig, box.prediction(context)
    push, aim = plant_type_for(box).adversaries(box, rig, context.ranges)
    ranges = [context.ranges[a.name] for a in rig.actuators]
    m = len(ranges)

    def uniform(rng: random.Random) -> Law:
        return lambda observation: [rng.uniform(low, high) for low, high in ranges]

    def bang_bang(rng: random.Random) -> Law:
        action: list[float] = []
        remaining_steps = 0

        def law(observation: Sequence[float]) -> Proposal:
            nonlocal action, remaining_steps
            if remaining_steps == 0:
                action, remaining_steps = [rng.choice(r) for r in ranges], rng.randint(1, 25)
            remaining_steps -= 1
            return action

        return law

    def pumping(rng: random.Random) -> Law:
        return push

    def edge(rng: random.Random) -> Law:
        return lambda observation: strongest_passing_command(prediction, observation, push(observation), rig)

    def broken(rng: random.Random) -> Law:
        return lambda observation: rng.choice(_INVALID_ACTIONS)(m) if rng.random() < 0.2 else push(observation)

    def replay(rng: random.Random) -> Law:
        return aim

    return {
        "uniform": uniform, "bang-bang": bang_bang, "pumping": pumping, "edge of S": edge, "broken": broken,
        "task": replay,
    }  # fmt: skip


def strongest_passing_command(prediction: Prediction, observation: Sequence[float], push: Command, rig: Rig) -> Command:
    """Return the allowed command that is nearest to ``push``, on the line from the safe outputs to ``push``."""
    if not prediction.evaluate(observation, push)[0]:
        return push
    fallback = tuple([a.safe for a in rig.actuators])
    lower, upper = 0.0, 1.0
    for _ in range(_N_HALVINGS):
        fraction = 0.5 * (lower + upper)
        command = tuple([r + fraction * (p - r) for r, p in zip(fallback, push, strict=True)])
        lower, upper = (lower, fraction) if prediction.evaluate(observation, command)[0] else (fraction, upper)
    return tuple([r + lower * (p - r) for r, p in zip(fallback, push, strict=True)])


N_SUBSTEPS: Final = 8
"""Runge-Kutta steps per period; near a magnet, the twin's two steps are too inaccurate to detect a breach."""
State = tuple[Array, ...]


def draw_parameters(nominal: Array, spread: float, n: int, rng: np.random.Generator) -> Array:
    """Draw parameters (p, n), for about half of the plants at vertices of the box and for the others anywhere in it."""
    interior = rng.uniform(-1.0, 1.0, (len(nominal), n))
    corners = rng.choice([-1.0, 1.0], (len(nominal), n))
    return np.asarray(nominal[:, None] * (1.0 + spread * np.where(rng.random(n) < 0.5, corners, interior)))


def draw_dead_bands(max_dead_band: float, n: int, rng: np.random.Generator) -> Array:
    """Draw dead bands (n,) of actuators: zero, the largest, or a value in between."""
    return np.where(rng.random(n) < 0.5, rng.choice([0.0, max_dead_band], n), rng.uniform(0.0, max_dead_band, n))


def advance(
    plant: Plant, state: State, command: tuple[Array, ...], duration_s: Array, substeps: int
) -> tuple[State, Array]:
    """Return the states after each duration (n,) under a held command, and the largest |velocity| (n,) reached."""
    h = duration_s / substeps
    command = effective_action(BATCHED, plant, command)
    peak = np.abs(state[-1])
    for _ in range(substeps):
        state = rk4(BATCHED, plant, state, command, h)
        peak = np.maximum(peak, np.abs(state[-1]))
    return state, peak


@dataclass
class Tally:
    """Counts for one policy; margins are shares of the envelope and negative outside it."""

    episodes: int = 0
    ticks: int = 0
    rules: Counter[Rule] = field(default_factory=Counter)
    """Number of ticks in which each rule acted."""
    breaches: int = 0
    """Number of episodes in which the velocity left the envelope."""
    worst_margin: float = 1.0

    def add(self, margin: float) -> None:
        """Add an episode by its worst margin."""
        self.episodes += 1
        self.breaches += margin < 0
        self.worst_margin = min(self.worst_margin, margin)


Campaign = dict[str, Tally]


def table(campaign: Campaign) -> str:
    """Return a table of episodes, ticks, breaches, worst margin and each rule's share, per policy and in total."""
    rules = [r for r in Rule if r is not Rule.NONE and any(t.rules[r] for t in campaign.values())]
    heads = ["policy", "episodes", "ticks", "breaches", "worst margin", *[r.name.lower() for r in rules]]
    total = Tally()
    for t in campaign.values():
        total.episodes += t.episodes
        total.ticks += t.ticks
        total.breaches += t.breaches
        total.worst_margin = min(total.worst_margin, t.worst_margin)
        total.rules.update(t.rules)
    rows = [heads]
    for name, t in [*campaign.items(), ("all", total)]:
        percentages = [f"{t.rules[r] / max(t.ticks, 1):.2%}" for r in rules]
        rows.append([name, str(t.episodes), str(t.ticks), str(t.breaches), f"{t.worst_margin:.2%}", *percentages])
    return align(rows)
