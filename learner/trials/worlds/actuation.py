"""From a policy's action to the plant, for a batch of actors: shields, delay and backlash."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.instruments import Instruments
from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.shield import Shield
from onrig.sim.plants.integrate import BATCHED, advance, apply_backlash, maths_for

States = tuple[NDArray[np.float64], ...]
Flags = NDArray[np.bool_]


class Shields:
    """A shield for each of A actors, each with the commands that it has let pass.

    Raises ValueError for limits under which no shield can be built.
    """

    def __init__(self, config: RunConfig, instruments: Instruments, actors: int) -> None:
        self._instruments: Final = instruments
        self._shields = [Shield(config.limits, config.rig, instruments.period_s) for _ in range(actors)]
        self._safe = np.array([a.safe for a in config.rig.actuators])
        self._in_fallback: Final = np.zeros(actors, np.bool_)
        self._sent: Final = np.zeros((2, actors, instruments.m))
        """The last two commands sent, the newest first, before the actuators' noise."""

    def begin(self, chosen: Flags) -> None:
        """Start an episode of the ``chosen`` actors (A,)."""
        for i in np.flatnonzero(chosen).tolist():
            self._shields[i].reset()
        self._in_fallback[chosen] = False
        self._sent[:, chosen] = self._safe

    def guard(self, requested: NDArray[np.float64], seen: NDArray[np.float64], chosen: Flags) -> tuple[Flags, Flags]:
        """Replace actions (A, m) by the shields' at normalised observations ``seen`` (A, n).

        Returns which intervened, and tripped, (A,) each.
        """
        instruments = self._instruments
        intervened, tripped = np.zeros((2, len(chosen)), np.bool_)
        observed, asked = instruments.in_si(seen).tolist(), instruments.to_command(requested).tolist()
        last, before = self._sent.tolist()
        for i in np.flatnonzero(chosen).tolist():
            verdict = self._shields[i].decide(observed[i], asked[i], last[i], before[i])
            falls = verdict.rule.falls_back
            intervened[i], tripped[i] = verdict.rule is not Rule.NONE, falls and not self._in_fallback[i]
            if intervened[i]:
                requested[i] = instruments.to_action(np.array(verdict.action))
            self._in_fallback[i] = falls
        return intervened, tripped

    def sent(self, command: NDArray[np.float64], at: slice | Flags) -> None:
        """Note the commands (A, m) that the actors ``at`` have sent."""
        self._sent[:, at] = np.stack((command, self._sent[0]))[:, at]


class DelayLine:
    """Commands of A actors on their way to the plant: a delay, of ``horizon`` periods at most, and then backlash."""

    def __init__(self, config: RunConfig, instruments: Instruments, actors: int, horizon: int) -> None:
        self._instruments: Final = instruments
        self._at: Final = np.arange(actors)
        self._safe = np.array([a.safe for a in config.rig.actuators])
        delay, period_s = instruments.plant.delay_s, instruments.period_s
        periods = np.zeros(actors) if delay is msgspec.UNSET else np.broadcast_to(delay, actors) / period_s
        periods = np.minimum(periods, horizon)  # what takes longer reaches no plant in its episode
        before = np.floor(periods + 1e-9)
        self._whole: Final = before.astype(np.int64)
        """Whole periods of delay."""
        self._rest_s: Final = np.maximum(periods - before, 0.0) * period_s
        self._delays: Final = bool(self._whole.any() or self._rest_s.any())
        self._commands: Final = np.zeros((int(self._whole.max(initial=0)) + 2, actors, instruments.m))
        """Last commands, the newest first."""
        self._backlash: Final = instruments.plant.backlash
        self._engaged: Final = np.zeros((actors, instruments.m))
        """What is behind the backlash."""

    def begin(self, chosen: Flags) -> None:
        """Start an episode of the ``chosen`` actors (A,), in which the safe output was in force before."""
        self._commands[:, chosen] = self._safe
        self._engaged[chosen] = self._safe

    def moved(self, state: States, command: NDArray[np.float64], chosen: Flags) -> States:
        """States a period later, of all actors; the ``chosen`` ones send ``command`` (A, m)."""
        instruments = self._instruments
        if not self._delays and self._backlash is msgspec.UNSET:
            return instruments.moved(state, command)
        commands = self._commands
        commands[1:, chosen] = commands[:-1, chosen]
        commands[0, chosen] = command[chosen]
        before, after = (commands[self._whole + k, self._at] for k in (1, 0))
        for held, duration_s in ((before, self._rest_s), (after, instruments.period_s - self._rest_s)):
            action: States = tuple(held.T.copy())
            if self._backlash is not msgspec.UNSET:
                action = apply_backlash(BATCHED, self._backlash, tuple(self._engaged.T), action)
                self._engaged[chosen] = np.stack(action, axis=1)[chosen]
            state = advance(instruments.plant, state, action, duration_s, instruments.substeps)
        return instruments.plant.constrain(maths_for(state[0]), state)
