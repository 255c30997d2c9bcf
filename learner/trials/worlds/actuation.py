"""Path of a batch of actors' actions from policies to plants: shields, delay and backlash."""

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
    """Shields of A actors, with each actor's last commands.

    Raises ValueError for limits with which no shield can be built.
    """

    def __init__(self, config: RunConfig, instruments: Instruments, actors: int) -> None:
        self._instruments: Final = instruments
        self._shields = [Shield(config.limits, config.rig, instruments.period_s) for _ in range(actors)]
        self._safe_command = np.array([a.safe for a in config.rig.actuators])
        self._is_in_fallback: Final = np.zeros(actors, np.bool_)
        self._sent_commands: Final = np.zeros((2, actors, instruments.m))
        """The last two commands, newest first, without actuator noise."""

    def begin(self, is_selected: Flags) -> None:
        """Start an episode of the actors marked by ``is_selected`` (A,)."""
        for i in np.flatnonzero(is_selected).tolist():
            self._shields[i].reset()
        self._is_in_fallback[is_selected] = False
        self._sent_commands[:, is_selected] = self._safe_command

    def guard(
        self, requested_actions: NDArray[np.float64], observations: NDArray[np.float64], is_selected: Flags
    ) -> tuple[Flags, Flags]:
        """Replace actions (A, m), in place, with the shields' actions for normalised observations (A, n).

        Return which shields intervened and which tripped, (A,) each.
        """
        instruments = self._instruments
        intervened, tripped = np.zeros((2, len(is_selected)), np.bool_)
        observations_si, requested_commands = (
            instruments.to_si(observations).tolist(),
            instruments.to_command(requested_actions).tolist(),
        )
        newest_commands, previous_commands = self._sent_commands.tolist()
        for i in np.flatnonzero(is_selected).tolist():
            verdict = self._shields[i].decide(
                observations_si[i], requested_commands[i], newest_commands[i], previous_commands[i]
            )
            is_in_fallback = verdict.rule.falls_back
            intervened[i], tripped[i] = verdict.rule is not Rule.NONE, is_in_fallback and not self._is_in_fallback[i]
            if intervened[i]:
                requested_actions[i] = instruments.to_action(np.array(verdict.action))
            self._is_in_fallback[i] = is_in_fallback
        return intervened, tripped

    def record_sent(self, command: NDArray[np.float64], actors: slice | Flags) -> None:
        """Record the commands in ``command`` (A, m) that these actors have sent."""
        self._sent_commands[:, actors] = np.stack((command, self._sent_commands[0]))[:, actors]


class DelayLine:
    """Delay of A actors' commands to the plant, at most ``horizon`` periods, followed by backlash."""

    def __init__(self, config: RunConfig, instruments: Instruments, actors: int, horizon: int) -> None:
        self._instruments: Final = instruments
        self._actors: Final = np.arange(actors)
        self._safe_command = np.array([a.safe for a in config.rig.actuators])
        delay, period_s = instruments.plant.delay_s, instruments.period_s
        periods = np.zeros(actors) if delay is msgspec.UNSET else np.broadcast_to(delay, actors) / period_s
        periods = np.minimum(periods, horizon)  # a longer delay would exceed the episode
        whole_periods = np.floor(periods + 1e-9)
        self._whole_periods: Final = whole_periods.astype(np.int64)
        """Number of complete periods of delay."""
        self._fractional_delay_s: Final = np.maximum(periods - whole_periods, 0.0) * period_s
        self._has_delay: Final = bool(self._whole_periods.any() or self._fractional_delay_s.any())
        self._commands: Final = np.zeros((int(self._whole_periods.max(initial=0)) + 2, actors, instruments.m))
        """Last commands, newest first."""
        self._backlash: Final = instruments.plant.backlash
        self._backlash_outputs: Final = np.zeros((actors, instruments.m))
        """Outputs of the backlash."""

    def begin(self, is_selected: Flags) -> None:
        """Start an episode of the actors marked by ``is_selected`` (A,), preceded by the safe output."""
        self._commands[:, is_selected] = self._safe_command
        self._backlash_outputs[is_selected] = self._safe_command

    def advance_plants(self, state: States, command: NDArray[np.float64], is_selected: Flags) -> States:
        """Return the states of all actors after one period, in which those marked by ``is_selected`` send ``command``
        (A, m)."""
        instruments = self._instruments
        if not self._has_delay and self._backlash is msgspec.UNSET:
            return instruments.advance(state, command)
        commands = self._commands
        commands[1:, is_selected] = commands[:-1, is_selected]
        commands[0, is_selected] = command[is_selected]
        previous_commands, newest_commands = (commands[self._whole_periods + k, self._actors] for k in (1, 0))
        for held_command, duration_s in (
            (previous_commands, self._fractional_delay_s),
            (newest_commands, instruments.period_s - self._fractional_delay_s),
        ):
            action: States = tuple(held_command.T.copy())
            if self._backlash is not msgspec.UNSET:
                action = apply_backlash(BATCHED, self._backlash, tuple(self._backlash_outputs.T), action)
                self._backlash_outputs[is_selected] = np.stack(action, axis=1)[is_selected]
            state = advance(instruments.plant, state, action, duration_s, instruments.substeps)
        return instruments.plant.constrain(maths_for(state[0]), state)
