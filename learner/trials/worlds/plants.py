"""Our plants as worlds, optionally varied, with delay, termination and the shield.

Noise is drawn per episode.  Where the shield acts, the experience holds its action, as on a rig.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.settings import settings_type
from onrig.learner.trials.instruments import Instruments
from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, Stepped, Values, actors_of
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.random_streams import Role
from onrig.runtime.record import Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.shield import Shield
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import advance, maths_for
from onrig.sim.twin.options import TwinOptions

States = tuple[NDArray[np.float64], ...]


class PlantOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a plant's world."""

    set: dict[str, object] = {}
    """Dotted paths of the run's configuration, with their values."""
    shield: bool = False
    """Whether the run's limits hold."""
    end_outside: bool = False
    """Whether an episode terminates outside of the envelope of the limits, too."""
    counts: bool = False
    """Whether sensors and actuators have the rig's resolution."""


def run_of(task: str, options: PlantOptions) -> RunConfig:
    """Load the run that a world is made of, by name or path; raises NoSuchTask."""
    assignments = [f"{path}={msgspec.json.encode(value).decode()}" for path, value in options.set.items()]
    try:
        config = load_run(task, assignments, lambda: {("device", "twin"): TwinOptions, ("learner",): settings_type()})
    except ConfigError as error:
        raise NoSuchTask("; ".join(str(problem) for problem in error.problems)) from None
    if config.device.twin is None:
        raise NoSuchTask(f"'{task}' has no twin: give device.twin")
    if config.rig.previous_command:
        raise NoSuchTask(f"worlds do not observe the previous command: rig.previous_command of '{task}' must be false")
    return config


class PlantWorld:
    """A plant for every actor of every trial, all advanced as one batch and computed element by element."""

    def __init__(
        self,
        config: RunConfig,
        seeds: Sequence[int],
        roles: Sequence[Role],
        *,
        horizon: int | None = None,
        shield: bool = False,
        end_outside: bool = False,
        counts: bool = False,
        plant: Plant | None = None,
        whole: bool = False,
    ) -> None:
        """``plant`` takes the place of the twin's; its parameters may be arrays (S * E,), one for each actor.

        ``whole``: all actors play episodes of fixed length side by side.  Rewards are then views, which are filled when
        the episode has ended, and policies see float64 (those that standardise it give other bits than for the float32
        that a memory stores).  Raises ValueError for limits under which no shield can be built.
        """
        rig = config.rig
        instruments = Instruments(config, plant, counts=counts)
        self._instruments: Final = instruments
        self.spaces: Final = Spaces(instruments.k, instruments.m, None, horizon or instruments.steps)
        self._actors: Final = actors_of(seeds, roles)
        self._shape: Final = (len(seeds), len(roles))
        A = len(self._actors)
        self._at: Final = np.arange(A)
        self._dtype: Final = np.float64 if whole else np.float32
        T = self.spaces.horizon if whole else 0
        self._measured, self._applied = np.zeros((T, A, instruments.n)), np.zeros((T, A, instruments.m))
        """Steps of complete episodes, SI, from which all rewards are computed at once."""
        self._rewards: NDArray[np.float64] = np.zeros((T, A))
        self._nothing: Final = np.zeros(self._shape, np.bool_)
        self._everything: Final = np.ones(self._shape, np.bool_)
        self._shields = [Shield(config.limits, rig, instruments.period_s) for _ in range(A)] if shield else []
        self._in_fallback: Final = np.zeros(A, np.bool_)
        at = {o.name: i for i, o in enumerate(rig.observations)}
        envelope = config.limits.envelope if end_outside else {}
        self._ends = [(at[name], e.low, e.high) for name, e in envelope.items()]
        self._terminates: Final = bool(config.task.terminates or self._ends)
        self._safe = np.array([a.safe for a in rig.actuators])
        self._episodes: Final = np.zeros(A, np.int64)
        self._step: Final = np.zeros(A, np.int64)
        noise_steps = self.spaces.horizon + 1 if instruments.is_noisy else 0
        self._noise: Final = np.zeros((A, noise_steps, instruments.n + instruments.m))
        self._state = instruments.start(A)
        self._seen: Final = np.zeros((instruments.reach + 1, A, instruments.n))
        """Normalised observations, the present ones first."""
        delay = instruments.plant.delay_s
        periods = np.zeros(A) if delay is msgspec.UNSET else np.broadcast_to(delay, A) / instruments.period_s
        periods = np.minimum(periods, self.spaces.horizon)  # what takes longer reaches no plant in its episode
        before = np.floor(periods + 1e-9)
        self._whole: Final = before.astype(np.int64)
        """Whole periods of delay."""
        self._rest_s: Final = np.maximum(periods - before, 0.0) * instruments.period_s
        self._delays: Final = bool(self._whole.any() or self._rest_s.any())
        self._commands: Final = np.zeros((int(self._whole.max(initial=0)) + 2, A, instruments.m))
        """Last commands, the newest first."""
        self._sent: Final = np.zeros((2, A, instruments.m))
        """The last two commands sent, the newest first, before the actuators' noise: the shields' input."""

    @property
    def is_noisy(self) -> bool:
        """Whether sensors or actuators add noise."""
        return self._instruments.is_noisy

    def begin(self, which: Bools) -> Values:
        chosen, instruments = which.reshape(-1), self._instruments
        self._state = _where(chosen, instruments.start(len(chosen)), self._state)
        for i in np.flatnonzero(chosen).tolist():
            actor = self._actors[i]
            if instruments.is_noisy:
                number = actor.episode(int(self._episodes[i])) + 1
                self._noise[i] = instruments.noise(actor.seed, actor.role, number, self.spaces.horizon)
            if self._shields:
                self._shields[i].reset()
                self._in_fallback[i] = False
        self._episodes[chosen] += 1
        self._step[chosen] = 0
        self._rewards = np.zeros_like(self._rewards)
        self._commands[:, chosen] = self._sent[:, chosen] = self._safe
        self._seen[:, chosen] = self._observed(instruments.measured(self._state), self._row())[chosen]
        return self._shown()

    def step(self, action: NDArray[np.floating], which: Bools) -> Stepped:
        instruments, chosen = self._instruments, which.reshape(-1)
        requested = np.minimum(np.maximum(action.reshape(len(chosen), -1), -1.0, dtype=np.float64), 1.0)
        if not math.isfinite(requested.sum()):
            raise ValueError("an action is not finite")
        intervened = tripped = terminated = self._nothing
        everyone = bool(len(self._rewards)) or chosen.all()
        at = slice(None) if everyone else chosen
        if self._shields:
            intervened, tripped = self._guard(requested, chosen)
        requested = instruments.settable(requested)
        noise = self._row()
        command = instruments.to_command(requested)
        if self._shields:
            self._sent[:, at] = np.stack((command, self._sent[0]))[:, at]
        if noise is not None:
            command = instruments.to_command(requested + noise[:, instruments.n :])
        state = self._moved(command, chosen)
        measured = instruments.measured(state)
        reward = self._reward(measured, command)
        if self._terminates:
            over = chosen & (instruments.terminated(measured) | self._outside(measured))
            terminated = over.reshape(self._shape)
        if not everyone:
            state, reward = _where(chosen, state, self._state), np.where(chosen, reward, 0.0)
            measured = instruments.measured(state)
        self._state = state
        self._step[at] += 1
        if instruments.reach:
            self._seen[1:, at] = self._seen[:-1, at]
        seen = self._observed(measured, self._row())
        self._seen[0, at] = seen if everyone else seen[at]
        added = None if noise is None else noise.reshape(*self._shape, -1)
        paid, applied = reward.reshape(self._shape), requested.reshape(*self._shape, -1)
        late = self._late(which, terminated)
        return Stepped(self._shown(), paid, terminated, late, applied, intervened, tripped, added)

    def close(self) -> None:
        """Nothing to release."""

    def _late(self, which: Bools, terminated: Bools) -> Bools:
        """Which of these episodes are out of time, (S, E)."""
        if len(self._rewards):
            return self._everything if self._step[0] == self.spaces.horizon else self._nothing
        return which & (self._step >= self.spaces.horizon).reshape(self._shape) & ~terminated

    def _guard(self, requested: NDArray[np.float64], chosen: NDArray[np.bool_]) -> tuple[Bools, Bools]:
        """Replace actions (A, m) by the shields' actions; returns which intervened, and tripped, (S, E) each."""
        instruments = self._instruments
        intervened, tripped = np.zeros((2, len(chosen)), np.bool_)
        seen, asked = instruments.in_si(self._seen[0]).tolist(), instruments.to_command(requested).tolist()
        last, before = self._sent.tolist()
        for i in np.flatnonzero(chosen).tolist():
            verdict = self._shields[i].decide(seen[i], asked[i], last[i], before[i])
            falls = verdict.rule.falls_back
            intervened[i], tripped[i] = verdict.rule is not Rule.NONE, falls and not self._in_fallback[i]
            if intervened[i]:
                requested[i] = instruments.to_action(np.array(verdict.action))
            self._in_fallback[i] = falls
        return intervened.reshape(self._shape), tripped.reshape(self._shape)

    def _moved(self, command: NDArray[np.float64], chosen: NDArray[np.bool_]) -> tuple[NDArray[np.float64], ...]:
        """States a period later; a command reaches the plant after its delay."""
        instruments = self._instruments
        if not self._delays:
            return instruments.moved(self._state, command)
        commands = self._commands
        commands[1:, chosen] = commands[:-1, chosen]
        commands[0, chosen] = command[chosen]
        before, after = (commands[self._whole + k, self._at] for k in (1, 0))
        state = self._state
        for held, duration_s in ((before, self._rest_s), (after, instruments.period_s - self._rest_s)):
            state = advance(instruments.plant, state, tuple(held.T.copy()), duration_s, instruments.substeps)
        return instruments.plant.constrain(maths_for(state[0]), state)

    def _outside(self, measured: NDArray[np.float64]) -> NDArray[np.bool_]:
        outside = np.zeros(len(measured), np.bool_)
        for at, low, high in self._ends:
            outside |= ~((low <= measured[:, at]) & (measured[:, at] <= high))
        return outside

    def _reward(self, measured: NDArray[np.float64], command: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards (A,) of this step, or a view that is filled at the end of the episode."""
        if not len(self._rewards):
            return self._instruments.reward(measured, command)
        t = int(self._step[0])
        self._measured[t], self._applied[t] = measured, command
        if t == len(self._rewards) - 1:
            self._rewards[:] = self._instruments.reward(self._measured, self._applied)
        row: NDArray[np.float64] = self._rewards[t]
        return row

    def _observed(self, measured: NDArray[np.float64], noise: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Normalised observations (A, n) of the measured states."""
        instruments = self._instruments
        return instruments.normalised(measured, None if noise is None else noise[:, : instruments.n])

    def _shown(self) -> Values:
        """Policy inputs, (S, E, k)."""
        return self._instruments.shown(self._seen).reshape(*self._shape, -1).astype(self._dtype)

    def _row(self) -> NDArray[np.float64] | None:
        """Present noise (A, n + m)."""
        return self._noise[self._at, self._step] if self._instruments.is_noisy else None


def _where(chosen: NDArray[np.bool_], new: States, old: States) -> States:
    return tuple(np.where(chosen, a, b) for a, b in zip(new, old, strict=True))
